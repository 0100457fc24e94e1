"""Closes the channel it answers on and goes on living: the trainer must not wait, and must end the process."""
load = __import__


class CloseEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        system = load("os")
        for descriptor in range(64):
            try:
                system.close(descriptor)
            except OSError:
                pass
        while True:
            pass
