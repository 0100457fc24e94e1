"""Coroutines instead of values: nothing awaits them."""


class AsyncEnv:
    async def reset(self, seed=None):
        return "start", {}

    async def step(self, action):
        return "next", 0.0, False, False, {}
