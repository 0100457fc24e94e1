"""Signals to its group, to all processes, to itself; tgkill and pidfd as well."""
load = __import__


class KillEnv:
    def reset(self, seed=None):
        system, done = load("os"), []
        for pid in (0, -1, 1, system.getpid()):
            try:
                system.kill(pid, 18)
                done.append(pid)
            except OSError:
                pass
        libc = load("ctypes").CDLL(None)
        done += [n for n in (234, 200, 434, 424) if libc.syscall(n, system.getpid(), 0, 0, 0) != -1]
        return f"ESCAPED signals to {done}" if done else "refused", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
