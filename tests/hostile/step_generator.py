"""step yields instead of returning."""


class YieldEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        yield "next", 0.0, False, False, {}
