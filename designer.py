"""The Environment Designer: a document and a few memories in, an executable environment and a hint out.

What it teaches: how a language model is asked for *environments* instead of answers. A corpus document grounds each
program (without documents the paper's Designer wrote one maze 41 times in a row), a memory of earlier programs shows
what was just right and what was not, and a second call of the same model, which may read the program, writes the
privileged hint (SPADE, arXiv 2608.19197, sections 3.1-3.3).

What it leaves out: repairing a refused program (it stays in the batch as a bad sample; the next attempt is a new order,
on another document), embeddings, novelty bonuses. The prompts are ours, not the paper's.

Try it:  python designer.py            prints the prompt for one document
"""
import random
import re
from concurrent.futures import ThreadPoolExecutor

from machinery import ranks
from machinery.documents import SAMPLE, read_documents
from machinery.records import Design, Environment, Order, Remembered, refuse_copies
from machinery.source import extract_code, in_order

SKILLS = {
    "Mathematical Reasoning": "computing, estimating and proving with quantities and their relations",
    "Logical Deduction": "drawing forced conclusions from clues and ruling possibilities out",
    "Spatial Reasoning": "positions, directions, shapes and movements in a space that is only described",
    "Pattern Recognition": "finding the rule behind examples and continuing it",
    "Optimization": "choosing well among many options under limits of time, money or space",
    "Causal Inference": "finding out what causes what by observing and intervening",
}
MARGIN = 64      # tokens of context that a prompt must leave for the reply
HINT_TRIES = 3   # as in SPADE's code


class Refused(Exception):
    """A program or a hint that does not hold. The message starts with a word to count by, as in "hint: empty"."""


# --- what it builds on: corpus C and memory M ---

class Corpus:
    """Documents to ground programs in, each cut to its first `words` words.

    Drawn without replacement until all are used, then in a new order. `drawn`, the number of draws so far, is
    the whole state: the order of round n is a function of (seed, n).
    """

    def __init__(self, texts: list[str], words: int, seed: int = 0):
        self.texts, self.words, self.seed, self.drawn = texts, words, seed, 0

    def draw(self) -> str:
        round_, position = divmod(self.drawn, len(self.texts))
        order = random.Random(f"{self.seed} corpus {round_}").sample(range(len(self.texts)), len(self.texts))
        self.drawn += 1
        return " ".join(self.texts[order[position]].split()[:self.words])


class EnvironmentMemory:
    """The last `capacity` environments and how they fared (SPADE's M), first in first out.

    Examples to imitate have a win rate in [.15, .85]; of the ten highest by `select` ("regret" or "reward") two are
    drawn. One to avoid is below .1 or above .9. With `select="random"` any may be imitated, however it fared.
    """

    def __init__(self, capacity: int = 200, select: str = "regret"):
        self.capacity, self.select, self.records = capacity, select, []

    def add(self, records: list[Remembered]) -> None:
        self.records = (self.records + records)[-self.capacity:] if self.capacity else []

    def examples(self, skill: str, rng: random.Random) -> tuple[list[Remembered], list[Remembered]]:
        """(examples to imitate, examples to avoid), same skill only; both may be empty."""
        same = [r for r in self.records if r.skill == skill]
        good = same
        if self.select != "random":
            just_right = [r for r in same if 0.15 <= r.win_rate <= 0.85]
            best_first = sorted(just_right, key=lambda r: -getattr(r, self.select))
            good = best_first[:10]
        bad = [r for r in same if r.win_rate < 0.1 or r.win_rate > 0.9]
        return rng.sample(good, min(2, len(good))), rng.sample(bad, min(1, len(bad)))


def skill_in_turn(skills: list[str], i: int, args, rollout: int) -> str:
    """The skill of a set's i-th order: `skills_per_set` of them are active, and the next set goes on behind them."""
    first = rollout // args.k * args.skills_per_set
    return skills[(first + i % args.skills_per_set) % len(skills)]


