"""The suites of evaluate.py by name: what makes the items, and how the papers sample them.

To add one: a function that returns (items, setting, prelude of the sandbox, most turns), and a line here.
"""
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import agents, heldout, problems


@dataclass(frozen=True)
class Suite:
    make: Callable              # (args) -> (items, setting, prelude, most turns); raises problems.Missing
    samples: int                # of each item
    temperature: float
    top_p: float = 1.0
    top_k: int = 0              # 1 is greedy, 0 is off
    max_tokens: int = 8192      # per reply
    as_trained: bool = False    # sampled as in training; and its programs were written by a model


def questions(name: str, samples: int, **sampling) -> Suite:
    return Suite(partial(problems.questions, name=name), samples, **sampling)


GREEDY = dict(temperature=1.0, top_k=1)   # where the papers tell no sampling
REASONING = dict(temperature=0.6, top_p=0.8, top_k=20)
SUITES = {
    "heldout": Suite(heldout.suite, 16, 0.6, as_trained=True),
    "reasoning-gym": Suite(problems.reasoning_gym, 1, **REASONING),
    "rlve": Suite(problems.rlve, 1, **REASONING),
    "gem": Suite(problems.gem, 10, **REASONING),
    "bfcl-multi-turn": Suite(agents.bfcl, 1, **GREEDY),
    "acebench-agent": Suite(agents.acebench, 1, 0.7, max_tokens=16384),
    "tau2": Suite(agents.tau2, 4, **GREEDY),
    "gpqa-diamond": questions("gpqa-diamond", 8, temperature=0.7, top_p=0.95, max_tokens=32768),
    "livecodebench": questions("livecodebench", 1, temperature=0.2, top_p=0.95, max_tokens=16384),
}
for year in ("aime24", "aime25", "aime26"):
    SUITES[year] = questions(year, 64, temperature=1.0, top_p=0.95, top_k=20, max_tokens=32768)
for name in "math500 gsm8k amc minerva olympiad supergpqa mmlu-pro bbeh".split():
    SUITES[name] = questions(name, 1, **GREEDY)
