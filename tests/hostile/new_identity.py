"""Becomes root, leaves its session and its group, asks for capabilities and for namespaces."""
load = __import__


class IdentityEnv:
    def reset(self, seed=None):
        system, done = load("os"), []
        for name, arguments in {"setuid": (0,), "setgid": (0,), "setsid": (), "setpgid": (0, 0), "chroot": ("/",),
                                "nice": (-5,), "chdir": ("/tmp",), "umask": (0,)}.items():
            try:
                if getattr(system, name)(*arguments) != -1:
                    done.append(name)
            except OSError:
                pass
        libc = load("ctypes").CDLL(None)
        done += [n for n in (272, 308, 126, 165, 155) if libc.syscall(n, 0x10000000, 0, 0, 0, 0) != -1]
        return f"ESCAPED {done}" if [d for d in done if d != "umask"] else "refused", {}

    def step(self, action):
        return "next", 0.0, False, False, {}
