"""What a Designer earns for an environment: hint regret, and its rivals.

What it teaches: the curriculum of self-play is one number per environment. SPADE pays the Designer for what the Agent
can do with a hint but not yet without it; its relatives pay for other functions of the Agent's returns. All are here
side by side, as pure functions.
What it leaves out: centring (grpo.py), plays (agent.py), and the terms of weight 0 in the reference code's blend.
Papers: SPADE arXiv 2608.19197, SPICE 2510.24684, AZR (Absolute Zero) 2505.03335, R-Zero 2508.05004.

Try it:  python regret.py       # every reward for an environment that the Agent solves 0, 1, ... 8 of 8 times
"""
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean, pvariance

HUNG = -0.5     # a call never came back; the penalty in the `regret_based` variant of SPADE's reference code
INVALID = -0.1  # the code fails validate(); rho of SPICE Eq. 1. Paid, since what is dropped is never unlearnt
CRASHED = -1.0  # a play that the program broke, as in SPADE's reference code; here it counts in the program's window
#                 only, and the Agent does not learn from it
GAIN_FAST, GAIN_SLOW = 0.98, 0.85  # weights of the new value in SPADE's learning-potential ablation


@dataclass
class Window:
    """All plays of one environment, for as long as its set lives. A return is in [-1, 1]; of a broken play CRASHED."""
    skill: str
    hinted: list[float] = field(default_factory=list)            # returns with the hint; none where there is no hint
    by_rollout: list[list[float]] = field(default_factory=list)  # without it; by_rollout[0] has the hinted arm's seeds
    hung: bool = False                                           # a call never came back: it is not played again
    crashed: list[int] = field(default_factory=list)   # how many returns in by_rollout[i] are CRASHED

    @property
    def first(self) -> list[float]:
        """What regret compares with the hinted arm: the unhinted plays on its seeds, without those that the program
        broke. It must not gain by breaking where there is no hint; where it breaks with one, its regret sinks.
        """
        return self.ended().by_rollout[0] if self.by_rollout else []

    @property
    def unhinted(self) -> list[float]:
        return [ret for rollout in self.by_rollout for ret in rollout]

    def ended(self) -> "Window":
        """The same, of the plays without hint that came to an end."""
        by_rollout = [list(rollout) for rollout in self.by_rollout]
        for rollout, crashed in zip(by_rollout, self.crashed):
            for _ in range(crashed):
                rollout.remove(CRASHED)
        return replace(self, by_rollout=by_rollout, crashed=[])


def mean(returns: list[float]) -> float:
    """0 for an environment that nobody played, as in SPADE's reference code: unseen counts as unsolved."""
    return fmean(returns) if returns else 0.0


def solved_share(returns: list[float]) -> float:
    """p = share of plays with return > 0. Not the mean return: 0.5 in every play is no coin flip."""
    return mean([float(ret > 0) for ret in returns])


# --- SPADE: the reward, the deployed blend, the ablations ---

def hint_regret(hinted: list[float], unhinted: list[float]) -> float:
    """r_D(e) = mean return with hint - mean return without; signed; 0 if an arm has no plays (SPADE Eq. 3).
    High: solvable, but only with the hint. 0: mastered (both arms 1) or broken (both 0), so log both arms."""
    return mean(hinted) - mean(unhinted) if hinted and unhinted else 0.0


BAND = (0.4, 0.6)   # mean returns that are just right; SPADE's 4B run moves to (0.2, 0.4) later: --band


def plateau(mean_return: float, low: float = BAND[0], high: float = BAND[1], ramp: float = 0.25) -> float:
    """1 for mean returns in [low, high], linearly down to 0 within `ramp` on both sides (SPADE section 4.1).
    The paper says win rate; its code gives the mean return, and so do we: a game that always pays 0.5 passes for a
    coin flip."""
    outside = max(low - mean_return, mean_return - high)   # how far; negative inside the band
    return max(0.0, 1.0 - max(outside, 0.0) / ramp)


def blend(hinted: list[float], first: list[float], window: list[float], regret_weight: float = 0.4,
          plateau_weight: float = 0.6, regret_scale: float = 0.15, band: tuple[float, float] = BAND) -> float:
    """0.4 clip(regret / 0.15, 0, 1) + 0.6 plateau(mean of the window) (SPADE section 4.1, as deployed)."""
    # `first`, not `window`: against later rollouts regret would sink just because the Agent learns
    gain = hint_regret(hinted, first) / regret_scale
    regret = min(max(gain, 0.0), 1.0)
    return regret_weight * regret + plateau_weight * plateau(mean(window), *band)


