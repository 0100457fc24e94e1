"""An info of many megabytes, nested and shared, so that it doubles with every level of JSON."""


class InfoEnv:
    def reset(self, seed=None):
        info = {"x": "y"}
        for _ in range(18):
            info = {"a": info, "b": info}
        return "start", info

    def step(self, action):
        return "next", 0.0, False, False, {}
