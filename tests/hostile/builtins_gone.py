"""Empties the builtins and the module table that the worker itself uses."""


class BuiltinsEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        system = __import__("sys")
        builtins = system.modules["builtins"].__dict__
        system.modules.clear()
        for name in list(builtins):
            if name not in ("list", "__import__"):
                builtins.pop(name)
        return "next", 0.0, False, False, {}
