r"""Held-out problems: mathematics, multiple choice, reasoning-gym, RLVE; and GEM's games.

What it teaches: a problem is a world of one turn. Nothing that a model wrote runs in this process: sealed
workers run programs (programs.py), and the packages' verifiers too, many of which `eval` an answer.
What it leaves out: partial credit.
"""
import dataclasses
import importlib.util
import json
import os
import random
import re
import sys
from pathlib import Path

import agent
from benchmarks import programs
from benchmarks.columns import Missing, question
from machinery.records import Environment
from machinery.textfiles import json_lines
from sandbox import SandboxedEnv
from settings import answers


def need(packages: str, install: str) -> None:
    if not all(map(importlib.util.find_spec, packages.split())):
        raise Missing(f"needs a package: pip install {install}")


def prelude(source: str, *folders) -> str:
    """Trusted source for the sandbox that may import what we can; one thread, since each reserves memory."""
    path = [str(folder) for folder in folders] + [os.path.abspath(entry) for entry in sys.path]
    return f"import os, sys\nos.environ['OPENBLAS_NUM_THREADS'] = '1'\nsys.path[:] = {path!r}\n" + source


def read(path: Path) -> list[dict]:
    """The objects of a file of JSON lines. One line that is none, and the suite is not played."""
    records = []
    try:
        for where, record, problem in json_lines(path):
            if problem:
                raise Missing(f"has a broken file: {where}: {problem}")
            records.append(record)
    except OSError as error:
        raise Missing(f"has a file that cannot be read: {path}: {error.strerror}") from None
    if not records:
        raise Missing(f"has an empty file: {path}")
    return records


def plain(observation, info, hint, brief):
    return [{"role": "user", "content": observation}], None


PLAIN = dataclasses.replace(agent.GAMES, agent_messages=plain)   # the prompt is the observation


def sealed(setting=PLAIN, **changes):
    """Worlds in the sandbox that are subclasses of what a prelude has defined."""
    return dataclasses.replace(setting, **{"open": lambda box, environment: SandboxedEnv(
        box, environment.code, timeout=60, checked=True)} | changes)


def item(base: str, category: str, name: str, /, **attributes) -> Environment:
    """Such a subclass, told from the others by its attributes."""
    code = "".join(f"    {key} = {value!r}\n" for key, value in attributes.items())
    return Environment(f"class ItemEnv({base}):\n{code}", "", category, base, "", name)


# --- questions in rows: a local file or the hub ---

HUB = {  # suite: (data set, configuration, split)
    "aime24": ("HuggingFaceH4/aime_2024", None, "train"), "aime25": ("MathArena/aime_2025", None, "train"),
    "aime26": ("MathArena/aime_2026", None, "train"), "math500": ("HuggingFaceH4/MATH-500", None, "test"),
    "gsm8k": ("openai/gsm8k", "main", "test"), "amc": ("math-ai/amc23", None, "test"),
    "minerva": ("math-ai/minervamath", None, "test"), "olympiad": ("math-ai/olympiadbench", None, "test"),
    "gpqa-diamond": ("Idavidrein/gpqa", "gpqa_diamond", "train"), "bbeh": ("BBEH/bbeh", None, "train"),
    "supergpqa": ("m-a-p/SuperGPQA", None, "train"), "mmlu-pro": ("TIGER-Lab/MMLU-Pro", None, "test"),
    "livecodebench": ("livecodebench/code_generation_lite/test6.jsonl", None, "train"),
}


def rows(name: str, data: str) -> list[dict]:
    """A suite's rows: DATA/name.jsonl, else from the hub."""
    path, (hub, configuration, split) = Path(data or ".") / f"{name}.jsonl", HUB[name]
    if path.exists():
        return read(path)
    try:
        from datasets import load_dataset
        if hub.endswith(".jsonl"):
            return list(load_dataset("json", data_files=f"hf://datasets/{hub}", split=split))
        return list(load_dataset(hub, configuration, split=split))
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0][:100]
        raise Missing(f"needs DIR/{name}.jsonl with --data DIR (a question and its answer in each line); or "
                      f"pip install datasets and a connection to {hub}. {reason}") from None


