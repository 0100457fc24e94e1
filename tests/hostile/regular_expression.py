"""A pattern that backtracks for longer than anybody waits."""
import re


class PatternEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        re.match(r"(a*)*b", "a" * 60)
        return "next", 0.0, False, False, {}
