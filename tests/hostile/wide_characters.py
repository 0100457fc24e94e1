"""An observation under the limit in characters, of code points that JSON likes to write with twelve bytes each."""


class WideEnv:
    def reset(self, seed=None):
        return "\U0001F600" * 99_000, {}

    def step(self, action):
        return "next", 0.0, False, False, {}
