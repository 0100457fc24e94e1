"""Every reward against numbers computed by hand; most come from the papers or the reference tests."""

import json

import pytest

import regret
from regret import (
    DESIGNER_REWARDS,
    LearningPotential,
    Window,
    absolute_zero,
    blend,
    designer_rewards,
    hint_regret,
    majority_label,
    micro_lp,
    plateau,
    r_zero,
    solved_share,
    threshold,
    variance_reward,
)


def of(won: int, total: int) -> list[float]:
    return [1.0] * won + [0.0] * (total - won)


def rewards(name: str, *windows: Window) -> list[float]:
    return [parts["reward"] for parts in designer_rewards(name, list(windows), LearningPotential())]


def test_hint_regret_is_a_signed_difference_of_means():
    assert hint_regret([0.8], [0.2, 0.2]) == pytest.approx(0.6)
    assert hint_regret([0.1], [0.5, 0.5]) == pytest.approx(-0.4)
    assert hint_regret([1.0, 1.0], [-1.0, 1.0]) == pytest.approx(1.0)


def test_regret_without_one_arm_is_zero_even_if_the_other_is_negative():
    assert hint_regret([], [-1.0, -1.0]) == 0.0
    assert hint_regret([1.0], []) == 0.0


def test_regret_reward_is_floored_and_keeps_the_raw_value():
    good, bad, unplayed = (Window("logic", [0.8], [[0.2, 0.2]]), Window("logic", [0.1], [[0.5, 0.5]]),
                           Window("logic", [], []))
    assert rewards("regret", good, bad, unplayed) == pytest.approx([0.6, 0.0, 0.0])
    assert DESIGNER_REWARDS["regret"](bad)["regret"] == pytest.approx(-0.4)
    # Centred per skill and times a weight of 10 these are the reference test's +3 and -3.
    assert [(r - 0.3) * 10 for r in rewards("regret", good, bad)] == pytest.approx([3.0, -3.0])


