"""Skips the C library: machine code that makes system calls itself, also through the 32-bit entry."""
load = __import__


class MachineEnv:
    def reset(self, seed=None):
        c, mmap = load("ctypes"), load("ctypes").CDLL(None).mmap
        mmap.restype, mmap.argtypes = c.c_void_p, [c.c_void_p, c.c_size_t, c.c_int, c.c_int, c.c_int, c.c_size_t]
        page = mmap(None, 4096, 7, 0x22, -1, 0)
        found = []
        for name, code in {
            "fork": b"\xb8\x39\x00\x00\x00\x0f\x05\xc3",  # mov eax, 57; syscall; ret
            "fork of x32": b"\xb8\x39\x00\x00\x40\x0f\x05\xc3",
            "fork of i386": b"\xb8\x02\x00\x00\x00\xcd\x80\xc3",  # mov eax, 2; int 0x80; ret
        }.items():
            c.memmove(page, code, len(code))
            if c.CFUNCTYPE(c.c_int)(page)() >= 0:
                found.append(name)
        return f"ESCAPED {found}" if found else "refused", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
