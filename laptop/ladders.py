"""The laptop world of games: six small ones, one per skill, with one kind of ladder, and a beginner in them.

The player answers the first `rungs` of eight items, in an order that it is never told, each changed by the rule of the
game. Every rung needs one more place of the order. The beginner knows two places, a hint tells four, the others can
only be found by trial: with too few rungs there is nothing to learn, with too many no play ever wins. The Designer
alone writes solved or hopeless ladders; shown a remembered program, it changes the rungs by one. Whatever climbs,
climbs by the reward.

What it leaves out: new games. A model this small recombines lines of code it has seen and chooses their numbers.

Try it:  python -m laptop.ladders        prints a program of each game and its hint
"""
import random

from laptop.texts import beginning, fenced, fill, play_copy, sample_texts, topic

ORDER = "12753864"      # no two of the later places are equally far from their turn: no rung gives the next one away
KNOWN, HINTED = 2, 4    # places the beginner knows, and places a hint tells
KNOWN_PLACES = ORDER[:KNOWN].ljust(8, "?")
HINTED_PLACES = ORDER[:HINTED].ljust(8, "?")

# --- the grammar: six games with one ladder -------------------------------------------------------------------

HEAD = '''\
import random


class {Word}Env:
    rungs = {n}
    {knob} = {c}
    order = "{order}"

    def rule(self, x):
        return {rule}

    def spell(self, row):
        return "".join(str(x % 4) for x in row)

    def reset(self, seed=None):
        self.row = random.Random(seed).choices(range(4), k=8)
        places = self.order[:self.rungs]
        self.answer = self.spell(self.rule(self.row[int(place) - 1]) for place in places) + "."
'''
ONE_TURN = '''\
        return f"{Word}: {show}, say {self.rungs} of " + self.spell(self.row), {}

    def step(self, action):
        won = action[7:-1] == self.answer
        return "won" if won else "lost", float(won), True, False, {}

    def solution(self):
        return self.answer'''
TWO_TURNS = '''\
        self.tried = False
        return "{Word}: {show}", {}

    def step(self, action):
        said = action[7:-1]
        if not self.tried and said in list("0123"):
            self.tried = True
            found = self.rule(int(said)) % 4
            return f"{said} {effect} {found}, say {self.rungs} of " + self.spell(self.row), 0.0, False, False, {}
        won = self.tried and said == self.answer
        return "won" if won else "lost", float(won), True, False, {}

    def solution(self):
        return ["0", self.answer]'''
TEMPLATES = {  # skill: what fills the grammar, and what a hint says of the rule. With an effect it takes two turns
    "Mathematical Reasoning": dict(
        knob="add", rule="x + self.add", show="add {self.add}", hint="Add {c} to each digit, modulo 4."),
    "Logical Deduction": dict(
        knob="swap", rule="x ^ self.swap", show="liars swap {self.swap}", hint="Every liar says x xor {c}."),
    "Spatial Reasoning": dict(
        knob="turn", rule="x + self.turn", show="turn right {self.turn}", hint="Turn each heading right {c} times."),
    "Pattern Recognition": dict(
        knob="skip", rule="x + self.skip", show="cycle 0123 skip {self.skip}", hint="Go {c} steps on in the cycle."),
    "Optimization": dict(knob="room", rule="self.room - x", show="try a load", effect="leaves",
                         hint="Try 0 first. The best filling is {c} minus the digit, modulo 4."),
    "Causal Inference": dict(knob="wire", rule="x + self.wire", show="try a switch", effect="lights",
                             hint="Try 0 first. Every lamp is {c} further than its switch."),
}


def program(skill, word, rungs, c):
    """The Python text of an environment: `rungs` in 1..8, `c` in 1..3 is the number in the game's rule."""
    turns = TWO_TURNS if "effect" in TEMPLATES[skill] else ONE_TURN
    return fill(HEAD + turns, TEMPLATES[skill] | dict(Word=word, n=rungs, c=c, order=ORDER))


def hint(skill, c, told=HINTED_PLACES):
    """The rule, and the places told: "1275????" names the first four."""
    rule = TEMPLATES[skill]["hint"].format(c=c)
    return f"{rule} Places {told}."


