"""Answers one byte at a time for ever: each byte is in time, the reply never is."""
import time

load = __import__


class DripEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        write = load("os").write
        while True:
            for descriptor in range(3, 10):
                try:
                    write(descriptor, b" ")
                except OSError:
                    pass
            time.sleep(0.01)
