"""What a Designer earns for an environment: hint regret, and its rivals.

Teaches: the curriculum of self-play in generated environments is one number per environment. SPADE pays
the Designer for what the Agent can do with a hint but not yet without it; its relatives pay for other
functions of the Agent's returns. All are here side by side, as pure functions.
Leaves out: the centring per skill (grpo.py), the plays that give the returns (agent.py), and two terms of the
reference code that have weight 0 in the deployed blend (a frontier penalty, micro-LP as a fitted slope).

Try it:  python regret.py       # every reward for an environment that the Agent solves 0, 1, ... 8 of 8 times

Papers: SPADE arXiv 2608.19197, SPICE 2510.24684, AZR (Absolute Zero) 2505.03335, R-Zero 2508.05004.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, pvariance

HUNG = -0.5     # step() never came back; the penalty in the `regret_based` variant of SPADE's reference code
INVALID = -0.1  # the code fails validate(); rho of SPICE Eq. 1. Paid, since what is dropped is never unlearnt
GAIN_FAST, GAIN_SLOW = 0.98, 0.85  # weights of the new value in SPADE's learning-potential ablation


@dataclass
class Window:
    """All plays of one environment between two regenerations. A return is in [-1, 1]."""

    skill: str
    hinted: list[float]            # returns with the hint; may be empty
    by_rollout: list[list[float]]  # returns without it, per rollout; by_rollout[0] has the hinted arm's seeds

    @property
    def first(self) -> list[float]:
        return self.by_rollout[0] if self.by_rollout else []

    @property
    def unhinted(self) -> list[float]:
        return [ret for rollout in self.by_rollout for ret in rollout]


def mean(returns: list[float]) -> float:
    """0 for an environment that nobody played, as in SPADE's reference code: unseen counts as unsolved."""
    return fmean(returns) if returns else 0.0


def solved_share(returns: list[float]) -> float:
    """p = share of plays with return > 0, for the formulas that were written for right-or-wrong answers.

    The mean return is no probability: with -1 for a loss "half won" has mean 0, and 0.5 in every play would
    look like a coin flip although all plays are alike. For returns of 0 and 1 the two are the same number.
    """
    return mean([float(ret > 0) for ret in returns])


# --- SPADE: the reward, the deployed blend, the ablations ---


def hint_regret(hinted: list[float], unhinted: list[float]) -> float:
    """r_D(e) = mean return with hint - mean return without; signed (SPADE Eq. 3).

    High: solvable, but only with the hint. 0 is either mastered (both arms 1) or broken (both arms 0), so
    always log both arms. If one arm has no plays there is no evidence of a gap: 0.
    """
    return mean(hinted) - mean(unhinted) if hinted and unhinted else 0.0


def plateau(win_rate: float, low: float = 0.4, high: float = 0.6, ramp: float = 0.25) -> float:
    """1 for win rates in [low, high], linearly down to 0 within `ramp` on both sides (SPADE section 4.1)."""
    return max(0.0, 1.0 - max(low - win_rate, win_rate - high, 0.0) / ramp)


def blend(hinted: list[float], first: list[float], window: list[float],
          regret_weight: float = 0.4, plateau_weight: float = 0.6, regret_scale: float = 0.15) -> float:
    """0.4 clip(regret / 0.15, 0, 1) + 0.6 plateau(mean of the window) (SPADE section 4.1, as deployed).

    Regret compares the hinted arm with the `first` rollout only, which the same weights played: against the
    whole window it would sink just because the Agent learns. The win rate is a mean return, so -1 counts.
    """
    regret = min(max(hint_regret(hinted, first) / regret_scale, 0.0), 1.0)
    return regret_weight * regret + plateau_weight * plateau(mean(window))


def solve_rate(returns: list[float]) -> float:
    """plateau(mean return): the blend without its regret (SPADE's solve-rate ablation)."""
    return plateau(mean(returns))


def micro_lp(by_rollout: list[list[float]]) -> float:
    """max(0, mean of the late half of the rollouts - mean of the early half) (SPADE's code, in no paper).

    Pays for progress within the window; of an odd number the middle one is late. 0 for a single rollout.
    """
    half = len(by_rollout) // 2
    early = [ret for rollout in by_rollout[:half] for ret in rollout]
    late = [ret for rollout in by_rollout[half:] for ret in rollout]
    return max(0.0, mean(late) - mean(early)) if early and late else 0.0