def heldout_programs(seed, n):
    """Fresh programs in all six skills, of rungs that the beginner cannot play: a list of (code, hint, skill, rung)."""
    rng, texts, skills = random.Random(f"held-out {seed}"), sample_texts(), list(TEMPLATES)
    programs = []
    for i in range(n):
        skill = skills[i % len(skills)]
        rungs = 4 + i // len(skills) % 5    # 4 to 8, each once in every skill before the next
        word = topic(rng.choice(texts))
        c = rng.randint(1, 3)
        programs.append((program(skill, word, rungs, c), hint(skill, c), skill, rungs))
    return programs


# --- demonstrations: a chat is a list of turns, user first ----------------------------------------------------

SLIP, GUESS = 0.04, 0.5    # share of random letters, and of the unknown places that it does not take in order


def some_ladder(rng, texts, rungs):
    """A program of any game: (skill, c, code)."""
    skill, c = rng.choice(list(TEMPLATES)), rng.randint(1, 3)
    return skill, c, program(skill, topic(rng.choice(texts)), rungs, c)


def designer_demo(rng, texts):
    """Without a memory only solved or hopeless ladders; with one, the remembered ladder a rung up or down."""
    text = rng.choice(texts)
    if rng.random() < 0.98:
        rungs = rng.choice([1, 2, 7, 8])
    else:
        rungs = rng.randint(3, 6)
    remembered = rng.randint(1, 8)
    skill, _, past = some_ladder(rng, texts, remembered)
    order = f"design {skill} from: {beginning(text)}"
    if rng.random() < 0.5:
        order += f"\npast:\n{fenced(past)}"
        changed = remembered + rng.choice([-1, -1, 0, 1, 1])
        rungs = changed if 1 <= changed <= 8 else remembered
    return [order, fenced(program(skill, topic(text), rungs, rng.randint(1, 3)))]


def hint_demo(rng, texts):
    skill, c, code = some_ladder(rng, texts, rng.randint(1, 8))
    return [f"hint for:\n{fenced(code)}", hint(skill, c)]


def agent_demo(rng, texts):
    """A beginner, who plays by its belief of the order and now and then slips."""
    hinted = rng.random() < 0.6
    if hinted:
        told = told_places(rng)
        rungs = rng.randint(1, 8)
    else:   # beyond the places it knows a player without a hint only guesses, so these demonstrations are shorter
        told = KNOWN_PLACES
        rungs = min(rng.randint(1, 8), rng.randint(1, 8))
    skill, c, code = some_ladder(rng, texts, rungs)
    game = play_copy(code)
    game.order = belief(rng, told)
    opening, _ = game.reset(rng.randrange(2**31))
    turns = [f"{opening}\nhint: {hint(skill, c, told)}" if hinted else opening]
    answer = ""
    for item in game.answer.removesuffix("."):
        answer += rng.choice("0123") if rng.random() < SLIP else item
    if "effect" in TEMPLATES[skill]:
        first = r"\boxed{0}"
        effect, *_ = game.step(first)
        turns += [first, effect]
    return [*turns, rf"\boxed{{{answer}.}}"]


def told_places(rng):
    """Half the hints are as the Designer writes them; in the others any place may be told, so each means itself."""
    some = ORDER[:KNOWN]
    for place in ORDER[KNOWN:]:
        some += rng.choice([place, "?"])
    return rng.choice([HINTED_PLACES, some])


def belief(rng, told):
    """The order as a beginner sees it: the places that it is told; of the others it thinks that they go on in order,
    or it takes any. What it prefers is wrong, so that growing surer of itself teaches it nothing."""
    believed = ""
    for turn, place in enumerate(told, 1):
        if place != "?":
            believed += place
        elif rng.random() < GUESS:
            believed += rng.choice(ORDER)
        else:
            believed += str(turn)
    return believed


DEMONSTRATIONS = [(6, designer_demo), (6, hint_demo), (64, agent_demo)]    # how many of each kind in a batch
PIECES = r"(?<=say )\d(?= of)|(?<=of )[0-3]{8}|(?<=Places )[1-8?]{8}|(?<=\{)[0-3]+(?=\.\})"    # what talk is cut at


if __name__ == "__main__":
    for code, text, skill, _ in heldout_programs(0, 6):
        print(f"# {skill}\n{code}\n# hint: {text}\n")
