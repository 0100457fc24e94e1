"""Runs bytecode that no compiler wrote, so that the interpreter itself goes wrong."""


def victim():
    return 0


class BytecodeEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        code = victim.__code__
        victim.__code__ = code.replace(co_code=bytes(range(1, 241)), co_consts=(), co_stacksize=1)
        victim()
        return "next", 0.0, False, False, {}