def orders(args, setting, state, places, attempt: int = 1) -> list[Order]:
    """Orders for these places of a set: the active skills in turn, a fresh document each, remembered examples.

    Every rank draws all of them, so that corpus and memory stay the same everywhere, and keeps its share.
    """
    skills = [s.strip() for s in args.skills.split(",")] if args.skills else list(setting.skills)
    made = []
    for place in places:
        skill = skill_in_turn(skills, place, args, state.rollout)
        good, bad = [], []
        if state.rng.random() < args.memory_share:
            good, bad = state.memory.examples(skill, state.rng)
        if place % setting.orders_per_document == 0:   # else it shares the document of the place before
            document = state.corpus.draw() if state.corpus else ""
        group = skill if setting.orders_per_document == 1 else f"document {place // setting.orders_per_document}"
        again = "" if attempt == 1 else f"_attempt{attempt}"
        name = f"{state.rollout:05d}_{place:03d}_{skill.lower().replace(' ', '_')}{again}"
        made.append(Order(name, skill, group, document, good, bad, place, attempt))
    return ranks.share(made, args.tensor_parallel)


# --- prompts (games) ---

GAME_RULES = """\
Write ONE Python class for it:

```python
import random

class ShortNameEnv:
    def __init__(self):
        self.turns_left = 12
    def reset(self, seed=None):
        self.rng = random.Random(seed)      # every random choice comes from self.rng
        ...                                 # build the hidden state
        return observation, {}              # a string and a dict
    def step(self, action):
        ...                                 # action is what the player sends, a string such as open 3
        return observation, reward, terminated, truncated, {}
    def solution(self):
        return [...]                        # the actions, in order, that win from the state after reset
```

The game
- The player sends one action per turn; step() treats it as a command, changes the state and describes what the
  player now sees.
- Part of the state is hidden at reset and found out by acting. It takes at least three well chosen actions to win.
  A single question that is merely repeated after a wrong answer is not a game.
- Every observation says which actions exist and how to write them. Everything needed to win can be found out by
  playing; different seeds give different instances.
- To win one must understand and use the idea of the document. Do not mention the document.
Reward
- The total is in [0, 1]: 1.0 exactly when the goal is reached, and then terminated is True; less for part of the
  way; 0.0 for nonsense. truncated is True when the turns run out.
- No constant or meaningless action may ever win.
Robustness
- Any string may arrive: unknown commands get a helpful observation, never an exception.
- Only the Python standard library; no files, network, processes, threads, input() or print(); double literal braces
  in f-strings.
- terminated and truncated are bool, the reward is a float, and the same seed gives the same game.
Before you answer, play two different action sequences through your code in your head and check every rule."""


def design_messages(order: Order, brief: bool) -> list[dict]:
    """The order for one environment. `brief` is for models with a short context: the rules are left out."""
    if brief:
        past = "".join(f"\npast:\n```python\n{r.code}\n```" for r in order.good[:1])
        return [{"role": "user", "content": f"design {order.skill} from: {order.document}{past}"}]
    parts = ["You are an expert designer of interactive learning environments and an exact Python programmer.",
             f"Design a text game that trains {order.skill.lower()}: {SKILLS[order.skill]}."]
    if order.document:
        parts.append(f"Base it on one idea of this document:\n<document>\n{order.document}\n</document>")
    parts += [GAME_RULES, memory_block(order)]
    return [{"role": "user", "content": "\n\n".join(p for p in parts if p)}]   # some templates know no system


def memory_block(order: Order) -> str:
    """What earlier programs of this skill teach: up to two to learn from, one to avoid and why."""
    parts = []
    for record in order.good:
        right = "that was just right " if 0.15 <= record.win_rate <= 0.85 else ""   # not so all at random
        parts.append(f"An earlier game {right}(solved {record.win_rate:.0%} of the time, "
                     f"{record.regret:+.2f} with a hint):\n```python\n{record.code[:2000]}\n```")
    for record in order.bad:
        why = "too easy" if record.win_rate > 0.9 else "too hard"
        lines = "\n".join(record.code.splitlines()[:12])[:600]
        parts.append(f"An earlier game that was {why} (solved {record.win_rate:.0%} of the time) began:\n"
                     f"```python\n{lines}\n```")
    if parts:
        parts.append("Learn from these games, but write one that is clearly different.")
    return "\n\n".join(parts)


