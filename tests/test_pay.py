"""What a program is paid where it breaks, where it is refused, and where it is written again."""
import json

import pytest

import agent
import designer
import regret
import tests.tiny_model as tiny_model
import train
from agent import Episode
from machinery import metrics
from machinery.engines import Reply
from machinery.policy import Policy
from machinery.records import Design, Environment, Order
from machinery.state import State
from sandbox import Sandbox
from tests.test_train import SMALL
from train import parse


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model.build(tmp_path_factory.mktemp("random") / "m")


def played(plain: list, hinted: list, *flags):
    """A set of one environment, after these plays ("crash" or a return), closed and paid."""
    args = parse(["--model", "x", "--no-corpus", "--n-envs", "1", "--k", "1", *flags])
    state = State(args)
    environment = Environment("code", "h", "s", "games", "", "e")
    reply = Reply([5], [-1.0], "text", True)
    state.designs = [Design(Order("e", "s", "s", ""), [1], reply, "code", environment)]

    def episodes(returns, arm):
        return [Episode(environment, i, arm, ret=0.0, outcome="env_error", error="exception: step") if ret == "crash"
                else Episode(environment, i, arm, ret=ret, outcome="terminated") for i, ret in enumerate(returns)]
    state.note_returns(episodes(hinted, True), episodes(plain, False))
    facts = {}
    train.designer_samples(args, state, [], facts)
    return state.designs[0], facts


def test_a_crash_is_a_failure_of_the_program():
    """16 plays, 8 crashed, 4 of the others won: mean (4 - 8) / 16 = -.25, which is no coin flip."""
    design, facts = played([1.0] * 4 + [0.0] * 4 + ["crash"] * 8, [])
    assert regret.mean(design.window.unhinted) == -0.25
    assert facts["designer/plateau"] == 0.0 and design.reward == 0.0
    without, _ = played([1.0] * 4 + [0.0] * 4, [])
    assert without.reward == pytest.approx(0.6)


def test_a_program_that_always_breaks_is_paid_like_a_refused_one():
    design, _ = played(["crash"] * 4, ["crash"] * 4)
    assert not design.played and design.reward == regret.INVALID


def test_crashes_in_one_arm_only_never_pay():
    fine, _ = played([0.0] * 4, [1.0] * 4, "--designer-reward", "regret")
    assert fine.reward == 1.0
    hinted, _ = played([0.0] * 4, [1.0, 1.0, "crash", "crash"], "--designer-reward", "regret")
    assert hinted.reward == 0.0   # (1 + 1 - 1 - 1) / 4
    plain, _ = played([0.0, 0.0, "crash", "crash"], [0.0] * 4, "--designer-reward", "regret")
    assert plain.reward == 0.0    # 0 - 0: what broke without the hint is not what the hint was worth
    assert plain.window.first == [0.0, 0.0] and plain.window.unhinted == [0.0, 0.0, -1.0, -1.0]
    mastered, _ = played([1.0, 1.0, "crash", "crash"], [1.0] * 4, "--designer-reward", "regret")
    assert mastered.reward == 0.0


def test_the_agent_is_not_punished_for_a_crash():
    args = parse(["--model", "x"])
    environment = Environment("code", "h", "s", "games", "", "e")
    piece = agent.Piece([1, 2], [0, 1], [-1.0])
    plays = [Episode(environment, i, False, [piece], [], ret, outcome)
             for i, (ret, outcome) in enumerate([(1.0, "terminated"), (0.0, "terminated"), (0.0, "env_error")])]
    samples = train.agent_samples(args, agent.GAMES, None, plays)
    assert [s.reward for s in samples] == [1.0, 0.0] and sum(s.advantage for s in samples) == pytest.approx(0)


def test_the_compact_filter_leaves_cut_off_plays_out_of_the_loss_and_in_the_mean():
    environment = Environment("code", "h", "s", "games", "", "e")
    piece = agent.Piece([1, 2], [0, 1], [-1.0])
    plays = [Episode(environment, i, False, [piece], [], ret, outcome)
             for i, (ret, outcome) in enumerate([(1.0, "terminated"), (0.0, "context_limit"), (0.0, "turn_limit")])]
    samples = train.agent_samples(parse(["--model", "x", "--compact-filter", "--agent-advantage", "center"]),
                                  agent.GAMES, None, plays)
    assert [s.advantage for s in samples] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert [sum(s.mask) for s in samples] == [1, 0, 0] and [len(s.logprobs) for s in samples] == [1, 0, 0]


# --- refused, but how far did it come? ---

