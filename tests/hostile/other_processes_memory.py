"""Reads the memory of its parent: ptrace, process_vm_readv, /proc/PID/mem."""
load = __import__


class PeekEnv:
    def reset(self, seed=None):
        c, system, done = load("ctypes"), load("os"), []
        libc = c.CDLL(None, use_errno=True)
        for pid in (1, system.getpid() - 1, system.getpid()):
            if libc.syscall(101, 16, pid, 0, 0) == 0:
                done.append(("ptrace", pid))
            if libc.syscall(310, pid, 0, 0, 0, 0, 0) != -1:
                done.append(("process_vm_readv", pid))
            try:
                open(f"/proc/{pid}/mem", "rb").read(1)
                done.append(("mem", pid))
            except OSError:
                pass
        return f"ESCAPED {done}" if done else "refused", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
