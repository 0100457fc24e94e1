r"""Templates that cut the thoughts of earlier turns: what is sampled from, what is trained on, what it weighs.

The environment "counter" of test_agent.py wants \boxed{up} three times.
"""
import json
from types import SimpleNamespace

import pytest
import torch

import agent
import designer
import grpo
import sandbox
import tests.tiny_model as tiny_model
import train
from designer import Environment
from settings import tools
from tests import test_resume
from tests.test_agent import ENVIRONMENT, Script
from tests.test_grpo import gradients
from tests.test_tools import call, world
from train import parse

torch.set_num_threads(1)
ARGS = SimpleNamespace(agent_advantage="center", compact_filter=False)
HERMES_CUTS = tiny_model.HERMES.replace("'\n' + m.content }}", "'\n' + m.content.split('</think>')[-1] }}")
tiny_model.CONTROL[HERMES_CUTS] = tiny_model.CONTROL[tiny_model.HERMES]


@pytest.fixture(scope="module")
def box():
    with sandbox.Sandbox(prelude=tools.TOOLS.prelude) as box:
        yield box


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    templates = {"chatml": tiny_model.CHATML, "hybrid": tiny_model.HYBRID, "rewrites": tiny_model.REWRITES,
                 "tools": HERMES_CUTS}
    return {name: tiny_model.build(tmp_path_factory.mktemp(name) / "m", template=template)
            for name, template in templates.items()}


def run(policy, box, answer, jobs=None, **limits):
    policy.engine = Script(policy, answer)
    options = dict(brief=True, temperature=1.0, max_turns=6, max_new_tokens=400, context=2048) | limits
    return agent.play(policy, box, agent.GAMES, jobs or [agent.Job(ENVIRONMENT, 7, False)], **options)


@pytest.mark.parametrize("name, thinking, rewrites", [
    ("chatml", False, False), ("chatml", True, False), ("hybrid", False, False), ("hybrid", True, True),
    ("rewrites", False, True), ("rewrites", True, True), ("tools", False, False), ("tools", True, True)])
def test_what_rewrites_is_found_out_at_the_start(folders, name, thinking, rewrites):
    assert tiny_model.policy(folders[name], thinking=thinking).rewrites == rewrites


@pytest.mark.parametrize("name, opened", [("hybrid", ""), ("rewrites", "<think>\n")])
def test_every_turn_is_sampled_from_the_template_and_trained_on_as_it_was_sampled(folders, box, name, opened):
    policy = tiny_model.policy(folders[name], thinking=True, context=2048)
    encode = policy.tokenizer.encode
    thought = "" if opened else "<think>\n"
    replies = [thought + "I could \\boxed{down}\n</think>\n\n\\boxed{up}",
               thought + "née \\boxed{up}\n</think>\n\nLet me see.",
               thought + "so\n</think>\n\nOnce more: \\boxed{up}", "\\boxed{up}"]
    said = []

    def answer(key, context):
        said.append(replies[len(said)])
        return said[-1]
    episode, = run(policy, box, answer)
    assert (episode.outcome, episode.ret) == ("terminated", 1.0)   # the boxes in thoughts moved nothing
    ask = "<|im_end|>\n<|im_start|>assistant\n"
    shown = ["<|im_start|>user\nseed 7, < |im_end|> count 0" + ask,
             "\\boxed{up}<|im_end|>\n<|im_start|>user\ncount 1" + ask,
             "Let me see.<|im_end|>\n<|im_start|>user\ncount 1" + ask,
             "Once more: \\boxed{up}<|im_end|>\n<|im_start|>user\ncount 2" + ask]
    assert len(episode.pieces) == 4
    for turn, piece in enumerate(episode.pieces):
        prompt = encode("".join(shown[:turn + 1]) + opened, add_special_tokens=False)
        reply = encode(replies[turn] + "<|im_end|>", add_special_tokens=False)
        assert policy.engine.seen[turn][1] == prompt
        assert piece.ids == prompt + reply
        assert piece.mask == [0] * len(prompt) + [1] * len(reply)
        assert piece.logprobs == [-0.5] * len(reply)
    assert [text for role, text in episode.turns if role == "assistant"] == replies
    assert len(episode.logprobs) == sum(len(piece.logprobs) for piece in episode.pieces)


def test_tools_and_results_are_in_every_prompt(folders, box):
    policy = tiny_model.policy(folders["tools"], thinking=True, context=2048)
    policy.engine = Script(policy, lambda key, text: "<think>burn?</think>" + call("sell", thing="tea", count=1))
    job = agent.Job(world("fault_class_state"), 5, False)
    setting = tools.for_model(tools.TOOLS, policy)
    episode, = agent.play(policy, box, setting, [job], brief=False, temperature=1.0, max_turns=3,
                          max_new_tokens=200, context=2048)
    prompts = [policy.tokenizer.decode(piece.ids[:piece.mask.index(1)]) for piece in episode.pieces]
    assert len(prompts) == 3
    assert all('"name": "sell"' in prompt and "burn?" not in prompt for prompt in prompts)
    assert [prompt.count("<tool_response>") for prompt in prompts] == [0, 1, 2]
    assert [prompt.count("<tool_call>") for prompt in prompts] == [0, 1, 2]