def test_staged_prices_rise_and_stay_below_what_a_valid_program_earns():
    reasons = ["unfinished: cut off", "syntax: bad", "class: none has reset and step", "load: NameError",
               "reset: KeyError", "step: IndexError", "determinism: other replies", "junk wins: on seed 0",
               "solution: it does not win"]
    prices = [regret.refusal("staged", reason) for reason in reasons]
    assert prices == sorted(prices) and prices[0] == regret.INVALID and prices[0] < prices[2] < prices[4] < prices[5]
    assert prices[-1] == pytest.approx(-0.1 / 7) and max(prices) < 0
    assert regret.refusal("-0.1", "syntax: bad") == regret.refusal("-0.1", "junk wins: ...") == -0.1
    assert regret.refusal("staged", "no such word") == regret.INVALID


def test_every_reason_of_the_sandbox_has_a_stage():
    known = {word for words in regret.STAGES for word in words.split()}
    with Sandbox() as box:
        shell = "class AEnv:\n def reset(self, seed=None): {}\n def step(self, action): {}"
        for code, word in [("class AEnv(", "syntax"), ("import numpy", "import"), ("x = 1", "class"), ("1 / 0", "load"),
                           (shell.format("1 / 0", "pass"), "reset"), (shell.format("return 'o'", "1 / 0"), "step")]:
            verdict = agent.validate(box, code)
            assert verdict.reason.split(":")[0] == word and word in known, verdict


# --- attempts, copies, hints ---

GOOD = '''
class OpenEnv:   # {number}
    def reset(self, seed=None):
        return "say the word", {{}}
    def step(self, action):
        return "so", float("melon{number}" in action), True, False, {{}}
'''


class Script:
    """Policy.sample replaced: designs from a list, then hints from a list, ids that a random model can score."""

    def __init__(self, monkeypatch, programs, hints=("Say the fruit.",)):
        self.programs, self.hints, self.asked = list(programs), list(hints), []
        script = self

        def sample(policy, prompts, *_, **__):
            texts = []
            for prompt in prompts:
                asked = policy.tokenizer.decode(prompt)
                script.asked.append(asked)
                queue = script.hints if "hint for" in asked else script.programs
                texts.append(queue.pop(0) if len(queue) > 1 else queue[0])
            ids = [policy.tokenizer.encode(text) for text in texts]
            return [Reply(row, [-1.0] * len(row), text, True) for row, text in zip(ids, texts)]
        monkeypatch.setattr(Policy, "sample", sample)


def run(model, folder, *flags):
    train.main(parse(["--model", model, "--run-dir", str(folder), *SMALL, "--rollouts", "1", *flags]))
    (facts,) = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return facts


def test_a_refused_place_is_ordered_again_with_a_fresh_document(monkeypatch, model, tmp_path):
    script = Script(monkeypatch, [GOOD.format(number=1), "nonsense(", "1 +", GOOD.format(number=2), "x =",
                                  GOOD.format(number=3)])
    facts = run(model, tmp_path / "r", "--attempts", "5")
    assert facts["designer/valid"] == pytest.approx(1 / 3) and facts["designer/filled"] == 1.0
    assert facts["designer/attempts"] == 2.0 and facts["refused/syntax"] == 3   # 3 + 2 + 1 programs
    orders = [asked for asked in script.asked if "design " in asked]
    assert len(orders) == 6 and len(set(orders)) == 6   # each with a document of its own
    rejected = sorted((tmp_path / "r" / "environments" / "rejected").glob("*.py"))
    assert len(rejected) == 3 and len(list((tmp_path / "r" / "environments").glob("*.py"))) == 3


def test_all_attempts_are_samples(monkeypatch, model, tmp_path):
    Script(monkeypatch, ["nonsense(", GOOD.format(number=1)])
    batches = []
    update = train.grpo.update

    def record(policy, batch, **options):
        batches.append(batch)
        return update(policy, batch, **options)
    monkeypatch.setattr(train.grpo, "update", record)
    run(model, tmp_path / "r", "--n-envs", "1", "--k", "1", "--attempts", "2")
    designers = [s for s in batches[0] if s.role == "designer"]
    assert len(designers) == 2 and sorted(s.reward for s in designers)[0] == regret.INVALID


def test_an_empty_set_says_why_and_what_to_try(monkeypatch, model, tmp_path, capsys):
    Script(monkeypatch, ["nonsense("])
    facts = run(model, tmp_path / "r", "--attempts", "2")
    assert facts["designer/filled"] == 0 and facts["refused/syntax"] == 6
    said = [line for line in capsys.readouterr().out.splitlines() if "this set is empty" in line]
    assert len(said) == 1 and "Refused: 6 syntax" in said[0] and "--attempts" in said[0]


