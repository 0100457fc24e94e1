# refused: step:
# it raises once its instruction is the current one and the shelf is not full
class KioskEnv(ToolEnv):
    tools = [
        {"name": "stock", "description": "What is on the shelves.", "parameters": {
            "type": "object", "properties": {}}},
        {"name": "sell", "description": "Sell some of a thing.", "parameters": {
            "type": "object", "required": ["thing", "count"], "properties": {
                "thing": {"type": "string"}, "count": {"type": "integer"}}}},
        {"name": "sign", "description": "Turn the sign at the door.", "parameters": {
            "type": "object", "required": ["side"], "properties": {
                "side": {"type": "string", "enum": ["open", "closed"]}}}},
    ]

    def setup(self, rng):
        self.shelf = {thing: rng.randint(5, 9) for thing in ("paper", "tea", "soap")}
        self.start = dict(self.shelf)
        self.side = "nothing"
        return [("Sell three teas.", lambda: self.shelf["tea"] == self.start["tea"] - 3),
                ("Sell all the soap.", lambda: self.shelf != self.start and self.shelf.soap == 0),
                ("Close the shop.", lambda: self.side == "closed")]

    def tool_stock(self):
        return str(self.shelf)

    def tool_sell(self, thing, count):
        if self.shelf[thing] < count:
            return "Not so many left."
        self.shelf[thing] -= count
        return f"{self.shelf[thing]} left."

    def tool_sign(self, side):
        self.side = side
        return f"The sign says {side}."

    def solution(self):
        return [self.call("stock"), self.call("sell", thing="tea", count=3),
                self.call("sell", thing="soap", count=self.shelf["soap"]), self.call("sign", side="closed")]