class LearningPotential:
    """rho(e) = |mean return of e - mu_slow(skill)|, mu <- (1 - gain) mu + gain r (SPADE's LP ablation).

    The only reward with a memory: two moving averages per skill, which forget half within half an update. The
    deviation has no sign, so always solved and never solved earn alike.
    """

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
        gap = self.fast.get(skill, 0.0) - self.slow.get(skill, 0.0)
        return abs(gap) / (2 * (GAIN_FAST - GAIN_SLOW))

    def state_dict(self) -> dict[str, dict[str, float]]:
        return {"fast": dict(self.fast), "slow": dict(self.slow)}

    def load_state_dict(self, state: dict[str, dict[str, float]]) -> None:
        self.fast, self.slow = dict(state["fast"]), dict(state["slow"])


# --- The rivals ---


def variance_reward(returns: list[float]) -> float:
    """exp(-(Var - 0.25)^2 / (2 x 0.01)), population variance (SPICE Eq. 1).

    0.25 is a fair coin's variance: 4 of 8 -> 1, 2 of 8 -> 0.823, 0 of 8 -> 0.044. Meant for returns of 0 and
    1: wins and losses of 1 and -1 have variance 1 and earn nothing.
    """
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

    Empty answers are no candidates but count in the share; of equals the first seen wins. A confident error
    looks exactly like the truth, which is why SPICE grounds its questions in a corpus.
    """
    votes = Counter(answer.strip() for answer in answers if answer.strip())
    label, count = votes.most_common(1)[0] if votes else ("", 0)
    return label, count / max(len(answers), 1)


# --- What --designer-reward chooses from: Window -> {"reward": what is paid, other keys: parts to log} ---


def _regret(window: Window) -> dict[str, float]:
    regret = hint_regret(window.hinted, window.first)
    return {"reward": max(0.0, regret), "regret": regret}  # floored as in SPADE Algorithm 1


def _learning_potential(window: Window, state: LearningPotential) -> dict[str, float]:
    deviation = state.deviation(window.skill, mean(window.unhinted)) if window.unhinted else 0.0
    return {"reward": deviation, "mu_slow": state.slow.get(window.skill, 0.0),
            "potential": state.potential(window.skill)}


def _of_share(formula: Callable[[float], float], window: Window) -> dict[str, float]:
    p = solved_share(window.unhinted)
    return {"reward": formula(p), "solved_share": p}


DESIGNER_REWARDS: dict[str, Callable[..., dict[str, float]]] = {
    "blend": lambda w: {"reward": blend(w.hinted, w.first, w.unhinted),
                        "regret": hint_regret(w.hinted, w.first), "plateau": solve_rate(w.unhinted)},
    "regret": _regret,
    "solve-rate": lambda w: {"reward": solve_rate(w.unhinted)},
    "learning-potential": _learning_potential,  # the one with a second argument, its state
    "micro-lp": lambda w: {"reward": micro_lp(w.by_rollout)},
    "variance": lambda w: {"reward": variance_reward(w.unhinted)},
    "absolute-zero": lambda w: _of_share(absolute_zero, w),
    "threshold": lambda w: _of_share(threshold, w),
    "r-zero": lambda w: _of_share(r_zero, w),
}


def designer_rewards(name: str, windows: list[Window],
                     learning_potential: LearningPotential | None = None) -> list[dict[str, float]]:
    """Rewards of one regeneration's environments, in order. Call it once, with all its windows.

    All of them, because learning potential first moves a skill's averages by the mean over all plays of the
    skill and only then reads the baseline.
    """
    if name != "learning-potential":
        return [DESIGNER_REWARDS[name](window) for window in windows]
    if learning_potential is None:
        raise ValueError("learning-potential needs the run's LearningPotential: pass it in")
    for skill in dict.fromkeys(window.skill for window in windows):
        returns = [ret for window in windows if window.skill == skill for ret in window.unhinted]
        if returns:
            learning_potential.update(skill, mean(returns))
    return [DESIGNER_REWARDS[name](window, learning_potential) for window in windows]


def main() -> None:
    print("Reward of an environment that the Agent solves k times out of 8.\n"
          "Assumed: the hint turns half of the lost plays into won ones; the Agent is the same in all four\n"
          "rollouts (so micro-lp is 0); the rows are one skill's nine environments (so mu_slow is 0.5).\n")
    windows = [Window("any", [1.0] * (8 + k) + [0.0] * (8 - k), [[1.0] * k + [0.0] * (8 - k)] * 4)
               for k in range(9)]
    columns = {name: designer_rewards(name, windows, LearningPotential()) for name in DESIGNER_REWARDS}
    print("k of 8", "hinted", *columns, sep="  ")
    for k, window in enumerate(windows):
        cells = [f"{rewards[k]['reward']:{len(name)}.3f}" for name, rewards in columns.items()]
        print(f"{k:6d}", f"{mean(window.hinted):6.3f}", *cells, sep="  ")
    print(f"\nWhatever the reward: a hung environment earns {HUNG}, an invalid one {INVALID}.")


if __name__ == "__main__":
    main()
