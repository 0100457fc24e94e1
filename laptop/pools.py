"""Environments for the laptop model that no Designer wrote: a fixed pool, and an oracle that knows the ladders.

What they are for: the fixed pool is the baseline that does not adapt, the oracle the ceiling. If not even the oracle
beats a frozen Designer, comparing Designers means nothing (study/ablations.py).
"""
import random
from functools import cache

from designer import skill_in_turn
from laptop import ladders
from machinery import source
from machinery.records import Environment


@cache
def untaught() -> list[Environment]:
    """What the laptop model's Designer writes before it learns: ladders that are too easy or hopeless."""
    rng, texts, pool = random.Random("pool"), ladders.sample_texts(), []
    for i in range(96):
        skill, c = list(ladders.TEMPLATES)[i % 6], rng.randint(1, 3)
        code = ladders.program(skill, ladders.topic(rng.choice(texts)), rng.choice([1, 2, 7, 8]), c)
        pool.append(Environment(code, ladders.hint(skill, c), skill, "games", "", f"pool_{i:03d}"))
    return pool


def oracle(args, state) -> list[Environment]:
    """It gives each skill the two rungs above the highest that was last solved at least 80 % of the time."""
    pool = []
    for i in range(args.n_envs):
        skill, c = skill_in_turn(list(ladders.TEMPLATES), i, args, state.rollout), state.rng.randint(1, 3)
        next_rung = frontier(state.memory.records, skill)
        word = ladders.topic(state.rng.choice(ladders.sample_texts()))
        code = ladders.program(skill, word, next_rung + i // args.skills_per_set % 2, c)
        pool.append(Environment(code, ladders.hint(skill, c), skill, "games", "", f"{i:03d}_oracle"))
    return pool


def frontier(records: list, skill: str) -> int:
    """The rung above the highest mastered one, at most 7; the lowest rung seen where none is mastered yet."""
    rate = {source.rung(r.code): r.win_rate for r in records if r.skill == skill}
    mastered = [rung for rung in rate if rate[rung] >= 0.8]
    if mastered:
        return min(max(mastered) + 1, 7)
    return min(min(rate), 7) if rate else 1


POOLS = {"tiny": lambda args, state: untaught(), "tiny-oracle": oracle}   # what --pool takes besides a folder
