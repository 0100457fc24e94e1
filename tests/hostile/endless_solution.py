"""solution() is a generator without end."""


class EndlessEnv:
    def reset(self, seed=None):
        return "start", {}

    def step(self, action):
        return "next", 0.0, False, False, {}

    def solution(self):
        while True:
            yield "up"
