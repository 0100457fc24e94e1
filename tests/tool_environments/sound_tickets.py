class TicketsEnv(ToolEnv):
    """Decline: one request has no tool, and decline_request is the right answer to it."""
    tools = [
        {"name": "list_tickets", "description": "Open tickets.", "parameters": {"type": "object", "properties": {}}},
        {"name": "assign", "description": "Give a ticket to someone.", "parameters": {
            "type": "object", "required": ["ticket", "person"], "properties": {
                "ticket": {"type": "integer"}, "person": {"type": "string", "enum": ["Ana", "Bo", "Chi"]}}}},
        {"name": "set_priority", "description": "Change a priority.", "parameters": {
            "type": "object", "required": ["ticket", "priority"], "properties": {
                "ticket": {"type": "integer"}, "priority": {"type": "string", "enum": ["low", "high"]}}}},
        {"name": "decline_request", "description": "Say that no tool can do this.", "parameters": {
            "type": "object", "required": ["reason"], "properties": {"reason": {"type": "string"}}}},
    ]

    def setup(self, rng):
        numbers = rng.sample(range(100, 1000), 3)
        self.tickets = {n: {"about": about, "person": None, "priority": "none"} for n, about in
                        zip(numbers, rng.sample(["printer", "login", "invoice"], 3))}
        self.login = next(n for n, ticket in self.tickets.items() if ticket["about"] == "login")
        self.declined = False
        return [("Bo should take the login problem.", lambda: self.tickets[self.login]["person"] == "Bo"),
                ("Order pizza for the team.", lambda: self.declined),
                ("The login problem is urgent.", lambda: self.tickets[self.login]["priority"] == "high")]

    def tool_list_tickets(self):
        return "; ".join(f"{n} {ticket['about']}" for n, ticket in self.tickets.items())

    def tool_assign(self, ticket, person):
        self.tickets[ticket]["person"] = person
        return f"{person} has it."

    def tool_set_priority(self, ticket, priority):
        self.tickets[ticket]["priority"] = priority
        return f"Now {priority}."

    def tool_decline_request(self, reason):
        self.declined = True
        return "The user has been told."

    def solution(self):
        return [self.call("list_tickets"), self.call("assign", ticket=self.login, person="Bo"),
                self.call("decline_request", reason="There is no tool for it."),
                self.call("set_priority", ticket=self.login, priority="high")]
