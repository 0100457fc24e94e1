"""train.py as a whole: random models through the real loop, bad input, seeds, windows."""
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import agent
import designer
import grpo
import regret
import tests.tiny_model as tiny_model
import train
from designer import Design, Environment, Order
from machinery import metrics
from machinery.engines import Reply
from machinery.files import save_environment
from machinery.policy import Policy
from machinery.seeds import seed_of
from machinery.state import State
from train import parse

ROOT = Path(__file__).parent.parent
SMALL = ["--rollouts", "2", "--n-envs", "3", "--plays", "2", "--hint-plays", "2", "--k", "2", "--context", "2000",
         "--design-tokens", "24", "--max-tokens", "12", "--hint-tokens", "8", "--max-turns", "2", "--brief",
         "--document-words", "8", "--attempts", "1"]


def call(*arguments, timeout=120):
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, str(ROOT / "train.py"), *arguments], capture_output=True, text=True,
                          timeout=timeout, env=env)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model.build(tmp_path_factory.mktemp("random") / "m")


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_random_model_writes_nothing_valid_and_the_run_says_so(family, tmp_path):
    template = tiny_model.LLAMA3 if family == "llama" else tiny_model.CHATML
    folder = tiny_model.build(tmp_path / "m", family, template)
    done = call("--model", folder, "--run-dir", str(tmp_path / "r"), *SMALL)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout"] for line in lines] == [0, 1]
    assert lines[0]["designer/valid"] == 0
    assert sum(v for k, v in lines[0].items() if k.startswith("refused/")) == 3   # every program, with its reason
    assert "nothing was learnt" in done.stdout
    rejected = list((tmp_path / "r" / "environments" / "rejected").glob("*.py"))
    assert len(rejected) == 3
    assert all(json.loads(f.read_text().splitlines()[0][2:])["reason"] for f in rejected)


GAME = '''
class {name}Env:                    # any reply wins half of the time: even a random model has something to learn
    def reset(self, seed=None):
        return "say it", {{}}
    def step(self, action):
        return "so", float(sum(map(ord, action)) % 2), True, False, {{}}
'''


