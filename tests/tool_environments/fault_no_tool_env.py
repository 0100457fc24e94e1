# refused: class: it does not subclass ToolEnv
# a game like any other
class GuessEnv:
    def reset(self, seed=None):
        self.number = random.Random(seed).randint(0, 9)
        return "Guess my number.", {}

    def step(self, action):
        won = action == str(self.number)
        return "yes" if won else "no", float(won), won, False, {}

    def solution(self):
        return [str(self.number)]
