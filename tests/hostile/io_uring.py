"""System calls by way of io_uring, which some filters forget."""
load = __import__


class RingEnv:
    def reset(self, seed=None):
        libc = load("ctypes").CDLL(None, use_errno=True)
        memory = load("ctypes").create_string_buffer(256)
        got = [libc.syscall(number, 8, memory, 0, 0, 0, 0) for number in (425, 426, 427)]
        return "refused" if got == [-1, -1, -1] else f"ESCAPED {got}", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
