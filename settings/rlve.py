"""The fixed-RLVE baseline: 16 problem generators that people wrote, with a difficulty that follows the Agent.

What it teaches: the strongest rival of designed environments. A problem has one turn and a verifier. Once 128
attempts at a generator's top level were 90 % right the level rises; problems come from the last four levels.
None of these 16 verifiers evaluates text, so they judge in this process (others do: benchmarks/problems.py seals them).
What it leaves out: the other 384 generators of RLVE.

Try it:  pip install rlve-gym networkx;  python train.py --recipe fixed-rlve --model Qwen3-4B
"""
import functools
import json
import random
import threading

from agent import last_boxed
from machinery import ranks
from machinery.records import Environment
from machinery.seeds import seed_of
from settings.setting import Setting
from settings.spice import CORPUS

GENERATORS = """Division EuclidGame GCDOne_Counting HamiltonianPath LampChanging LargestConvexPolygon
    Multiplication PCPPermutation Path_NoGoingBack_Counting SAT ShortestPath Sorting SpiralMatrix
    SubsequenceReversalLNDS UndamagedSubmatrixCounting WYRLevelingGround""".split()
WINDOW, ATTEMPTS, ACCURACY = 4, 128, 0.9   # levels drawn from; attempts at the top one, and the share right to rise
LOCK = threading.Lock()   # the package seeds the global generators


@functools.lru_cache(maxsize=4096)
def generate(code: str):
    """The package's problem object, or None where its generator fails."""
    from Gym.environments import identifier2environment
    facts = json.loads(code)
    problem = identifier2environment[facts["generator"]]()
    with LOCK:
        return problem if problem.generator(seed=facts["seed"], parameter=facts["parameter"]) else None


def draw(n: int, levels: dict, rng: random.Random, prefix: str) -> list[Environment]:
    """n problems. `levels`: generator -> [top level, attempts there, right ones]; what a run must save."""
    try:
        from Gym.parameter_controllers import identifier2controller
    except ImportError as error:
        raise SystemExit(f"{error}; --setting rlve needs: pip install rlve-gym networkx") from None
    problems = []
    while len(problems) < n:
        generator = rng.choice(GENERATORS)
        top, _, _ = levels.setdefault(generator, [0, 0, 0])
        lowest = max(0, top - WINDOW + 1)
        level = rng.randint(lowest, top)
        controller = identifier2controller[generator]()
        for _ in range(level):
            controller.update()
        code = json.dumps({"generator": generator, "level": level, "seed": rng.randrange(2**31),
                           "parameter": rng.choice(controller.get_parameter_list())})
        name = f"{prefix}_{len(problems):03d}_{generator.lower()}"
        if generate(code):
            problems.append(Environment(code, "", generator, "rlve", "", name))
    return problems


def note(levels: dict, results: list[tuple[str, float]]) -> None:
    """Counts (code, return) of finished plays at the top levels; a return of 1 is a right answer."""
    for code, ret in results:
        facts = json.loads(code)
        generator = facts["generator"]
        top, attempts, right = levels.setdefault(generator, [0, 0, 0])
        if facts["level"] == top:
            is_right = ret > 1 - 1e-6
            levels[generator] = [top, attempts + 1, right + 1 if is_right else right]
    for generator, (top, attempts, right) in levels.items():
        if attempts >= ATTEMPTS:
            mastered = right / attempts >= ACCURACY
            levels[generator] = [top + 1 if mastered else top, 0, 0]


class Problem:
    """One problem as an environment of one turn. All its plays share the instance, whatever their seed."""

    def __init__(self, environment: Environment):
        self.problem = generate(environment.code)

    def reset(self, seed: int) -> tuple[str, dict]:
        return self.problem.prompt_generator(), {"type": "problem"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        answer = last_boxed(action) or ""
        reward = self.problem.verifier(f"<answer>{answer}</answer>")["reward"]
        return "", float(reward), True, False, {}

    def close(self) -> None:
        pass


def given(args, state) -> list[Environment]:
    """The next set. Rank 0's: a generator has a time limit, so another machine may draw otherwise."""
    rng = random.Random(seed_of(args.seed, "rlve", state.rollout))
    return ranks.gather([draw(args.n_envs, state.levels, rng, f"{state.rollout:05d}")])[0]


def after_plays(args, state, plays: list) -> None:
    note(state.levels, ranks.gather([(e.environment.code, e.ret) for e in plays]))


RLVE = Setting(   # played like questions, but nobody writes them
    name="rlve", skills=dict.fromkeys(GENERATORS, ""), design_messages=None, parse_design=None, validate=None,
    hint_messages=None, open=lambda box, environment: Problem(environment), agent_messages=CORPUS.agent_messages,
    observation_messages=CORPUS.observation_messages, parse_action=CORPUS.parse_action, given=given,
    after_plays=after_plays)
