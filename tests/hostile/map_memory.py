"""Anonymous memory by mmap, touched page by page, without the allocator of Python."""
load = __import__


class MapEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        c = load("ctypes")
        mmap, kept = c.CDLL(None).mmap, 0
        mmap.restype, mmap.argtypes = c.c_void_p, [c.c_void_p, c.c_size_t, c.c_int, c.c_int, c.c_int, c.c_size_t]
        while kept < 4 << 30:
            page = mmap(None, 64 << 20, 3, 0x22, -1, 0)
            if page in (None, 2 ** 64 - 1):
                raise MemoryError(f"after {kept} bytes")
            c.memset(page, 1, 64 << 20)
            kept += 64 << 20
        return "ESCAPED the memory limit", 0.0, False, False, {}
