"""A reward of a million, finite but outside of what any environment may pay."""


class RichEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        return "next", 1e6, True, False, {}