@pytest.mark.parametrize("copies, kept", [("keep", 3), ("refuse", 1)])
def test_copies_are_counted_either_way(monkeypatch, model, tmp_path, copies, kept):
    Script(monkeypatch, [GOOD.format(number=1)])
    facts = run(model, tmp_path / "r", "--copies", copies, "--attempts", "1")
    assert (facts["designer/valid"], facts["designer/unique"]) == (1.0, pytest.approx(1 / 3))
    assert len(list((tmp_path / "r" / "environments").glob("*.py"))) == kept


def test_a_refused_hint_is_asked_for_again(monkeypatch, model, tmp_path, capsys):
    long = "word " * 101
    Script(monkeypatch, [GOOD.format(number=1)], [long, "", "Say the fruit.", long])
    facts = run(model, tmp_path / "r", "--attempts", "1")
    assert facts["designer/no_hint"] == 2   # of three: the first two asked three times in vain, the last at once
    assert "2 environments have no hint" in capsys.readouterr().out


def test_the_weight_is_shown_as_it_comes_out():
    facts = {"agent/return": 0.0, "designer/valid": 1.0, "designer/learnable_share": 0.0, "loss/grad_norm": 0.0,
             "time/total": 0.0, "designer/reward_all": 0.5, "designer/weight": 50.0}
    assert "reward +0.500 x 50" in metrics.line(3, facts)


@pytest.mark.parametrize("flags, message", [
    (["--attempts", "0"], "--attempts must be at least 1"),
    (["--invalid-reward", "stagged"], "--invalid-reward wants a number or 'staged', not 'stagged'"),
    (["--band", "0.5"], "--band wants two numbers"),
    (["--band", "0.6,0.4"], "the lower end first"),
    (["--band", "nan,nan"], "--band wants two numbers"), (["--band", "0.4,inf"], "--band wants two numbers"),
    (["--invalid-reward", "nan"], "--invalid-reward wants a number"),
    (["--pool", "no-such-folder"], "--pool no-such-folder holds no .py files"),
    (["--recipe", "spice", "--attempts", "3"], "--attempts 1"),
])
def test_bad_flags_are_one_line_before_anything_starts(flags, message, capsys):
    with pytest.raises(SystemExit):
        parse(flags)
    assert message in capsys.readouterr().err


def test_the_band_of_the_4b_run():
    window = regret.Window("s", [], [[0.25] * 4])
    assert regret.designer_rewards("solve-rate", [window])[0]["reward"] == pytest.approx(1 - 0.15 / 0.25)
    assert regret.designer_rewards("solve-rate", [window], band=(0.2, 0.4))[0]["reward"] == 1.0
    later, thinking = parse(["--recipe", "spade-4b"]), parse(["--recipe", "spade-8b"])
    assert (later.context, later.lr, later.brief) == (49152, 1e-6, False) and thinking.thinking and thinking.k == 4
    assert designer.HINT_TRIES == 3


@pytest.mark.parametrize("reward", sorted(regret.DESIGNER_REWARDS))
def test_crashes_never_raise_what_a_program_earns(reward):
    """Half broken and half lost is no variance; half won and half broken no coin flip."""
    for ended in ([0.0] * 4, [1.0] * 4, [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]):
        broken, _ = played([*ended, *["crash"] * 4], [1.0] * 4, "--designer-reward", reward)
        whole, _ = played(ended, [1.0] * 4, "--designer-reward", reward)
        assert broken.reward <= whole.reward + 1e-9


def test_crashes_of_early_rollouts_are_no_progress():
    window = regret.Window("s", [], [[-1.0, 0.5], [0.5, 0.5]], crashed=[1, 0])
    assert regret.designer_rewards("micro-lp", [window])[0]["reward"] == 0.0
    assert window.ended().by_rollout == [[0.5], [0.5, 0.5]] and window.by_rollout == [[-1.0, 0.5], [0.5, 0.5]]


def test_a_later_attempt_does_not_push_out_what_an_earlier_one_brought():
    def design(place, attempt):
        name = f"00000_{place:03d}_s" + (f"_attempt{attempt}" if attempt > 1 else "")
        order = Order(name, "s", "s", "", place=place, attempt=attempt)
        return Design(order, [], None, GOOD, Environment(GOOD, "h", "s", "games", "", name))
    designs = [design(1, 1), design(0, 2)]
    designer.refuse_copies(designs)
    assert [d.copy for d in designs] == [False, True]
