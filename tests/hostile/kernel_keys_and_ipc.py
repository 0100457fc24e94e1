"""Ways to leave something in the kernel: System V memory, message queues, keys, BPF, userfaultfd."""
load = __import__


class KernelEnv:
    def reset(self, seed=None):
        libc = load("ctypes").CDLL(None, use_errno=True)
        table = (29, 64, 68, 240, 248, 321, 323, 298)  # shmget, semget, msgget, mq_open, add_key, bpf, ...
        got = [libc.syscall(number, 0, 4096, 0o1777, 0, 0, 0) for number in table]
        return "refused" if set(got) == {-1} else f"ESCAPED {got}", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
