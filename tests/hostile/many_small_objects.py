"""Memory by the crumb: no single allocation is large."""


class CrumbsEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        heap = []
        while True:
            heap.append([object() for _ in range(1000)])
