"""The Environment Designer: a document and a few memories in, an executable environment and a hint out.

What it teaches: how a language model is asked for *environments* instead of answers. A corpus document grounds each
program, a memory of earlier programs shows what was just right and what was not, and a second call of the same
model, which may read the program, writes the privileged hint (SPADE, arXiv 2608.19197, sections 3.1-3.3).

What it leaves out: repairing a refused program by a second attempt (it stays in the batch as a bad sample), novelty
bonuses. The prompts are ours, not the paper's.

Try it:  python designer.py            prints the prompt for one document
"""
import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from machinery.source import extract_code, normalised
from machinery.textfiles import json_lines

SKILLS = {
    "Mathematical Reasoning": "computing, estimating and proving with quantities and their relations",
    "Logical Deduction": "drawing forced conclusions from clues and ruling possibilities out",
    "Spatial Reasoning": "positions, directions, shapes and movements in a space that is only described",
    "Pattern Recognition": "finding the rule behind examples and continuing it",
    "Optimization": "choosing well among many options under limits of time, money or space",
    "Causal Inference": "finding out what causes what by observing and intervening",
}
MARGIN = 64                # tokens of context that a prompt must leave for the program


@dataclass
class Environment:
    """What the Designer emits. `code` defines a class ...Env with reset(seed) and step(action)."""
    code: str
    hint: str
    skill: str
    setting: str
    document: str
    name: str


@dataclass
class Slot:
    """One order to the Designer: a skill, a document ("" without a corpus), and remembered records."""
    name: str
    skill: str
    group: str      # whose mean reward is its baseline: the skill's, or in spice.py the document's
    document: str
    good: list[dict] = field(default_factory=list)
    bad: list[dict] = field(default_factory=list)


@dataclass
class Design:
    """What became of a slot: the sampled program, and the environment or the reason why there is none."""
    slot: Slot
    prompt: list[int]
    reply: object                       # engines.Reply
    code: str = ""
    environment: Environment | None = None
    reason: str = ""
    reward: float = 0.0


class Refused(Exception):
    """A design that is no environment. The message starts with a word to count by, as in "hint: empty"."""


@dataclass(frozen=True)
class Setting:
    """What a kind of environment must provide: games (agent.py), tools.py, spice.py, rlve.py."""
    name: str
    skills: dict[str, str]
    design_messages: Callable   # (slot, brief) -> messages
    parse_design: Callable      # (reply text, slot) -> Environment; raises Refused
    validate: Callable          # (box, environment) -> sandbox.Verdict
    hint_messages: Callable | None  # (environment, brief) -> messages; None: the design brought its hint
    open: Callable              # (box, environment) -> an object with reset(seed), step(action), close()
    agent_messages: Callable    # (observation, info, hint, brief) -> (messages, tools): the opening of a play
    observation_messages: Callable  # (observation, info) -> messages: every later turn
    parse_action: Callable      # (reply text) -> the action for step()
    prelude: str = ""           # trusted source that the sandbox loads before the generated program
    repeats: bool = False       # may one set hold a design twice? (SPICE asks one document eight times)
    judge_messages: Callable | None = None  # (environment) -> messages: can it be won? (--judge)


# --- what it builds on: corpus C and memory M ---

class Corpus:
    """Documents to ground programs in: JSONL with a `text` field, each cut to its first `words` words.

    Drawn without replacement until all are used, then in a new order. `drawn`, the number of draws so far, is
    the whole state: the order of round n is a function of (seed, n).
    """

    def __init__(self, path: str, words: int, seed: int = 0):
        self.words, self.seed, self.drawn, self.texts, self.skipped = words, seed, 0, [], []
        try:
            for where, record, problem in json_lines(path):
                text = record.get("text")
                if not isinstance(text, str):
                    self.skipped.append(f"{where}: " + (problem or 'there is no "text" that is a string'))
                elif text.strip():
                    self.texts.append(text.encode("utf-8", "replace").decode())   # half a surrogate pair is no text
        except OSError as error:
            raise SystemExit(f"cannot read the corpus {path}: {error.strerror}. --corpus FILE wants JSON lines "
                             f'such as {{"text": "A fraction is ..."}}; --no-corpus trains without.') from None
        if self.skipped:
            print(f"corpus: {len(self.skipped)} malformed lines skipped, first {self.skipped[0]}")
        if not self.texts:
            raise SystemExit(f'the corpus {path} holds no document: each line needs a non-empty "text", such as '
                             f'{{"text": "A fraction is ..."}}. {"".join(self.skipped[:1])}')

    def draw(self) -> str:
        round_, position = divmod(self.drawn, len(self.texts))
        order = random.Random(f"{self.seed} corpus {round_}").sample(range(len(self.texts)), len(self.texts))
        self.drawn += 1
        return " ".join(self.texts[order[position]].split()[:self.words])


