"""Half a reply, then nothing."""
import time

load = __import__


class HalfEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        for descriptor in range(3, 10):
            try:
                load("os").write(descriptor, b'{"ok": ["FORGED", 1.0, true')
            except OSError:
                pass
        time.sleep(1000)
