"""Where a set of environments comes from: the Designer, a folder, RLVE's generators, or an oracle.

A file of its own because the *baselines* differ from SPADE in nothing else: whoever writes the next set, the loop of
train.py plays it and learns from it in the same way. SPADE: n_envs programs by the model that learns, for three of
six skills in turn, each from a fresh document and a few memories (section 3).

What it leaves out: keeping good environments longer than k rollouts; SPADE throws every set away.
"""
import hashlib
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from designer import Design, Environment, Slot, design, refuse_copies
from laptop import ladders
from machinery import ranks, source
from machinery.endpoint import Endpoint, Unreachable
from machinery.files import load_environment
from machinery.policy import Policy, resolve, use_vllm
from machinery.recipes import Args
from machinery.run import State
from settings import rlve, spice


def seed_of(*parts) -> int:
    """A seed in [0, 2^31) from a digest: Python's hash() differs from process to process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") >> 1


def in_turn(args: Args, state: State, skills: list[str], i: int) -> str:
    """The skill of slot i: `skills_per_set` of them are active, and the next set goes on behind them."""
    first = state.rollout // args.k * args.skills_per_set
    return skills[(first + i % args.skills_per_set) % len(skills)]


def order_environments(args: Args, setting, state: State) -> list[Slot]:
    """The orders of one regeneration: the active skills in turn, a fresh document each, remembered examples.
    Of questions eight share a document, and with it their baseline.

    Every rank draws all of them, so that corpus and memory stay the same everywhere, and keeps its share.
    """
    skills = [s.strip() for s in args.skills.split(",")] if args.skills else list(setting.skills)
    for skill in set(skills) - set(setting.skills):
        raise SystemExit(f"unknown skill '{skill}': the setting {setting.name} has {', '.join(setting.skills)}")
    slots = []
    for i in range(args.n_envs):
        skill = in_turn(args, state, skills, i)
        good, bad = [], []
        if state.rng.random() < args.memory_share:
            good, bad = state.memory.examples(skill, state.rng)
        name = f"{state.rollout:05d}_{i:03d}_{skill.lower().replace(' ', '_')}"
        together = spice.QUESTIONS if args.setting == "corpus" else 1
        if i % together == 0:
            document = state.corpus.draw() if state.corpus else ""
        group = f"document {i // together}" if together > 1 else skill
        slots.append(Slot(name, skill, group, document, good, bad))
    return ranks.share(slots, args.tensor_parallel)


@cache
def laptop_pool() -> list[Environment]:
    """What the laptop model's Designer writes before it learns: ladders that are too easy or hopeless."""
    rng, texts, pool = random.Random("pool"), ladders.sample_texts(), []
    for i in range(96):
        skill, c = list(ladders.TEMPLATES)[i % 6], rng.randint(1, 3)
        code = ladders.program(skill, ladders.topic(rng.choice(texts)), rng.choice([1, 2, 7, 8]), c)
        pool.append(Environment(code, ladders.hint(skill, c), skill, "games", "", f"pool_{i:03d}"))
    return pool


def oracle(args: Args, state: State) -> list[Environment]:
    """The ceiling of the laptop world: it knows the ladders, and gives each skill the two rungs above the highest that
    was last solved at least 80 % of the time.
    """
    pool = []
    for i in range(args.n_envs):
        skill, c = in_turn(args, state, list(ladders.TEMPLATES), i), state.rng.randint(1, 3)
        rate = {source.rung(r["code"]): r["win_rate"] for r in state.memory.records if r["skill"] == skill}
        frontier = min(max([n + 1 for n in rate if rate[n] >= 0.8], default=min(rate, default=1)), 7)
        word = ladders.topic(state.rng.choice(ladders.sample_texts()))
        code = ladders.program(skill, word, frontier + i // args.skills_per_set % 2, c)
        pool.append(Environment(code, ladders.hint(skill, c), skill, "games", "", f"{i:03d}_oracle"))
    return pool


@cache
def read_pool(folder: str) -> list[Environment]:
    """The folder's programs, read once: a pool may have thousands of files, and a new set may be due every rollout."""
    return [load_environment(f) for f in sorted(Path(folder).glob("*.py"))]


def fixed_environments(args: Args, setting, state: State) -> list[Design]:
    """A set from --pool or from RLVE's generators instead of designed: nothing to train the Designer on."""
    if args.setting == "rlve":
        # rank 0's: a generator has a time limit, so another machine may draw otherwise
        rng = random.Random(seed_of(args.seed, "rlve", state.rollout))
        pool = ranks.gather([rlve.draw(args.n_envs, state.levels, rng, f"{state.rollout:05d}")])[0]
    elif args.pool == "tiny":
        pool = laptop_pool()
    elif args.pool == "tiny-oracle":
        pool = oracle(args, state)
    else:
        pool = read_pool(args.pool)
    others = [e.name for e in pool if e.setting != setting.name]
    if others or not pool:
        raise SystemExit(f"--pool {args.pool} " + (f"was not made for --setting {setting.name}: {others[0]}"
                                                   if others else "holds no .py files"))
    chosen = ranks.share(state.rng.sample(pool, min(args.n_envs, len(pool))), args.tensor_parallel)
    # named by the rollout too: a later set must not overwrite what an earlier one showed
    chosen = [replace(e, name=f"{state.rollout:05d}_{e.name}") for e in chosen]
    return [Design(Slot(e.name, e.skill, e.skill, e.document), [], None, e.code, e) for e in chosen]


def frozen_designer(where: str, **options) -> Endpoint | Policy:
    """Another model in the Designer's place, which does not learn: must the Designer be the model that learns?

    URL#NAME is a server; anything else a model that is loaded here, of which only the sampler is kept.
    """
    if where.startswith(("http://", "https://")):
        return Endpoint(where)
    if torch.cuda.is_available() and use_vllm(options["engine"], True):
        raise SystemExit(f"a GPU that learns has no room for a second vLLM: `vllm serve {resolve(where)}` "
                         f"elsewhere and give --designer-model http://HOST:8000/v1#{resolve(where)}")
    return Policy(where, learns=False, **options)


def new_environments(args: Args, run, policy: Policy, designer, box, setting, state: State) -> list[Design]:
    """The next set. A frozen Designer that cannot be reached ends the run, with the state saved as it was."""
    if args.pool or args.setting == "rlve":
        return fixed_environments(args, setting, state)
    designs, problem = [], ""
    if args.designer_model:
        before = state.as_json(policy)
        designer.rng.seed(seed_of(args.seed, state.rollout, ranks.rank()))   # so that it needs no saving
    try:
        designs = design(designer, box, setting, order_environments(args, setting, state), brief=args.brief,
                         max_tokens=args.design_tokens, context=args.context, hint_tokens=args.hint_tokens,
                         temperature=args.temperature, hint_temperature=args.hint_temperature)
    except Unreachable as error:
        problem = str(error)
    problem = next(filter(None, ranks.gather([problem])), "")
    if problem:
        if (run.folder / "checkpoint").resolve().name != f"checkpoint-{state.rollout}":
            run.save(policy, before, state.rollout)   # says so if it fails
        raise SystemExit(f"the Designer is out of reach: {problem}. Go on with: python train.py --resume {run.folder}")
    if ranks.world_size() > 1 and not setting.repeats:   # one rank's own are already refused by design()
        refuse_copies(designs, ranks.gather)
    return designs
