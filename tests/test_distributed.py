"""Two processes under torchrun, gloo on the CPU, against one: the same numbers from FSDP2, gathering and dealing out.

This file is also the program that the ranks run: it writes what it found to OUT, and the tests compare.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


import designer  # noqa: E402
import grpo  # noqa: E402
import tests.test_resume as test_resume  # noqa: E402
import tests.tiny_model as tiny_model  # noqa: E402
import train  # noqa: E402
from agent import Episode, Piece  # noqa: E402
from designer import Design, Environment, Order, refuse_copies  # noqa: E402
from machinery import ranks  # noqa: E402
from machinery.engines import Reply  # noqa: E402
from machinery.metrics import measure  # noqa: E402
from machinery.source import normalised  # noqa: E402
from machinery.state import State  # noqa: E402
from train import parse  # noqa: E402

torch.set_num_threads(1)
CASES = {"tied": {}, "untied": {"reduction": "token"}, "kl": {"reduction": "constant", "longest": 20, "kl": 0.1}}


def a_rollout(args):
    """Five designs and their plays, the same however many ranks share them; one design is refused, one hangs."""
    designs, episodes = [], []
    for i in range(5):
        generator = torch.Generator().manual_seed(i)
        prompt, reply = torch.randint(0, 250, (2, 12 + 3 * i), generator=generator).tolist()
        environment = Environment(f"code {i}", "hint", "Skill", "games", "", f"e{i}") if i != 2 else None
        designs.append(Design(Order(f"e{i}", "Skill", f"skill {i % 2}", ""), prompt,
                              Reply(reply, [-5.0 - 0.1 * i] * len(reply), "", True), f"code {i}", environment))
        for hinted in (True, False):
            for play in range(4):
                ids = torch.randint(0, 250, (10 + 7 * i + play,), generator=generator).tolist()
                pieces = [Piece(ids, [0] * 4 + [1] * (len(ids) - 4), [-5.0] * (len(ids) - 4))]
                if i == 1:   # as a template leaves them that rewrites earlier turns
                    pieces.append(Piece(ids[::-1], [0] * 9 + [1] * (len(ids) - 9), [-5.0] * (len(ids) - 9)))
                ret = float(torch.rand(1, generator=generator) < (0.7 if hinted else 0.4))
                hung = i == 3 and play == 0
                if environment:
                    episodes.append(Episode(environment, play, hinted, pieces, [("user", "?")], ret,
                                            "env_error" if hung else "terminated", "timeout: 5 s" if hung else ""))
    state = State(args)
    state.designs = ranks.share(designs)
    mine = {d.name for d in state.designs}
    episodes = [e for e in episodes if e.environment.name in mine]
    return state, [e for e in episodes if e.hinted], [e for e in episodes if not e.hinted]


def numbers(folder, out):
    """Advantages, metrics, gradients, the stepped weights and a checkpoint, as files in `out`."""
    out = Path(out)
    out.mkdir(exist_ok=True)
    ranks.start()
    args = parse(["--model", folder, "--n-envs", "5", "--no-corpus"])
    state, hinted, plays = a_rollout(args)
    metrics = {}
    state.note_returns(hinted, plays)
    agents = train.agent_samples(args, train.SETTINGS["games"], state, plays)
    designers = train.designer_samples(args, state, agents, metrics)
    metrics |= measure(state, hinted, plays, opened=True)
    advantages = sorted(ranks.gather([(s.role, s.group, len(s.ids), s.advantage) for s in agents + designers]))
    memory = sorted((r.name, r.reward) for r in state.memory.records)
    found = {"advantages": advantages, "metrics": metrics, "memory": memory}
    for case, options in CASES.items():
        policy = tiny_model.policy(folder + ("-untied" if case == "untied" else ""), lr=1e-2, kl=options.get("kl", 0),
                                   gradient_checkpointing=case == "kl")
        step, gradient = policy.optimizer.step, {}

        def catch(step=step, gradient=gradient, policy=policy):
            gradient.update((n, p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad.clone())
                            for n, p in policy.net.model.named_parameters())
            step()
        policy.optimizer.step = catch
        found[case] = [grpo.update(policy, agents + designers, tokens_per_microbatch=70, **options)]
        torch.save(gradient, out / f"{case}.gradient.pt")
        policy.optimizer.step = step
        policy.sync()                                            # the sampler's copy must be the stepped weights
        prompt = [[1, 2, 3]] if ranks.rank() == 0 else []
        replies = policy.sample(prompt, 8, 1.0)
        found[case].append(ranks.gather([r.ids for r in replies]))
        state_of = policy.state()
        if ranks.rank() == 0:
            policy.write(out / case, state_of)
        ranks.gather([])                                         # until rank 0 has written
        again = tiny_model.policy(policy.name, weights=out / case, lr=1e-2, kl=options.get("kl", 0))
        again.load_optimizer(out / case)
        one = designers[:1] if ranks.rank() == 0 else []        # the other rank only keeps step
        for continued in (policy, again):
            found[case].append(grpo.update(continued, one, **options))
        weights = [p.state()[0] for p in (policy, again)]
        found[case].append(all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0]))
    if ranks.rank() == 0:
        (out / "found.json").write_text(json.dumps(found))


def two_trainings(model, out):
    """Four rollouts at once, and two and two."""
    ranks.start()
    designer.design = test_resume.helped_design
    flags = ["--model", model, *test_resume.FLAGS]
    train.main(parse([*flags, "--rollouts", "4", "--run-dir", f"{out}/whole"]))
    train.main(parse([*flags, "--rollouts", "2", "--run-dir", f"{out}/parts"]))
    train.main(parse(["--resume", f"{out}/parts", "--rollouts", "4"]))


def test_copies_on_other_ranks_are_refused_as_on_one():
    def made(name, code, sound=True):
        environment = Environment(code, "", "", "", "", name) if sound else None
        return Design(Order(name, "Skill", "Skill", ""), [], None, code, environment)
    mine = [made("0_001", "x = 1"), made("0_003", "x  =  2  # the other rank's"), made("0_005", "x = 1", sound=False),
            made("0_007", "x = 4")]
    theirs = [(1, "0_000", normalised("x = 2")), (1, "0_002", normalised("x = 1"))]
    refuse_copies(mine, lambda items: items + theirs)
    assert [d.environment is not None for d in mine] == [True, False, False, True]
    assert mine[1].reason.startswith("duplicate: ") and mine[2].reason == ""


def stopped_and_resumed(model, out):
    """Four rollouts of which one rank is told to stop in the second; both leave together, and go on later."""
    ranks.start()
    designer.design = test_resume.helped_design
    if ranks.rank() == 1:
        test_resume.send_sigterm("playing", 3)
    try:
        train.main(parse(["--model", model, *test_resume.FLAGS, "--rollouts", "4", "--run-dir", f"{out}/parts"]))
    except SystemExit as stop:
        assert "Go on with: python train.py --resume" in str(stop)
    ranks.gather([])
    train.main(parse(["--resume", f"{out}/parts"]))


def on_two_ranks(function, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", __file__]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, function.__name__, *map(str, arguments)], capture_output=True, text=True,
                          timeout=170, env=env)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    top = tmp_path_factory.mktemp("ranks")
    tiny_model.build(top / "m")
    tiny_model.build(top / "m-untied", tied=False)
    numbers(str(top / "m"), top / "one")
    on_two_ranks(numbers, top / "m", top / "two")
    return [(top / name, json.loads((top / name / "found.json").read_text())) for name in ("one", "two")]


def test_advantages_metrics_and_memory(both):
    (_, one), (_, two) = both
    # plays of four environments but the hung one, those of one as two samples each, and the designs
    assert len(one["advantages"]) == 16 - 1 + 4 + 5
    assert one["advantages"] == two["advantages"]
    assert one["metrics"] == pytest.approx(two["metrics"])
    assert one["memory"] == two["memory"] and len(one["memory"]) == 3


@pytest.mark.parametrize("case", CASES)
def test_gradients_loss_and_the_step(both, case):
    (folder1, one), (folder2, two) = both
    assert one[case][0] == pytest.approx(two[case][0], rel=1e-4, abs=1e-6)
    assert one[case][0]["loss/grad_norm"] > 0.01
    a, b = (torch.load(f / f"{case}.gradient.pt", weights_only=True) for f in (folder1, folder2))
    assert a.keys() == b.keys() and ("lm_head.weight" in a) == (case == "untied")
    for name in a:
        assert (a[name] - b[name]).abs().max() <= 1e-5 * a[name].abs().max(), name
    a, b = (load_file(f / case / "model.safetensors") for f in (folder1, folder2))
    assert a.keys() == b.keys()
    for name in a:     # Adam's first step is lr * sign(gradient): where the gradient is nothing, the sign is rounding
        assert ((a[name] - b[name]).abs() > 1e-4).float().mean() < 0.01, name


@pytest.mark.parametrize("case", CASES)
def test_a_sharded_checkpoint_continues_as_if_it_had_never_stopped(both, case):
    (_, one), (_, two) = both
    for _, _, went_on, resumed, equal in (one[case], two[case]):
        assert went_on == resumed and equal
    assert one[case][2] == pytest.approx(two[case][2], rel=1e-3)


def test_the_sampler_of_a_sharded_policy_has_the_stepped_weights(both):
    """Seeds and weights are those of the single process, so are the tokens."""
    for case in CASES:
        assert both[0][1][case][1] == both[1][1][case][1] and len(both[0][1][case][1][0]) == 8


def test_a_run_on_two_ranks_resumes_exactly(tmp_path):
    model = tiny_model.build(tmp_path / "m", short=True)
    on_two_ranks(two_trainings, model, tmp_path)
    assert len(list((tmp_path / "whole" / "checkpoint").glob("state-*.json"))) == 2
    metrics = test_resume.lines(tmp_path / "whole", "metrics.jsonl")
    assert [m["rollout"] for m in metrics] == [0, 1, 2, 3]
    assert all(m.get("loss/engine_mismatch", 0) < 0.1 for m in metrics)
    assert metrics[0]["designer/valid"] == pytest.approx(2 / 3) and any(m["loss/grad_norm"] > 0 for m in metrics)
    test_resume.assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_notice_to_one_rank_stops_both(tmp_path):
    model = tiny_model.build(tmp_path / "m", short=True)
    on_two_ranks(stopped_and_resumed, model, tmp_path)
    metrics = test_resume.lines(tmp_path / "parts", "metrics.jsonl")
    assert [m["rollout"] for m in metrics] == [0, 1, 2, 3]
    assert (tmp_path / "parts" / "checkpoint").resolve().name == "checkpoint-4"


@pytest.fixture()
def four_ranks(monkeypatch):
    monkeypatch.setattr(ranks, "world_size", lambda: 4)
    return lambda n: monkeypatch.setattr(ranks, "rank", lambda: n)


def test_share(four_ranks):
    shares = {}
    for tensor_parallel in (1, 2, 4):
        for n in range(4):
            four_ranks(n)
            shares[tensor_parallel, n] = "".join(ranks.share(list("abcdef"), tensor_parallel))
    assert [shares[1, n] for n in range(4)] == ["ae", "bf", "c", "d"]
    assert [shares[2, n] for n in range(4)] == ["ace", "", "bdf", ""]
    assert [shares[4, n] for n in range(4)] == ["abcdef", "", "", ""]


def test_deal_evens_out_the_tokens(four_ranks, monkeypatch):
    everyone = [grpo.Sample([0] * n, [], [], "agent", "g", 0.0) for n in range(1, 101)]
    monkeypatch.setattr(ranks, "gather", lambda items: everyone)
    dealt = []
    for n in range(4):
        four_ranks(n)
        dealt.append(ranks.deal(everyone[:3]))
    assert sorted(id(s) for part in dealt for s in part) == sorted(map(id, everyone))
    tokens = [sum(len(s.ids) for s in part) for part in dealt]
    assert max(tokens) - min(tokens) <= 100


if __name__ == "__main__":
    programs = {"numbers": numbers, "two_trainings": two_trainings, "stopped_and_resumed": stopped_and_resumed}
    programs[sys.argv[1]](*sys.argv[2:])
