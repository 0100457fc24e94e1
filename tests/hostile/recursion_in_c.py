"""A recursion limit out of reach and a structure nested deeper than the C stack."""


class DeepEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        __import__("sys").setrecursionlimit(10 ** 8)

        def fall(depth):
            return sorted([depth], key=lambda _: fall(depth + 1))

        fall(0)
        return "next", 0.0, False, False, {}
