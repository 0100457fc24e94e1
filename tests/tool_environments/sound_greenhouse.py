class GreenhouseEnv(ToolEnv):
    """Every instruction names what is needed; arguments are strings, enums and lists."""
    tools = [
        {"name": "list_beds", "description": "All beds and how dry they are.", "parameters": {
            "type": "object", "properties": {}}},
        {"name": "water", "description": "Water a bed.", "parameters": {
            "type": "object", "required": ["bed", "amount"], "properties": {
                "bed": {"type": "string"}, "amount": {"type": "string", "enum": ["little", "much"]}}}},
        {"name": "label", "description": "Write a label.", "parameters": {
            "type": "object", "required": ["bed", "lines"], "properties": {
                "bed": {"type": "string"}, "lines": {"type": "array", "items": {"type": "string"}}}}},
    ]

    def setup(self, rng):
        self.beds = {f"bed-{i}": {"dry": dry, "watered": None, "label": None}
                     for i, dry in enumerate(rng.sample(range(100), 4), 1)}
        order = sorted(self.beds, key=lambda bed: self.beds[bed]["dry"])
        self.driest, self.wettest = order[-1], order[0]
        return [("Water the driest bed well.", lambda: self.beds[self.driest]["watered"] == "much"),
                ("Label the wettest bed with: keep dry", lambda: self.beds[self.wettest]["label"] == ["keep dry"]),
                ("Give the bed you labelled a little water after all.",
                 lambda: self.beds[self.wettest]["watered"] == "little")]

    def tool_list_beds(self):
        return "\n".join(f"{bed}: dryness {facts['dry']}" for bed, facts in self.beds.items())

    def tool_water(self, bed, amount):
        if bed not in self.beds:
            return f"There is no bed {bed}."
        self.beds[bed]["watered"] = amount
        return f"{bed} has been watered."

    def tool_label(self, bed, lines):
        self.beds[bed]["label"] = lines
        return "done"

    def solution(self):
        return [self.call("list_beds"), self.call("water", bed=self.driest, amount="much"),
                self.call("label", bed=self.wettest, lines=["keep dry"]),
                self.call("water", bed=self.wettest, amount="little")]