def test_regret_compares_with_the_first_rollout_only():
    learnt = Window("logic", [1.0, 1.0], [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    assert rewards("regret", learnt) == [1.0]
    assert DESIGNER_REWARDS["blend"](learnt)["regret"] == 1.0


def test_penalties():
    assert (regret.HUNG, regret.INVALID) == (-0.5, -0.1)
    assert rewards("regret", Window("other", [], [])) == [0.0]   # nobody played it


@pytest.mark.parametrize(("win_rate", "expected"), [
    (-1.0, 0.0), (0.0, 0.0), (0.15, 0.0), (0.2, 0.2), (0.3, 0.6), (0.4, 1.0), (0.5, 1.0), (0.6, 1.0),
    (0.7, 0.6), (0.8, 0.2), (0.85, 0.0), (1.0, 0.0)])
def test_plateau(win_rate, expected):
    assert plateau(win_rate) == pytest.approx(expected, abs=1e-12)
    assert plateau(regret.mean([win_rate, win_rate])) == pytest.approx(expected, abs=1e-12)


def test_blend_with_unit_weights():
    assert blend([], [1.0], [1.0], 1.0, 1.0) == 0.0
    assert blend([0.8], [0.5], [0.5], 1.0, 1.0) == pytest.approx(2.0)          # regret .3 clips to 1
    assert blend([0.275], [0.2], [0.2], 1.0, 1.0) == pytest.approx(0.7)        # .075/.15 + .2


def test_blend_as_deployed():
    assert blend([0.8], [0.5], [0.5]) == pytest.approx(1.0)
    assert blend([], [0.5], [0.5]) == pytest.approx(0.6)
    assert blend([1.0], [0.0], [0.0]) == pytest.approx(0.4)
    assert blend([0.275], [0.2], [0.2]) == pytest.approx(0.4 * 0.5 + 0.6 * 0.2)
    assert blend([0.0], [1.0], [0.3]) == pytest.approx(0.6 * 0.6)              # negative regret is clipped
    for won in range(9):
        for hinted in range(9):
            assert 0.0 <= blend(of(hinted, 8), of(won, 8), of(won, 8)) <= 1.0


def test_blend_parts_come_apart():
    window = Window("math", [0.3, 0.3], [[0.2, 0.2], [0.4, 0.4]])              # first .2, window .3
    parts = DESIGNER_REWARDS["blend"](window)
    assert parts == pytest.approx({"reward": 0.4 * 0.1 / 0.15 + 0.6 * 0.6, "regret": 0.1, "plateau": 0.6})


def test_micro_lp_halves():
    assert micro_lp([[0.0], [0.5], [1.0]]) == pytest.approx(0.75)              # the middle one is late
    assert micro_lp([[0.0, 1.0], [0.0, 0.0], [1.0, 1.0], [1.0, 0.0]]) == pytest.approx(0.5)
    assert micro_lp([[1.0], [0.0]]) == 0.0
    assert micro_lp([[1.0, 0.0]]) == 0.0
    assert micro_lp([]) == 0.0


def test_learning_potential_by_hand():
    lp = LearningPotential()
    lp.update("logic", 0.4)
    assert (lp.fast["logic"], lp.slow["logic"]) == (0.4, 0.4)                  # the first update sets both
    lp.update("logic", 1.0)
    assert lp.fast["logic"] == pytest.approx(0.988)                            # .02 x .4 + .98 x 1
    assert lp.slow["logic"] == pytest.approx(0.91)                             # .15 x .4 + .85 x 1
    assert lp.deviation("logic", 0.5) == pytest.approx(0.41)
    assert lp.potential("logic") == pytest.approx(0.3)                         # .078 / .26
    assert lp.potential("math") == 0.0


def test_learning_potential_updates_once_per_skill_before_it_reads():
    lp = LearningPotential()
    windows = [Window("logic", [], [[1.0], [1.0]]), Window("math", [], [[0.2]]), Window("logic", [], [[0.0]])]
    paid = [parts["reward"] for parts in designer_rewards("learning-potential", windows, lp)]
    assert lp.slow == pytest.approx({"logic": 2 / 3, "math": 0.2})             # all plays of a skill, pooled
    assert paid == pytest.approx([1 / 3, 0.0, 2 / 3])
    designer_rewards("learning-potential", [Window("logic", [], [[0.0]]), Window("logic", [], [])], lp)
    assert lp.slow["logic"] == pytest.approx(0.1)                              # .15 x 2/3


def test_learning_potential_pays_solved_and_hopeless_alike():
    always, never = Window("logic", [], [[1.0]]), Window("logic", [], [[0.0]])
    assert rewards("learning-potential", always, never) == [0.5, 0.5]


def test_learning_potential_resumes_exactly():
    lp, resumed = LearningPotential(), LearningPotential()
    lp.update("logic", 0.3)
    lp.update("logic", 0.7)
    resumed.load_state_dict(json.loads(json.dumps(lp.state_dict())))
    for ret in (0.1, 0.9):
        lp.update("logic", ret)
        resumed.update("logic", ret)
    assert resumed.state_dict() == lp.state_dict()


def test_learning_potential_state_is_a_copy_and_is_required():
    lp = LearningPotential()
    state = lp.state_dict()
    lp.update("logic", 1.0)
    assert state == {"fast": {}, "slow": {}}
    with pytest.raises(ValueError, match="LearningPotential"):
        designer_rewards("learning-potential", [])


@pytest.mark.parametrize(("won", "total", "expected"), [
    (0, 8, 0.0439), (1, 8, 0.372), (2, 8, 0.823), (3, 8, 0.988), (4, 8, 1.0), (5, 8, 0.988), (6, 8, 0.823),
    (7, 8, 0.372), (8, 8, 0.0439), (1, 16, 0.160), (2, 16, 0.372), (3, 16, 0.621), (4, 16, 0.823)])
def test_variance(won, total, expected):
    assert variance_reward(of(won, total)) == pytest.approx(expected, abs=6e-4)


def test_variance_beyond_zero_and_one_earns_nothing():
    assert variance_reward([-1.0, 1.0]) == pytest.approx(6.1e-13, rel=0.02)    # exp(-.75^2 / .02)


@pytest.mark.parametrize("returns", [[], [1.0]])
def test_variance_needs_two_plays(returns):
    with pytest.raises(ValueError, match="at least 2 plays per environment: raise --plays"):
        variance_reward(returns)


@pytest.mark.parametrize(("p", "harder", "open_", "tent"), [
    (0.0, 0.0, 0.0, 0.0), (0.125, 0.875, 1.0, 0.25), (0.25, 0.75, 1.0, 0.5), (0.5, 0.5, 1.0, 1.0),
    (0.75, 0.25, 1.0, 0.5), (0.875, 0.125, 1.0, 0.25), (1.0, 0.0, 0.0, 0.0)])
def test_formulas_of_p(p, harder, open_, tent):
    assert (absolute_zero(p), threshold(p), r_zero(p)) == (harder, open_, tent)
    window = Window("logic", [], [of(round(8 * p), 8)])
    assert rewards("absolute-zero", window) + rewards("threshold", window) + rewards("r-zero", window) == [
        harder, open_, tent]


def test_p_is_the_share_of_solved_plays_not_the_mean_return():
    assert solved_share([1.0, -1.0]) == 0.5
    assert rewards("r-zero", Window("logic", [], [[1.0, -1.0]])) == [1.0]
    assert rewards("threshold", Window("logic", [], [[0.5, 0.5]])) == [0.0]


def test_majority_label():
    assert majority_label(["12", " 12 ", "7", ""]) == ("12", 0.5)
    assert majority_label(["a", "b"]) == ("a", 0.5)                            # the first seen of equals
    assert majority_label(["", " "]) == ("", 0.0)
    assert majority_label([]) == ("", 0.0)


def test_every_reward_has_the_same_face():
    assert set(DESIGNER_REWARDS) == {"regret", "blend", "solve-rate", "learning-potential", "variance",
                                     "absolute-zero", "threshold", "r-zero", "micro-lp"}
    windows = [Window("logic", [1.0, 1.0], [[0.0, 1.0], [1.0, 1.0]]), Window("math", [], [[0.0, 0.0]])]
    for name in DESIGNER_REWARDS:
        results = designer_rewards(name, windows, LearningPotential())
        assert len(results) == 2
        for parts in results:
            assert all(type(value) is float for value in parts.values()) and "reward" in parts


def test_table_has_a_row_for_each_number_of_wins(capsys):
    regret.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == [str(k) for k in range(9)]
    assert {len(row) for row in rows} == {2 + len(DESIGNER_REWARDS)}
    assert rows[4][2:] == ["1.000", "0.250", "1.000", "0.000", "0.000", "1.000", "0.500", "1.000", "1.000"]
