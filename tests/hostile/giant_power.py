"""An integer power that no interrupt reaches."""


class PowerEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        number = 7 ** (7 ** 11)
        return str(number % 10), 0.0, False, False, {}
