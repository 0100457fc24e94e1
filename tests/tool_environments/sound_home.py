import random


class HomeEnv(ToolEnv):
    """Read, then write: which lamp is meant follows from its reading. Draws from the module random, which is seeded."""
    tools = [
        {"name": "read", "description": "Lamps, or their power in watts.", "parameters": {
            "type": "object", "required": ["what"], "properties": {
                "what": {"type": "string", "enum": ["lamps", "power", "weather"]}}}},
        {"name": "switch", "description": "Switch a lamp.", "parameters": {
            "type": "object", "required": ["lamp", "on"], "properties": {
                "lamp": {"type": "string"}, "on": {"type": "boolean"}}}},
        {"name": "dim", "description": "Dim a lamp, in percent.", "parameters": {
            "type": "object", "required": ["lamp", "percent"], "properties": {
                "lamp": {"type": "string"}, "percent": {"type": "integer"}}}},
    ]

    def setup(self, rng):
        names = random.sample(["desk", "hall", "kitchen", "porch", "stairs"], 4)
        self.watts = dict(zip(names, random.sample(range(5, 95), 4)))
        self.on = dict.fromkeys(names, True)
        self.level = dict.fromkeys(names, 100)
        greedy, self.second = sorted(names, key=self.watts.get, reverse=True)[:2]
        return [("Switch off the lamp that uses most.", lambda: not self.on[greedy]),
                ("Dim the next greedy one to 40 percent.", lambda: self.level[self.second] == 40),
                ("A bit darker still, 30.", lambda: self.level[self.second] == 30),
                ("Now switch it off altogether.", lambda: not self.on[self.second])]

    def tool_read(self, what):
        return str({"lamps": list(self.watts), "power": self.watts, "weather": "rain"}[what])

    def tool_switch(self, lamp, on):
        self.on[lamp] = on
        return "on" if on else "off"

    def tool_dim(self, lamp, percent):
        self.level[lamp] = percent
        return f"{percent} %"

    def solution(self):
        greedy = max(self.watts, key=self.watts.get)
        return [self.call("read", what="power"), self.call("switch", lamp=greedy, on=False),
                self.call("dim", lamp=self.second, percent=40), self.call("dim", lamp=self.second, percent=30),
                self.call("switch", lamp=self.second, on=False)]