def is_right(box, row: dict, reply: str) -> bool:
    """The last box counts; of a program, the last block."""
    if row["kind"] == "program":
        return programs.is_right(box, row, reply)
    boxed = agent.last_boxed(agent.acted(reply)) or ""
    if row["kind"] == "bbeh":
        return bool(boxed) and plain_answer(boxed) == plain_answer(row["answer"])
    if row["kind"] == "mcq":
        boxed = answers.letter(boxed, row["options"])
    return answers.is_right(row["kind"], row["answer"], boxed)


def plain_answer(text: str) -> str | float:
    """For BBEH, as its evaluator compares: "(A)" is "a", "[x, y]" is "x,y", 5.0 is 5; quotes do not count."""
    text = re.sub(r"\\text\w*\{(.*)\}", r"\1", text.strip(" .?$")).lower().replace(", ", ",").replace("'", "")
    text = re.sub(r"^\((.)\)$|^\[(.*)\]$", r"\1\2", text)
    try:
        return float(text)
    except ValueError:
        return text


class Question:
    def __init__(self, box, environment: Environment):
        self.box, self.row = box, json.loads(environment.code)

    def reset(self, seed):
        return self.row["question"], {}

    def step(self, reply):
        return "", float(is_right(self.box, self.row, reply)), True, False, {}

    def close(self):
        pass


def questions(args, name: str):
    items, where = [], Path(args.data or ".") / f"{name}.jsonl"
    for i, row in enumerate(rows(name, args.data)):
        try:
            asked = question(name, row, random.Random(f"{args.seed} {name} {i}"))
        except Missing as fault:
            file = where if where.exists() else HUB[name][0]
            raise Missing(f"cannot be asked: {file}, row {i + 1}: {fault}") from None
        items.append(Environment(json.dumps(asked), "", "", name, "", f"{name}-{i:05d}"))
    return items, dataclasses.replace(PLAIN, open=Question, parse_action=str), prelude("import numpy\n"), 1


# --- packages of problems and games ---

LAZY = """
import numpy.random, sympy.assumptions.wrapper, sympy.codegen.ast, sympy.integrals.manualintegrate
import sympy.integrals.risch, sympy.physics.units, sympy.sets.setexpr, sympy.tensor.tensor
"""   # else imported on their first use, when a sealed worker cannot
REASONING_GYM = LAZY + '''
import importlib, pkgutil, pyfiglet, reasoning_gym
for module in pkgutil.walk_packages(reasoning_gym.__path__, "reasoning_gym."):
    if "contrib" not in module.name:
        importlib.import_module(module.name)
FONTS = {font: pyfiglet.FigletFont.preloadFont(font) for font in pyfiglet.FigletFont.getFonts()}
pyfiglet.FigletFont.preloadFont = FONTS.get
DATA = {name: reasoning_gym.create_dataset(name, size=8, seed=42, **hard) for name, hard in HARD.items()}
class Problem:
    def reset(self, seed):
        self.entry = DATA[self.name][self.index]
        return self.entry["question"] + ASK, {}
    def step(self, answer):
        score = DATA[self.name].score_answer(answer, self.entry) if answer else 0
        return f"reference: {self.entry['answer']}", float(score > 1 - 1e-9), True, False, {}
'''
RLVE = LAZY + '''
import types
sys.modules["torch"] = types.SimpleNamespace(manual_seed=id, cuda=types.SimpleNamespace(manual_seed_all=id))
import networkx, Gym.environment   # torch is only seeded there, and too large for a worker
Gym.environment.timeout = lambda seconds: lambda function: function   # it needs threads
from Gym.environments import identifier2environment
from Gym.parameter_controllers import identifier2controller
class Problem:
    def reset(self, seed):
        self.problem = identifier2environment[self.name]()
        if not self.problem.generator(seed, identifier2controller[self.name]().get_parameter_list()[0]):
            raise ValueError("no problem for this seed")
        return self.problem.prompt_generator() + ASK, {}
    def step(self, answer):
        right = bool(answer) and self.problem.verifier(f"<answer>{answer}</answer>")["accuracy"]
        return f"reference: {self.problem.parameter.get('reference_answer')}", float(right), True, False, {}
'''
GEM = '''
import importlib.resources, types
sys.modules["reasoning_gym"] = types.SimpleNamespace(factory=types.SimpleNamespace(DATASETS={}))
sys.modules["pyarrow"] = None   # the games need neither, and there is little memory
import gem
GAMES = {name: gem.make("game:" + name) for name in NAMES}   # now: some read files
class Game:
    def reset(self, seed):
        observation, info = GAMES[self.name].reset(seed)
        return f"{observation}\\n{info.get('suffix', '')}", {}
    def step(self, action):
        observation, _, over, _, info = GAMES[self.name].step(action)
        won = over and observation.startswith("Congratulations")   # a game that is lost may pay, too
        return f"{observation}\\n{info.get('suffix', '')}", float(won), over, False, {}
'''
ASK = "\n\nReason step by step, then put the final answer inside <answer></answer>."
OFFLINE = """GuessTheNumber Mastermind Minesweeper FifteenPuzzle Sudoku TowerofHanoi Game2048 Sokoban
    Crosswords""".split()   # the other three download a list of words