def micro_lp(by_rollout: list[list[float]]) -> float:
    """max(0, mean of the late half of the rollouts - mean of the early half) (SPADE's code, in no paper)."""
    half = len(by_rollout) // 2   # of an odd number the middle one is late; of one rollout nothing is early
    early = [ret for rollout in by_rollout[:half] for ret in rollout]
    late = [ret for rollout in by_rollout[half:] for ret in rollout]
    return max(0.0, mean(late) - mean(early)) if early and late else 0.0


class LearningPotential:
    """rho(e) = |mean return of e - mu_slow(skill)|, mu <- (1 - gain) mu + gain r (SPADE's LP ablation).
    The only reward with a memory: two averages per skill. Always solved and never solved earn alike."""

    def __init__(self) -> None:
        self.fast: dict[str, float] = {}
        self.slow: dict[str, float] = {}

    def update(self, skill: str, ret: float) -> None:
        for mu, gain in ((self.fast, GAIN_FAST), (self.slow, GAIN_SLOW)):
            mu[skill] = (1 - gain) * mu[skill] + gain * ret if skill in mu else ret

    def deviation(self, skill: str, ret: float) -> float:
        return abs(ret - self.slow.get(skill, 0.0))

    def potential(self, skill: str) -> float:
        """|mu_fast - mu_slow| / (2 (0.98 - 0.85)): how fast the skill moves. Logged, never paid."""
        return abs(self.fast.get(skill, 0.0) - self.slow.get(skill, 0.0)) / (2 * (GAIN_FAST - GAIN_SLOW))

    def state_dict(self) -> dict[str, dict[str, float]]:
        return {"fast": dict(self.fast), "slow": dict(self.slow)}

    def load_state_dict(self, state: dict[str, dict[str, float]]) -> None:
        self.fast, self.slow = dict(state["fast"]), dict(state["slow"])


# --- the rivals ---

def variance_reward(returns: list[float]) -> float:
    """exp(-(Var - 0.25)^2 / (2 x 0.01)), population variance of returns 0 and 1 (SPICE Eq. 1).
    0.25 is a fair coin's variance: 4 of 8 -> 1, 2 of 8 -> 0.823, 0 of 8 -> 0.044."""
    if len(returns) < 2:
        raise ValueError("the variance reward needs at least 2 plays per environment: raise --plays")
    return math.exp(-(pvariance(returns) - 0.25) ** 2 / (2 * 0.01))


def absolute_zero(p: float) -> float:
    """1 - p, the harder the better, but 0 for p in {0, 1} (AZR Eq. 4)."""
    return 0.0 if p in (0.0, 1.0) else 1.0 - p


def threshold(p: float) -> float:
    """1 if 0 < p < 1 else 0: neither mastered nor hopeless (a baseline in SPICE's comparison, Fig. 7)."""
    return float(0.0 < p < 1.0)


def r_zero(p: float) -> float:
    """1 - 2 |p - 1/2|, a tent over the coin flip (R-Zero's uncertainty reward; its p: `majority_label`)."""
    return 1.0 - 2.0 * abs(p - 0.5)


def majority_label(answers: list[str]) -> tuple[str, float]:
    """(most frequent answer, its share of all answers): R-Zero's stand-in for a ground truth.

    Of equals the first seen wins. A confident error looks like the truth: SPICE's reason to ground questions.
    """
    votes = Counter(answer.strip() for answer in answers if answer.strip())  # empty ones count in the share
    label, count = votes.most_common(1)[0] if votes else ("", 0)
    return label, count / max(len(answers), 1)


# --- what --designer-reward chooses from ---

@dataclass(frozen=True)
class Reward:
    """Call it with a Window: {"reward": what is paid, other keys: parts to log}.

    `needs_hint`: without hinted plays it says nothing. `takes`: what else `parts` wants to be told of the run, any of
    "averages" (LearningPotential) and "band". A fork adds one line:
        DESIGNER_REWARDS["hinted"] = Reward(lambda w: {"reward": mean(w.hinted)}, needs_hint=True)
    """
    parts: Callable[..., dict[str, float]]
    needs_hint: bool = False
    takes: tuple[str, ...] = ()

    def __call__(self, window: Window, **known) -> dict[str, float]:
        return self.parts(window, **{name: known[name] for name in self.takes if name in known})


def blend_parts(w: Window, band: tuple[float, float] = BAND) -> dict[str, float]:
    return {"reward": blend(w.hinted, w.first, w.unhinted, band=band),
            "regret": hint_regret(w.hinted, w.first), "plateau": plateau(mean(w.unhinted), *band)}


