"""Writes replies by hand that are JSON but not of the right kind: deep, huge numbers, wrong keys."""
load = __import__


class NestedEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        write = load("os").write
        for reply in (b'{"ok": ' + b"[" * 200000 + b"]" * 200000 + b"}\n", b"1" * 900000 + b"\n"):
            for descriptor in range(3, 10):
                try:
                    write(descriptor, reply)
                except OSError:
                    pass
        return "next", 0.0, False, False, {}