TAG = re.compile(r"<\s*(/?)\s*answer\s*>", re.I)
AROUND = [("$$", "$$"), ("$", "$"), ("**", "**"), ("`", "`"), (r"\(", r"\)"), (r"\[", r"\]")]


def tagged(reply: str) -> str:
    """What the last <answer> that is not empty holds, else the last box. One that never ends is no answer, and what was
    said before it no longer is one.
    """
    said = agent.acted(reply)
    found, start = [], None
    for tag in TAG.finditer(said):
        if tag[1] and start is not None:
            found.append(undressed(said[start:tag.start()]))
        start = None if tag[1] else tag.end()
    if start is not None and said[start:].strip():
        return ""
    return next(filter(None, reversed(found)), "") or agent.last_boxed(said) or ""


def undressed(answer: str) -> str:
    """Without a box, dollars or emphasis around it."""
    before = None
    while answer != before:
        before, boxed = answer, agent.last_boxed(answer)
        answer = (answer if boxed is None else boxed).strip()
        for opening, closing in AROUND:
            inner = answer[len(opening):-len(closing)]
            if answer == opening + inner + closing and opening not in inner:
                answer = inner.strip()
    return answer


def reasoning_gym(args):
    need("reasoning_gym", "reasoning-gym")
    hard = json.loads(Path(__file__).with_name("reasoning_gym_hard.json").read_text())
    items = [item("Problem", category, f"{name} {i}", name=name, index=i) for i in range(8)
             for category, sets in hard.items() for name in sets]
    every = {name: settings for sets in hard.values() for name, settings in sets.items()}
    return items, sealed(parse_action=tagged), prelude(f"HARD, ASK = {every!r}, {ASK!r}\n{REASONING_GYM}"), 1


def rlve(args):
    need("Gym networkx sympy", "rlve-gym networkx sympy")
    source = Path(importlib.util.find_spec("Gym.environments").origin).read_text()
    names = re.findall(r'"(\w+)" : \w+_Environment', source)
    items = [item("Problem", "rlve", name, name=name) for name in names]
    return items, sealed(parse_action=tagged), prelude(f"ASK = {ASK!r}\n{RLVE}"), 1


def gem(args):
    need("gem pandas", "pandas; pip install --no-deps gem-llm")
    names = [f"{game}-v0-{level}" for game in OFFLINE for level in ("easy", "hard")]
    items = [item("Game", name.rpartition("-")[2], name, name=name) for name in names]
    return items, sealed(), prelude(f"NAMES = {names!r}\n{GEM}"), 100