def regret_parts(w: Window) -> dict[str, float]:
    regret = hint_regret(w.hinted, w.first)   # Eq. 3 over all plays of the rollout in which the set was new
    return {"reward": max(0.0, regret), "regret": regret}   # floored: SPADE Algorithm 1


def band_parts(w: Window, band: tuple[float, float] = BAND) -> dict[str, float]:
    return {"reward": plateau(mean(w.unhinted), *band)}   # the blend without its regret


def variance_parts(w: Window) -> dict[str, float]:
    return {"reward": variance_reward(w.unhinted) if len(w.unhinted) > 1 else 0.0}   # of one play nothing varies


def potential_parts(w: Window, averages: LearningPotential) -> dict[str, float]:
    return {"reward": averages.deviation(w.skill, mean(w.unhinted)) if w.unhinted else 0.0,
            "mu_slow": averages.slow.get(w.skill, 0.0), "potential": averages.potential(w.skill)}


DESIGNER_REWARDS: dict[str, Reward] = {
    "blend": Reward(blend_parts, needs_hint=True, takes=("band",)),
    "regret": Reward(regret_parts, needs_hint=True),
    "solve-rate": Reward(band_parts, takes=("band",)),
    "learning-potential": Reward(potential_parts, takes=("averages",)),
    "micro-lp": Reward(lambda w: {"reward": micro_lp(w.by_rollout)}),
    "variance": Reward(variance_parts),
    "absolute-zero": Reward(lambda w: {"reward": absolute_zero(solved_share(w.unhinted))}),
    "threshold": Reward(lambda w: {"reward": threshold(solved_share(w.unhinted))}),
    "r-zero": Reward(lambda w: {"reward": r_zero(solved_share(w.unhinted))}),
}


def designer_rewards(name: str, windows: list[Window], averages: LearningPotential | None = None,
                     band: tuple[float, float] = BAND) -> list[dict]:
    """Rewards of one set's environments, in order. Call it once, with all its windows: learning
    potential moves a skill's averages by the mean over all plays of the skill that came to an end, and only then reads
    them. Crashes never pay: half of the plays won and half broken is no coin flip, whatever the mean says.
    """
    reward = DESIGNER_REWARDS[name]
    if "averages" in reward.takes:
        if averages is None:
            raise ValueError(f"{name} needs the run's LearningPotential: pass it in")
        for skill in dict.fromkeys(window.skill for window in windows):
            returns = [ret for window in windows if window.skill == skill for ret in window.ended().unhinted]
            if returns:
                averages.update(skill, mean(returns))
    rewards = []
    for window in windows:
        parts = reward(window, averages=averages, band=band)
        if sum(window.crashed):
            without_crashes = reward(window.ended(), averages=averages, band=band)
            parts["reward"] = min(parts["reward"], without_crashes["reward"])
        rewards.append(parts)
    return rewards


# --- what a program earns that was refused: by default INVALID, whatever is wrong with it ---

STAGES = (  # how far it came: the words that a reason starts with, see sandbox.Verdict
    "empty unfinished syntax json", "import class load timeout crash type fields",
    "reset tools count predicate question",
    "step protocol reward answer options", "determinism state", "junk done order", "solution judge duplicate")


def refusal(price: str, reason: str) -> float:
    """What --invalid-reward says: a number, or "staged"."""
    return staged_reward(reason) if price == "staged" else float(price)


def staged_reward(reason: str) -> float:
    """From INVALID for a reply that is no program, in equal steps to just below 0, which the worst valid one earns.

    Not in the papers (--invalid-reward staged): with every program refused at the same price there is no gradient.
    Example: "syntax: ..." -> -0.1, "solution: ..." -> -0.1 / 7.
    """
    word = reason.split(":")[0].split(" ")[0]
    stage = next((i for i, words in enumerate(STAGES) if word in words.split()), 0)
    return INVALID * (1 - stage / len(STAGES))


def main() -> None:
    print("Reward of an environment that the Agent solves k times out of 8 in each of 4 rollouts; the hint\n"
          "wins half of the plays that are lost without it; the rows are one skill, so mu_slow is 0.5.\n")
    windows = [Window("any", [1.0] * (8 + k) + [0.0] * (8 - k), [[1.0] * k + [0.0] * (8 - k)] * 4)
               for k in range(9)]
    columns = {name: designer_rewards(name, windows, LearningPotential()) for name in DESIGNER_REWARDS}
    print("k of 8", "hinted", *columns, sep="  ")
    for k, window in enumerate(windows):
        cells = [f"{rewards[k]['reward']:{len(name)}.3f}" for name, rewards in columns.items()]
        print(f"{k:6d}", f"{mean(window.hinted):6.3f}", *cells, sep="  ")


if __name__ == "__main__":
    main()
