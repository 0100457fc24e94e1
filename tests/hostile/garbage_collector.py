"""A collector callback and finalizers that bring the dead back, over and over."""
load = __import__
GRAVE = []


class Undead:
    def __init__(self):
        self.me = self

    def __del__(self):
        GRAVE.append(Undead())


class CollectorEnv:
    def reset(self, seed=None):
        load("gc").callbacks.append(lambda phase, info: GRAVE.append(Undead()))
        return "start", {}

    def step(self, action):
        for _ in range(20000):
            Undead()
        return str(len(GRAVE) > 0), 0.0, False, False, {}
