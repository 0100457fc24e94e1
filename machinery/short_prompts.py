"""Short prompts for models of about a billion parameters, --prompt short: three worked examples in place of the rules.

A model of a billion parameters imitates whole programs better than it follows a page of rules. Six examples, because it
also takes over what it is shown: each order draws other three. They share a shape, and that is what is to be taken
over: two comments that plan the game before it is written; actions compared as whole texts, so that nothing a player
types is an exception; one exit from step(), so that its five values are always right.

What it leaves out: the memory, and most of the document. What was measured is in machinery/README.md.

Try it:  python -m machinery.short_prompts        prints the order for one game
"""
import random

from machinery.records import Environment, Order

EXAMPLES = {  # skill: (the document, the program)
    "Mathematical Reasoning": ("A full tank weighs as much as the empty tank and the water in it together; a litre of "
                               "water weighs one kilogram.", '''\
# Hidden: how many litres of water are in a tank.
# Actions: weigh the full tank, weigh an empty one, answer with the difference.
import random

class WaterTankEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.litres = rng.randint(3, 30)
        self.tank = rng.randint(2, 9)
        return "How many litres are in the tank? Actions: weigh full, weigh empty, answer 7.", {}

    def step(self, action):
        won = action == f"answer {self.litres}"
        if won:
            text = "Right, you win."
        elif action == "weigh full":
            text = f"The tank with its water weighs {self.tank + self.litres} kg."
        elif action == "weigh empty":
            text = f"The same tank without water weighs {self.tank} kg."
        else:
            text = "No. Actions: weigh full, weigh empty, answer 7."
        return text, float(won), won, False, {}
'''),
    "Logical Deduction": ("A knight always tells the truth and a knave always lies, so first ask what you know.", '''\
# Hidden: which of four gates is safe, and whether their guard lies.
# Actions: ask him about the sky, ask about two gates, enter the safe one.
import random

class GateGuardEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.safe = rng.choice(["a", "b", "c", "d"])
        self.honest = rng.choice([True, False])
        return "One of the gates a, b, c, d is safe. Actions: ask sky, ask a or b, ask a or c, enter a.", {}

    def step(self, action):
        won = action == f"enter {self.safe}"
        if won:
            text = "You are through. You win."
        elif action == "ask sky":
            text = "The guard says: it is blue." if self.honest else "The guard says: it is green."
        elif action == "ask a or b":
            text = "The guard says: yes." if (self.safe in ["a", "b"]) == self.honest else "The guard says: no."
        elif action == "ask a or c":
            text = "The guard says: yes." if (self.safe in ["a", "c"]) == self.honest else "The guard says: no."
        else:
            text = "The gate stays shut. Actions: ask sky, ask a or b, ask a or c, enter a."
        return text, float(won), won, False, {}
'''),
    "Spatial Reasoning": ("On a map north is up and east is right; a place is reached by walking along both.", '''\
# Hidden: how far east and how far north a chest is buried.
# Actions: look where it is, walk in four directions, dig when it is here.
import random

class BuriedChestEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.east = rng.choice([-2, -1, 1, 2])
        self.north = rng.choice([-2, -1, 1, 2])
        return "A chest is buried near you. Actions: look, north, south, east, west, dig.", {}

    def step(self, action):
        won = action == "dig" and self.east == 0 and self.north == 0
        if won:
            text = "You dig out the chest. You win."
        elif action == "look":
            text = f"The chest is {self.east} steps east and {self.north} steps north of you."
        elif action in ["north", "south"]:
            self.north += -1 if action == "north" else 1
            text = f"You walk {action}."
        elif action in ["east", "west"]:
            self.east += -1 if action == "east" else 1
            text = f"You walk {action}."
        else:
            text = "Nothing here. Actions: look, north, south, east, west, dig."
        return text, float(won), won, False, {}
'''),
    "Pattern Recognition": ("In an arithmetic sequence each term is the one before plus a fixed step.", '''\
# Hidden: how often a lighthouse flashes first, and by how many flashes it grows.
# Actions: watch it flash, answer with the number that comes next.
import random

class LighthouseEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.flashes = rng.randint(1, 5)
        self.growth = rng.randint(2, 6)
        return "A lighthouse flashes by a rule. How often will it flash next? Actions: watch, answer 9.", {}

    def step(self, action):
        won = action == f"answer {self.flashes}"
        if won:
            text = "Right, you know the rule. You win."
        elif action == "watch":
            text = f"It flashes {self.flashes} times."
            self.flashes += self.growth
        else:
            text = "That is not it. Actions: watch, answer 9."
        return text, float(won), won, False, {}
'''),
    "Optimization": ("The best offer is the one with the most worth for its price.", '''\
# Hidden: what tea, salt and silk are worth at the next port.
# Actions: ask for the worth of each, buy the one with the largest profit.
import random

class TraderEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.price = {"tea": 2, "salt": 5, "silk": 9}
        self.worth = {"tea": rng.randint(3, 20), "salt": rng.randint(6, 20), "silk": rng.randint(10, 20)}
        self.best = max(self.price, key=lambda name: self.worth[name] - self.price[name])
        return "Tea costs 2, salt 5, silk 9. Buy what pays best. Actions: ask tea, ask salt, ask silk, buy tea.", {}

    def step(self, action):
        won = action == f"buy {self.best}"
        text = "No. Actions: ask tea, ask salt, ask silk, buy tea."
        if won:
            text = "A good bargain. You win."
        for name in self.worth:
            if action == f"ask {name}":
                text = f"At the next port {name} is worth {self.worth[name]}."
        return text, float(won), won, False, {}
'''),
    "Causal Inference": ("To find a cause, change one thing at a time and watch what happens.", '''\
# Hidden: which button lights the lamp.
# Actions: press a button, look at the lamp, answer with the cause.
import random

class LampButtonEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.cause = rng.choice(["red", "green", "blue", "white"])
        self.pressed = "none"
        return "One button of red, green, blue, white lights a lamp. Actions: press red, look, answer red.", {}

    def step(self, action):
        won = action == f"answer {self.cause}"
        if won:
            text = "Right, you win."
        elif action in ["press red", "press green", "press blue", "press white"]:
            self.pressed = action
            text = f"You {action}. Something clicks."
        elif action == "look":
            text = "The lamp is lit." if self.pressed == f"press {self.cause}" else "The lamp is dark."
        else:
            text = "Nothing happens. Actions: press red, look, answer red."
        return text, float(won), won, False, {}
'''),
}

