"""What the laptop model is shown of the tool-use setting (settings/tools.py): two worlds and a beginner in them.

A program says how long and how wide its world is:

    asks = 3     # instructions, 3 to 5, to be met within the turns of a play; one has no tool and is declined
    marks = 2    # how many values a thing can have, 2 to 4: the more, the less is gained by guessing the usual one

Who calls look() first can tell what each call needs; a hint says so. Without it the beginner mostly guesses,
which wins short worlds. The Designer's demonstrations are of both extremes; shown a remembered
program, it changes one of the numbers by one. Left out: a model this small invents no new world.

Try it:  python -m laptop.tool_worlds        prints demonstrations of both roles
"""
import json
import random

from laptop.texts import beginning, fenced, fill, play_copy, topic
from settings.toolcalls import ToolEnv, parse_action

PROGRAM = '''\
class {Word}Env(ToolEnv):
    asks = {n}
    marks = {m}
    tools = [
        {"name": "look", "description": "{Word}", "parameters": {"type": "object", "properties": {}}},
        {"name": "{verb}", "description": "one", "parameters": {
            "type": "object", "required": ["name", "{key}"], "properties": {
                "name": {"type": "string", "enum": list("abcdef")}, "{key}": {"type": "integer"}}}},
        {"name": "decline", "description": "no", "parameters": {"type": "object", "properties": {}}},
    ]

    def setup(self, rng):
        self.mark = {name: rng.randrange(self.marks) for name in "abcdef"}
        self.goal = {name: rng.randrange(self.marks) for name in "abcdef"}
        self.names, self.done = rng.sample("abcdef", self.asks - 1), set()
        asks = [(f"{ask}", lambda name=name: name in self.done) for name in self.names]
        return asks[:1] + [("sing", lambda: "sing" in self.done)] + asks[1:]

    def right(self, name):
        return {rule}

    def tool_look(self):
        return " ".join(f"{name}{mark}" for name, mark in self.mark.items())

    def tool_{verb}(self, name, {key}):
        if {key} != self.right(name):
            raise ValueError("no")
        self.done.add(name)
        return "yes"

    def tool_decline(self):
        self.done.add("sing")
        return "yes"

    def solution(self):
        calls = [self.call("{verb}", name=name, {key}=self.right(name)) for name in self.names]
        return calls[:1] + [self.call("decline")] + calls[1:]'''
DIALS = dict(verb="turn", key="steps", ask="turn {name} to {self.goal[name]}",
             rule="(self.goal[name] - self.mark[name]) % 4",
             hint="Look first. Turn each by its goal minus its mark, modulo 4. Decline songs.")
BILLS = dict(verb="pay", key="sum", ask="pay {name}", rule="self.mark[name]",
             hint="Look first. Pay each its mark. Decline songs.")
FAMILIES = {"State Modification": DIALS, "API Orchestration": DIALS, "Multi-Step Workflows": DIALS,
            "Data Retrieval": BILLS, "Tool Selection": BILLS, "Error Recovery": BILLS}
PIECES = r"(?<![\w<])[a-f](?=\d|\W|$)|\d"   # where make_tokenizer cuts a play: names and values are tokens


def program(skill, word, n, m):
    """The Python text of a world: `n` instructions, 3 to 5, and `m` values of a thing, 2 to 4."""
    return fill(PROGRAM, FAMILIES[skill] | dict(Word=word, n=n, m=m))


def designer_demo(rng, texts):
    """Without a memory the easiest or the hardest; with one, the remembered one a little easier or harder."""
    skill, text, (n, m) = rng.choice(list(FAMILIES)), rng.choice(texts), rng.choice([(3, 2), (5, 4)])
    order = f"design {skill} from: {beginning(text)}"
    if rng.random() < 0.5:
        n, m = rng.randint(3, 5), rng.randint(2, 4)
        past = program(skill, topic(rng.choice(texts)), n, m)
        order += f"\npast:\n{fenced(past)}"
        longer, wider = rng.choice([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])
        if 3 <= n + longer <= 5:
            n += longer
        if 2 <= m + wider <= 4:
            m += wider
    return [order, fenced(program(skill, topic(text), n, m))]


def hint_demo(rng, texts):
    skill = rng.choice(list(FAMILIES))
    code = program(skill, topic(rng.choice(texts)), rng.randint(3, 5), rng.randint(2, 4))
    return [f"hint for:\n{fenced(code)}", FAMILIES[skill]["hint"]]


def agent_demo(rng, texts):
    """At most eight turns of a beginner, who looks first when told to, and otherwise mostly guesses."""
    skill, hinted = rng.choice(list(FAMILIES)), rng.random() < 0.5
    code = program(skill, "Demo", rng.randint(3, 5), rng.randint(2, 4))
    world = play_copy(code, ToolEnv=ToolEnv)
    ask, _ = world.reset(rng.randrange(2**31))
    asks = [text for text, _ in world._instructions]
    verb, key, hint = FAMILIES[skill]["verb"], FAMILIES[skill]["key"], FAMILIES[skill]["hint"]
    opening = f"tools: look() {verb}(name, {key}) decline()\n{ask}"
    turns = [f"{opening}\nhint: {hint}" if hinted else opening]
    looks = rng.random() < (0.97 if hinted else 0.3)
    tried, finished = [], False   # values, of this instruction
    while len(turns) < 16 and not finished:
        if ask not in asks:   # all are met
            said = "<answer>done</answer>"
        elif ask == "sing":
            said = written(rng.choice(["decline", "decline", "look"]), {})
        elif looks and len(turns) == 1:
            said = written("look", {})
        else:
            name = ask.split()[1]
            value = rng.choice([value for value in range(4) if value not in tried])
            tried.append(value)
            if looks and rng.random() > SLIP:
                value = world.right(name)
            said = written(verb, {"name": name, key: value})
        result, _, finished, _, _ = world.step(parse_action(said))
        turns += [said, result]
        if "\n\n" in result:   # the next instruction, or that there is none
            ask, tried = result.split("\n\n")[1].removeprefix("The user says: "), []
    return turns[:-1]   # to the last that the beginner says


def written(name, arguments):
    """A call as the model writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


SLIP = 0.05
DEMONSTRATIONS = [(8, designer_demo), (4, hint_demo), (48, agent_demo)]   # how many of each kind in a batch


if __name__ == "__main__":
    dice = random.Random(0)
    for demo in (designer_demo, hint_demo, agent_demo, agent_demo):
        for turn in demo(dice, ["Lamps light up dark rooms."]):
            print(turn)
        print()