def test_a_fixed_pool_trains_the_agent(model, tmp_path):
    for name in ("First", "Second"):
        save_environment(tmp_path / "pool", Environment(GAME.format(name=name), "h", "s", "games", "", name))
    done = call("--model", model, "--pool", str(tmp_path / "pool"), "--run-dir", str(tmp_path / "r"), *SMALL,
                "--plays", "8", "--save-every", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert any(line["loss/grad_norm"] > 0 for line in lines)
    assert any(line["agent/return"] > 0 for line in lines)
    plays = [json.loads(line) for line in (tmp_path / "r" / "plays.jsonl").read_text().splitlines()]
    assert {p["environment"] for p in plays} == {"00000_First", "00000_Second"}
    assert {p["hinted"] for p in plays} == {True, False}
    from transformers import AutoModelForCausalLM
    AutoModelForCausalLM.from_pretrained(tmp_path / "r" / "checkpoint")


@pytest.mark.parametrize("arguments, message", [
    (["--k", "0"], "must be at least 1"),
    (["--plays", "0"], "must be at least 1"),
    (["--recipe", "nonsense"], "unknown recipe"),
    (["--designer-reward", "nonsense"], "invalid choice"),
    (["--corpus", "/no/such/file"], "cannot read the corpus"),
    (["--skills", "Cooking"], "unknown skill 'Cooking'"),
    (["--plays", "1", "--k", "1", "--designer-reward", "variance"], "variance of a single play is undefined"),
    (["--resume", "/no/such/run"], "wants the folder of a run"),
    (["--context", "70"], "raise --context"),
])
def test_bad_input_is_one_clear_line(arguments, message, model, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        train.main(parse(["--model", model, "--run-dir", str(tmp_path / "r"), *SMALL, *arguments]))
    assert message in str(stop.value) + capsys.readouterr().err


def test_an_unknown_model_is_one_clear_line(tmp_path):
    with pytest.raises(SystemExit, match="cannot load the model '/no/such/model'"):
        train.main(parse(["--model", "/no/such/model", "--run-dir", str(tmp_path / "r"), *SMALL]))


def args_for(*extra):
    return parse(["--model", "x", "--no-corpus", "--n-envs", "6", "--k", "2", *extra])


def closed_window(args):
    """Six designs of two skills: four valid, one of them hung, and two refused."""
    state = State(args)
    for i in range(6):
        skill = "Optimization" if i % 2 else "Causal Inference"
        valid = i < 4
        environment = Environment("code", "h", skill, "games", "", f"e{i}") if valid else None
        reply = Reply([5, 6, 7], [-1.0, -1.0, -1.0], "text", True)
        state.designs.append(Design(Order(f"e{i}", skill, skill, ""), [1, 2], reply, "code", environment, ""))
        if valid:
            state.designs[-1].window = regret.Window(skill, [1.0, 1.0], [[0.0, i / 4], [1.0, 0.0]], hung=i == 3)
    return state


def test_designer_advantages_sum_to_zero_per_skill_and_invalid_designs_carry_weight():
    args = args_for("--designer-reward", "regret")
    state, facts = closed_window(args), {}
    samples = train.designer_samples(args, state, [], facts)
    assert len(samples) == 6
    assert [s.reward for s in samples] == [1.0, 0.875, 0.75, regret.HUNG, regret.INVALID, regret.INVALID]
    for skill in ("Optimization", "Causal Inference"):
        assert sum(s.advantage for s in samples if s.group == skill) == pytest.approx(0)
    assert all(s.advantage < 0 for s in samples[4:])
    assert all(s.mask == [0, 0, 1, 1, 1] and s.ids == [1, 2, 5, 6, 7] for s in samples)
    assert [r.name for r in state.memory.records] == ["e0", "e1", "e2"]
    assert state.memory.records[1].win_rate == 0.5 and state.memory.records[1].regret == 0.875


def test_seeds_pair_the_arms_and_differ_by_rollout_and_play(monkeypatch):
    def jobs(args, state, hinted):
        asked = []
        monkeypatch.setattr(agent, "play_shown", lambda what, policy, box, setting, jobs, args: asked.extend(jobs))
        train.play_arm(args, None, None, None, state, hinted)
        return asked
    args = args_for("--plays", "4", "--hint-plays", "4")
    state = closed_window(args)
    hinted, plain = jobs(args, state, True), jobs(args, state, False)
    assert [j.seed for j in hinted] == [j.seed for j in plain] and all(j.hinted for j in hinted)
    assert len({j.seed for j in plain}) == 12 and "e3" not in {j.environment.name for j in plain}   # e3 hung
    state.designs[0].environment.hint = ""   # without a hint there is no hinted arm
    assert {j.environment.name for j in jobs(args, state, True)} == {"e1", "e2"}
    state.designs[0].environment.hint = "h"
    unpaired = jobs(args_for("--plays", "4", "--hint-plays", "4", "--no-paired-seeds"), state, True)
    assert not {j.seed for j in unpaired} & {j.seed for j in plain}
    state.rollout = 1
    assert not {j.seed for j in jobs(args, state, False)} & {j.seed for j in plain}
    assert seed_of(0, "e", 1) == 922770665   # the same in every process and on every machine


def test_three_skills_in_turn():
    args = args_for("--n-envs", "6", "--k", "1")
    state, seen = State(args), []
    for t in range(3):
        state.rollout = t
        seen.append([s.skill for s in designer.orders(args, train.SETTINGS["games"], state, range(6))])
    skills = list(train.SETTINGS["games"].skills)
    assert seen == [skills[:3] * 2, skills[3:] * 2, skills[:3] * 2]


def test_the_last_window_is_flushed(model, tmp_path):
    """With 3 rollouts and k = 2 the second window closes after its only rollout."""
    train.main(parse(["--model", model, "--run-dir", str(tmp_path / "r"), *SMALL, "--rollouts", "3"]))
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert ["designer/reward_all" in line for line in lines] == [False, True, True]


def test_zero_variance_groups_are_counted_not_computed(model, tmp_path):
    samples = [grpo.Sample([1, 2], [0, 1], [-1.0], "agent", group, reward) for group, reward in
               zip("aabbcc", [1.0, 1.0, 0.0, 1.0, 0.5, 0.5])]
    for sample, advantage in zip(samples, grpo.group_advantages([s.reward for s in samples],
                                                                [s.group for s in samples], True)):
        sample.advantage = advantage
    assert grpo.zero_variance_groups(samples) == 2
    metrics = grpo.update(tiny_model.policy(model), samples)
    assert metrics["loss/zero_advantage_samples"] == 4 and metrics["tokens/trained"] == 2


@pytest.mark.parametrize("k, frozen, paid, rings", [(4, False, False, True), (4, False, True, False),
                                                    (1, False, True, True), (4, True, True, True)])
def test_the_alarm_of_stale_weights(capsys, k, frozen, paid, rings):
    """Not where the Designer's samples of k rollouts ago are among those that were trained on."""
    facts = {"agent/return": 0.0, "designer/valid": 1.0, "designer/learnable_share": 0.0, "loss/grad_norm": 0.0,
               "time/total": 0.0, "loss/engine_mismatch": 0.2} | ({"designer/reward_all": 0.0} if paid else {})
    args = SimpleNamespace(k=k, freeze_designer=frozen, show_every=0)
    metrics.show(args, SimpleNamespace(rollout=3), facts, [])
    assert ("stale weights" in capsys.readouterr().out) == rings


THREE_STEPS = '''
class StairsEnv:
    def reset(self, seed=None):
        self.climbed = 0
        return "climb", {}
    def step(self, action):
        self.climbed = self.climbed + 1 if action == "\\\\boxed{climb}" else 0
        return "so", float(self.climbed == 3), self.climbed == 3, False, {}
    def solution(self):
        return ["climb"] * 3
'''


@pytest.mark.parametrize("turns, valid", [(2, 0.0), (3, 1.0)])
def test_a_program_that_needs_more_turns_than_there_are_is_refused(monkeypatch, model, tmp_path, turns, valid):
    def sample(self, prompts, *_):
        ids = self.tokenizer.encode(THREE_STEPS)
        return [Reply(ids, [-1.0] * len(ids), THREE_STEPS, True) for _ in prompts]
    monkeypatch.setattr(Policy, "sample", sample)
    train.main(parse(["--model", model, "--run-dir", str(tmp_path / "r"), *SMALL, "--max-turns", str(turns),
                      "--rollouts", "1"]))
    (found,) = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert found["designer/valid"] == valid and found.get("refused/solution", 0) == (3 if turns == 2 else 0)