RULES = """\
You write small text games in Python. Something is hidden, the player finds it out by typing short actions, and wins by
a last action that only fits what is hidden. step() returns text, reward, terminated, truncated, {}; every text names
the actions. Reply with the code only."""
WORDS = 30   # of the document


def ask(text: str) -> str:
    return f"Write a text game, one class with reset(seed) and step(action), about this text: {text}"


def design_messages(order: Order, brief: bool) -> list[dict]:
    """Examples as turns that went before. The rules open the first: some templates know no system message."""
    messages = []
    for text, program in random.Random(f"{order.name} {order.document}").sample(list(EXAMPLES.values()), 3):
        messages += [{"role": "user", "content": ask(text)},
                     {"role": "assistant", "content": f"```python\n{program}```"}]
    messages[0]["content"] = f"{RULES}\n\n{messages[0]['content']}"
    beginning = " ".join(order.document.split()[:WORDS])
    return [*messages, {"role": "user", "content": ask(beginning or order.skill)}]


def hint_messages(environment: Environment, brief: bool) -> list[dict]:
    return [{"role": "user", "content":
             f"```python\n{environment.code}\n```\nThis is the program of a text game. A player sees only what reset() "
             f"and step() return. Write the player a hint of one to three sentences: how to find out what is hidden, "
             f"which method wins, and how the actions are written. Do not name values that change with the seed. Reply "
             f"with the hint alone."}]


def agent_messages(observation: str, info: dict, hint: str, brief: bool) -> tuple[list[dict], None]:
    """Without "think step by step", which fills a reply limit of a hundred tokens."""
    shown = observation + (f"\n\nHINT: {hint}" if hint else "")
    return [{"role": "user", "content":
             f"You are playing a text game and want to win it.\n\n{shown}\n\nEach turn, write one short sentence about "
             f"what you know, then one action inside \\boxed{{}}."}], None


if __name__ == "__main__":
    for message in design_messages(Order("demo", "Logical Deduction", "", "A pulley lifts a load."), False):
        print(f"[{message['role']}]\n{message['content']}\n")
