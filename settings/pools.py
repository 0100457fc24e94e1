"""A set of environments that nobody designs: from a folder of programs, or from a setting that brings its own.

What it teaches: the *baselines* differ from SPADE in nothing else. Whoever writes the next set, the loop of train.py
plays it and learns from it in the same way.

Try it:  python train.py --recipe fixed-grpo --pool runs/NAME/environments
"""
from dataclasses import replace
from functools import cache
from pathlib import Path

from laptop import pools as laptop_pools
from machinery import ranks
from machinery.documents import data_set, from_hub
from machinery.files import check_setting, load_environment, refusals
from machinery.records import Design, Environment, Order


@cache
def read_pool(where: str) -> list[Environment]:
    """All programs, read once: a pool may have thousands of them, and a new set may be due every rollout."""
    if from_hub(where):
        return [from_row(row, i) for i, row in enumerate(data_set(where))]
    return [load_environment(file) for file in sorted(Path(where).glob("*.py"))]


def from_row(row: dict, i: int) -> Environment:
    """An environment of a data set: the program is in its column `code` (or program, source, environment)."""
    texts = {name: value for name, value in row.items() if isinstance(value, str)}
    code = ""
    for name in ("environment", "source", "program", "code"):
        code = texts.get(name, code)
    return Environment(code, texts.get("hint", ""), texts.get("skill", ""), "games", "", f"row_{i:05d}")


def pool_of(args, setting, state) -> list[Environment]:
    if setting.given:
        return setting.given(args, state)
    if args.pool in laptop_pools.POOLS:
        return laptop_pools.POOLS[args.pool](args, state)
    return read_pool(args.pool)


CHECKED: dict[tuple[str, str], str] = {}   # (pool, name): why it cannot be played, or ""


def given_set(args, box, setting, state) -> list[Design]:
    """n_envs of the pool, drawn without replacement. Their windows show how hard they are; no one is paid for them."""
    pool = pool_of(args, setting, state)
    if not pool:
        raise SystemExit(f"--pool {args.pool} holds no .py files")
    check_setting(pool, setting, f"--pool {args.pool}")
    chosen = ranks.share(state.rng.sample(pool, min(args.n_envs, len(pool))), args.tensor_parallel)
    if not setting.given and args.pool not in laptop_pools.POOLS:   # else they are our own
        unknown = [e for e in chosen if (args.pool, e.name) not in CHECKED]
        for environment, reason in zip(unknown, refusals(box, setting, unknown)):
            CHECKED[args.pool, environment.name] = reason
    reasons = ranks.gather([CHECKED.get((args.pool, environment.name), "") for environment in chosen])
    if all(reasons):
        raise SystemExit(f"--pool {args.pool}: nothing of it can be played ({reasons[0]}). All its files are judged "
                         f"by: python sandbox.py --check {args.pool}/*.py")
    designs = []
    for environment in chosen:
        reason = CHECKED.get((args.pool, environment.name), "")
        # named by the rollout too: a later set must not overwrite what an earlier one showed
        named = replace(environment, name=f"{state.rollout:05d}_{environment.name}")
        order = Order(named.name, named.skill, named.skill, named.document)
        designs.append(Design(order, [], None, named.code, None if reason else named, reason))
    return designs
