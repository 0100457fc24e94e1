"""Raises its own limits, by setrlimit and prlimit, and clears the death signal of its parent."""
load = __import__


class LimitsEnv:
    def reset(self, seed=None):
        limits, done = load("resource"), []
        for which in range(16):
            try:
                limits.setrlimit(which, (-1, -1))
                done.append(which)
            except (OSError, ValueError):
                pass
        libc = load("ctypes").CDLL(None)
        if libc.prctl(1, 0, 0, 0, 0) == 0:
            done.append("death signal")
        if libc.prctl(22, 0, 0, 0, 0) == 0:
            done.append("seccomp")
        return f"ESCAPED {done}" if done else "refused", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
