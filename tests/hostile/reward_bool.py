"""The reward is True: a swapped order of values must not pass for a win."""


class BoolEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        return "next", True, 1.0, False, {}