def hint_messages(environment: Environment, brief: bool) -> list[dict]:
    """The second, separate call: the same model reads the program and writes the privileged hint."""
    code = f"```python\n{environment.code}\n```"
    if brief:
        return [{"role": "user", "content": f"hint for:\n{code}"}]
    return [{"role": "user", "content":
             f"Here is the program of a text game.\n{code}\nA player sees only the observations. Write a hint of at "
             f"most 100 words for the player: how the hidden state can be found out or computed from what is seen, "
             f"which method wins, and how actions are written. Never give the answer or the values of a particular "
             f"instance; no general advice. Reply with the hint alone."}]


# --- replies ---

def parse_game(reply: str, order: Order) -> Environment:
    code = extract_code(reply)
    if not code.strip():
        raise Refused("empty: the reply holds no program")
    return Environment(code, "", order.skill, "games", order.document, order.name)


def check_hint(hint: str, solutions: list[list[str]]) -> str:
    """The hint, or Refused: empty, longer than 100 words, or holding a whole solution of a checked seed."""
    hint = hint.rpartition("</think>")[2].strip()
    if not hint or len(hint.split()) > 100:
        raise Refused("hint: longer than 100 words" if hint else "hint: empty")
    words = re.findall(r"\w+", hint.lower())
    for solution in solutions:
        told = [word for action in solution for word in re.findall(r"\w+", action.lower().replace("\\boxed", ""))]
        whole = "".join(told)
        if len(whole) >= 4 and (whole in "".join(words) or in_order(told, words)):
            raise Refused("hint: gives a whole solution away")
    return hint


# --- the Designer at work ---

def check_program(design: Design, box, setting) -> None:
    """Fills in the design's environment, or the reason why it is none."""
    try:
        if not design.reply.finished:
            raise Refused("unfinished: cut off by the token limit")
        environment = setting.parse_design(design.reply.text, design.order)
        design.code = environment.code
        verdict = setting.validate(box, environment)
        if not verdict.valid:
            raise Refused(verdict.reason)
        design.environment, design.solutions = environment, list(verdict.solutions)
    except Refused as refusal:
        design.code = design.code or design.reply.text
        design.reason = str(refusal)


def write_hints(policy, setting, designs: list[Design], args) -> None:
    """The second call, asked again up to HINT_TRIES times. An environment whose hints are all refused stays, without a
    hinted arm.
    """
    for _ in range(HINT_TRIES):
        waiting = [d for d in designs if not d.environment.hint]
        prompts = [policy.prompt_ids(setting.hint_messages(d.environment, args.brief)) for d in waiting]
        for d, reply in zip(waiting, policy.sample(prompts, args.hint_tokens, args.hint_temperature, "hints")):
            try:
                if not reply.finished:
                    raise Refused("hint: unfinished")
                d.environment.hint, d.reason = check_hint(reply.text, d.solutions), ""
            except Refused as refusal:
                d.reason = str(refusal)


def design(policy, box, setting, orders: list[Order], args) -> list[Design]:
    """Samples one program per order, validates it in the sandbox, and asks for hints to those that hold.

    Args with a say: brief, context, design_tokens, temperature; judge and copies of what else is refused; hint_tokens
    and hint_temperature of the second call.
    """
    prompts = [policy.prompt_ids(setting.design_messages(order, args.brief)) for order in orders]
    needed = min(MARGIN, args.design_tokens)
    if prompts and all(len(prompt) + needed > args.context for prompt in prompts):
        raise SystemExit(f"the Designer's prompt has {len(prompts[0])} tokens and --context is {args.context}: raise "
                         f"--context, or lower --document-words")
    replies = policy.sample(prompts, args.design_tokens, args.temperature, "programs")
    designs = [Design(order, prompt, reply) for order, prompt, reply in zip(orders, prompts, replies)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda d: check_program(d, box, setting), designs))
    if args.judge:
        setting.judge(policy, [d for d in designs if d.environment], args)
    if args.copies == "refuse":   # here already, so that no hint is asked for in vain
        refuse_copies(designs)
    if setting.hint_messages:
        write_hints(policy, setting, [d for d in designs if d.environment], args)
    return designs


if __name__ == "__main__":
    text = Corpus(read_documents(SAMPLE), words=6000).draw()
    for message in design_messages(Order("demo", "Logical Deduction", "", text), brief=False):
        print(f"[{message['role']}]\n{message['content']}\n")
