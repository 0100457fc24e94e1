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
from machinery.files import load_environment
from machinery.records import Design, Environment, Order


@cache
def read_pool(folder: str) -> list[Environment]:
    """The folder's programs, read once: a pool may have thousands of files, and a new set may be due every rollout."""
    return [load_environment(f) for f in sorted(Path(folder).glob("*.py"))]


def pool_of(args, setting, state) -> list[Environment]:
    if setting.given:
        return setting.given(args, state)
    if args.pool in laptop_pools.POOLS:
        return laptop_pools.POOLS[args.pool](args, state)
    return read_pool(args.pool)


def given_set(args, setting, state) -> list[Design]:
    """n_envs of the pool, drawn without replacement. Their windows show how hard they are; no one is paid for them."""
    pool = pool_of(args, setting, state)
    if not pool:
        raise SystemExit(f"--pool {args.pool} holds no .py files")
    for environment in pool:
        if environment.setting != setting.name:
            raise SystemExit(f"--pool {args.pool} was not made for --setting {setting.name}: {environment.name}")
    chosen = ranks.share(state.rng.sample(pool, min(args.n_envs, len(pool))), args.tensor_parallel)
    # named by the rollout too: a later set must not overwrite what an earlier one showed
    named = [replace(e, name=f"{state.rollout:05d}_{e.name}") for e in chosen]
    return [Design(Order(e.name, e.skill, e.skill, e.document), [], None, e.code, e) for e in named]
