"""An info that holds itself."""


class CircleEnv:
    def reset(self, seed=None):
        info = {}
        info["info"] = info
        return "start", info

    def step(self, action):
        return "next", 0.0, False, False, {}