class EnvironmentMemory:
    """The last `capacity` environments with how they fared (SPADE's M), first in first out.

    A record: {name, skill, code, hint, win_rate, reward, regret, rollout}. Examples to imitate have a win rate in
    [.15, .85]; of the ten highest by `select` ("regret" or "reward") two are drawn. One to avoid is below .1 or
    above .9. With `select="random"` any may be imitated, however it fared.
    """

    def __init__(self, capacity: int = 200, select: str = "regret"):
        self.capacity, self.select, self.records = capacity, select, []

    def add(self, records: list[dict]) -> None:
        self.records = (self.records + records)[-self.capacity:] if self.capacity else []

    def examples(self, skill: str, rng: random.Random, n: int = 2) -> tuple[list[dict], list[dict]]:
        """(examples to imitate, examples to avoid), same skill only; both may be empty."""
        same = [r for r in self.records if r["skill"] == skill]
        good = same
        if self.select != "random":
            good = [r for r in same if 0.15 <= r["win_rate"] <= 0.85]
            good = sorted(good, key=lambda r: -r[self.select])[:max(3 * n, 10)]
        bad = [r for r in same if r["win_rate"] < 0.1 or r["win_rate"] > 0.9]
        return rng.sample(good, min(n, len(good))), rng.sample(bad, min(1, len(bad)))


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
        ...                                 # action is a string such as \\boxed{open 3}
        return observation, reward, terminated, truncated, {}
    def solution(self):
        return [...]                        # the actions, in order, that win from the state after reset
