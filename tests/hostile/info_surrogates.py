"""Lone surrogates, odd keys, sets and infinities in info, where no log expects them."""


class InfoTextEnv:
    def reset(self, seed=None):
        return "start", {"\ud800": "\udfff", (1, 2): 3, "set": {1}, "inf": float("inf"), "deep": [["\udc80"]]}

    def step(self, action):
        return "next", 0.0, False, False, {None: self, 1.5: b"x"}