def test_the_context_holds_what_is_shown_not_what_was_thought(folders, box):
    def answer(key, context):
        return "<think>" + "h" * 90 + "</think>\\boxed{down}"
    appended, = run(tiny_model.policy(folders["chatml"], thinking=True), box, answer, context=500)
    policy = tiny_model.policy(folders["hybrid"], thinking=True)
    shown, = run(policy, box, answer, context=500)
    assert (appended.outcome, shown.outcome) == ("context_limit", "turn_limit")
    assert len(shown.pieces) == 6 and len(shown.logprobs) == 6 * (7 + 90 + 8 + 12 + 1)
    short, = run(policy, box, answer, context=250, max_turns=50)
    replies = [role for role, _ in short.turns].count("assistant")
    assert short.outcome == "context_limit" and 1 <= len(short.pieces) == replies   # no piece without a reply
    assert all(len(piece.ids) <= 250 for piece in short.pieces)


def test_a_play_has_one_advantage_and_its_pieces_the_weight_of_one_play():
    def piece(trained):
        return agent.Piece([1] * (3 + trained), [0] * 3 + [1] * trained, [-1.0] * trained)
    environment = Environment("code", "", "skill", "games", "", "e")
    plays = [agent.Episode(environment, 0, False, [piece(2), piece(6)], ret=1.0, outcome="terminated"),
             agent.Episode(environment, 1, False, [piece(4)], ret=0.0, outcome="terminated"),
             agent.Episode(environment, 2, False, [piece(4), piece(1)], ret=0.5, outcome="turn_limit"),
             agent.Episode(environment, 3, False, [piece(4)], ret=1.0, outcome="env_error"),
             agent.Episode(environment, 4, False, [], outcome="context_limit")]
    samples = train.agent_samples(ARGS, agent.GAMES, None, plays)
    # the mean of three plays is 0.5; of five pieces it would be 0.6
    assert [s.advantage for s in samples] == [0.5, 0.5, -0.5, 0.0, 0.0]
    assert [s.share for s in samples] == pytest.approx([2 / 8, 6 / 8, 1, 4 / 5, 1 / 5])
    assert [sum(s.mask) for s in samples] == [2, 6, 4, 4, 1]
    assert grpo.zero_variance_groups(samples) == 0


@pytest.mark.parametrize("reduction", ["sample", "token", "constant"])
def test_the_gradient_does_not_depend_on_how_a_play_is_cut(folders, box, reduction):
    """Without a thought to be cut both ways show the same contexts, so they must learn the same: plays of one, of three
    and of six turns.
    """
    policy = tiny_model.policy(folders["chatml"], context=2048)
    answers = {0: "\\boxed{stop}", 1: "I go \\boxed{up}", 2: "Hm."}
    jobs = [agent.Job(ENVIRONMENT, seed, False) for seed in answers]
    found = []
    for policy.rewrites in (False, True):
        plays = run(policy, box, lambda key, context: answers[key], jobs)
        for play, ret in zip(plays, (0.7, 1.0, -1.0)):
            play.ret = ret
            for piece in play.pieces:
                piece.logprobs = [-6.0] * len(piece.logprobs)
        samples = train.agent_samples(ARGS, agent.GAMES, None, plays)
        gradient, metrics, _ = gradients(policy, samples, reduction=reduction)
        found.append((plays, samples, gradient, metrics))
    (whole, _, expected, facts), (cut, samples, gradient, its) = found
    assert [len(play.pieces) for play in whole] == [1, 1, 1] and [len(play.pieces) for play in cut] == [1, 3, 6]
    assert cut[0].pieces == whole[0].pieces
    assert all(a.pieces[-1].ids == b.pieces[0].ids for a, b in zip(cut, whole))   # the last turn was shown all of it

    def distance(other):
        return max((expected[n] - other[n]).abs().max().item() / expected[n].abs().max().item() for n in expected)
    assert distance(gradient) < 1e-4
    for name in ("loss/policy", "loss/grad_norm", "loss/entropy", "tokens/trained"):
        assert its[name] == pytest.approx(facts[name], rel=1e-4, abs=1e-7)
    for sample in samples:   # were every turn a play of its own, long plays would weigh more
        sample.share = 1.0
    other, _, _ = gradients(policy, samples, reduction=reduction)
    assert (distance(other) > 0.1) == (reduction != "token")


def test_a_run_that_thinks_ends_well(tmp_path, monkeypatch):
    model = tiny_model.build(tmp_path / "m", template=tiny_model.HYBRID, short=True)
    monkeypatch.setattr(designer, "design", test_resume.helped_design)
    batches, update = [], grpo.update

    def spy(policy, batch, **options):
        assert policy.rewrites
        batches.append(batch)
        return update(policy, batch, **options)
    monkeypatch.setattr(grpo, "update", spy)
    train.main(parse(["--model", model, "--thinking", *test_resume.FLAGS, "--n-envs", "6", "--rollouts", "2",
                      "--run-dir", str(tmp_path / "r")]))
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(line["loss/grad_norm"] > 0 for line in lines)
    agents = [[s for s in batch if s.role == "agent"] for batch in batches]
    designers = [s for s in batches[1] if s.role == "designer"]
    assert lines[0]["loss/engine_mismatch"] < 1e-4   # learner and sampler saw the same contexts
    for line, samples in zip(lines, agents):
        assert line["loss/skipped_steps"] == 0
        assert min(s.share for s in samples) < 0.9 and sum(s.share for s in samples) == pytest.approx(5 * 4)
        assert len(samples) > 5 * 4
        for group in {s.group for s in samples}:   # centred over plays
            assert sum(s.advantage * s.share for s in samples if s.group == group) == pytest.approx(0, abs=1e-6)
    for sample in designers:   # times 20 plays / programs x 2 rollouts, however many turns were played
        skill = [s.reward for s in designers if s.group == sample.group]
        assert sample.advantage == pytest.approx((sample.reward - sum(skill) / len(skill)) * 20 / len(designers) * 2)
    assert any(sample.advantage for sample in designers)