```

The game
- The player sends one action per turn inside \\boxed{}; step() takes out what is inside, treats it as a command,
  changes the state and describes what the player now sees.
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
- Only the Python standard library; no files, network, input() or print(); double literal braces in f-strings.
- terminated and truncated are bool, the reward is a float, and the same seed gives the same game.
Before you answer, play two different action sequences through your code in your head and check every rule."""


def design_messages(slot: Slot, brief: bool) -> list[dict]:
    """The order for one environment. `brief` is for models with a short context: the rules are left out."""
    if brief:
        past = "".join(f"\npast:\n```python\n{r['code']}\n```" for r in slot.good[:1])
        return [{"role": "user", "content": f"design {slot.skill} from: {slot.document}{past}"}]
    parts = ["You are an expert designer of interactive learning environments and an exact Python programmer.",
             f"Design a text game that trains {slot.skill.lower()}: {SKILLS[slot.skill]}."]
    if slot.document:
        parts.append(f"Base it on one idea of this document:\n<document>\n{slot.document}\n</document>")
    parts += [GAME_RULES, memory_block(slot)]
    return [{"role": "user", "content": "\n\n".join(p for p in parts if p)}]   # some templates know no system


def memory_block(slot: Slot) -> str:
    """What earlier programs of this skill teach: up to two to learn from, one to avoid and why."""
    parts = []
    for record in slot.good:
        right = "that was just right " if 0.15 <= record["win_rate"] <= 0.85 else ""   # --memory-select random
        parts.append(f"An earlier game {right}(solved {record['win_rate']:.0%} of the time, "
                     f"{record['regret']:+.2f} with a hint):\n```python\n{record['code'][:2000]}\n```")
    for record in slot.bad:
        why = "too easy" if record["win_rate"] > 0.9 else "too hard"
        lines = "\n".join(record["code"].splitlines()[:12])[:600]
        parts.append(f"An earlier game that was {why} (solved {record['win_rate']:.0%} of the time) began:\n"
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

def parse_game(reply: str, slot: Slot) -> Environment:
    code = extract_code(reply)
    if not code.strip():
        raise Refused("empty: the reply holds no program")
    return Environment(code, "", slot.skill, "games", slot.document, slot.name)


def check_hint(hint: str, solutions: list[list[str]]) -> str:
    """The hint, or Refused: empty, longer than 100 words, or holding a whole solution of a checked seed."""
    hint = hint.rpartition("</think>")[2].strip()
    if not hint or len(hint.split()) > 100:
        raise Refused("hint: longer than 100 words" if hint else "hint: empty")
    words = re.findall(r"\w+", hint.lower())
    for solution in solutions:
        actions = [re.findall(r"\w+", action.lower().replace("\\boxed", "")) for action in solution]
        whole = "".join(word for action in actions for word in action)
        rest = iter(words)   # consumed by `in`: the solution's words in their order, others between them or not
        if len(whole) >= 4 and (whole in "".join(words) or all(w in rest for action in actions for w in action)):
            raise Refused("hint: gives a whole solution away")
    return hint


# --- the Designer at work ---

def refuse_copies(designs: list[Design], gather: Callable = list) -> None:
    """Of equal programs only the first is kept; with ranks.gather, of all ranks', whatever the number of GPUs."""
    # only of what parses: the tokenizer is quadratic on some noise
    mine = {d.slot.name: normalised(d.code) for d in designs if d.environment}
    first = {same: name for name, same in sorted(gather(list(mine.items())), reverse=True)}
    for d in designs:
        if d.environment and first[mine[d.slot.name]] != d.slot.name:
            d.environment, d.reason = None, "duplicate: the same program twice in one set"


def design(policy, box, setting: Setting, slots: list[Slot], *, brief: bool, max_tokens: int, hint_tokens: int,
           temperature: float, hint_temperature: float, context: int) -> list[Design]:
    """Samples one program per slot, validates it in the sandbox, and asks for hints to those that hold."""
    prompts = [policy.prompt_ids(setting.design_messages(slot, brief)) for slot in slots]
    if prompts and all(len(prompt) + min(MARGIN, max_tokens) > context for prompt in prompts):
        raise SystemExit(f"the Designer's prompt has {len(prompts[0])} tokens and --context is {context}: raise "
                         f"--context, or lower --document-words")
    replies = policy.sample(prompts, max_tokens, temperature)
    designs = [Design(slot, prompt, reply) for slot, prompt, reply in zip(slots, prompts, replies)]

    def check(design):
        try:
            if not design.reply.finished:
                raise Refused("unfinished: cut off by the token limit")
            environment = setting.parse_design(design.reply.text, design.slot)
            design.code = environment.code
            verdict = setting.validate(box, environment)
            if not verdict.valid:
                raise Refused(verdict.reason)
            design.environment = environment
            return verdict
        except Refused as refusal:
            design.code = design.code or design.reply.text
            design.reason = str(refusal)

    with ThreadPoolExecutor(4) as pool:
        judged = list(pool.map(check, designs))
    held = [(design_, verdict) for design_, verdict in zip(designs, judged) if verdict]
    if setting.judge_messages:
        prompts = [policy.prompt_ids(setting.judge_messages(d.environment)) for d, _ in held]
        for (design_, _), reply in zip(held, policy.sample(prompts, hint_tokens, hint_temperature)):
            if not reply.finished or not re.search(r"\byes\W*\Z", reply.text, re.I):  # all but a yes is a no
                design_.environment, design_.reason = None, "judge: does not say yes"
    if not setting.repeats:
        refuse_copies(designs)
    held = [(d, verdict) for d, verdict in held if d.environment]
    if setting.hint_messages is None:
        return designs
    prompts = [policy.prompt_ids(setting.hint_messages(d.environment, brief)) for d, _ in held]
    hints = policy.sample(prompts, hint_tokens, hint_temperature)
    for (design_, verdict), reply in zip(held, hints):
        try:
            if not reply.finished:
                raise Refused("hint: unfinished")
            design_.environment.hint = check_hint(reply.text, verdict.solutions)
        except Refused as refusal:  # the environment stays; without a hint it has no hinted arm
            design_.reason = str(refusal)
    return designs


if __name__ == "__main__":
    text = Corpus(str(Path(__file__).parent / "corpus" / "sample.jsonl"), words=6000).draw()
    for message in design_messages(Slot("demo", "Logical Deduction", "", text), brief=False):
        print(f"[{message['role']}]\n{message['content']}\n")
