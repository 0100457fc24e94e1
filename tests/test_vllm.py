"""VLLMEngine against vLLM's CPU build, in a virtual environment of its own (see .ci/run); skipped where it is missing.

This file is also the program of two ranks that hold one sampler between them (tensor parallelism).
"""
import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import agent  # noqa: E402
import grpo  # noqa: E402
import tests.tiny_model as tiny_model  # noqa: E402
from designer import Environment  # noqa: E402
from machinery import ranks  # noqa: E402
from machinery.engines import VLLMEngine  # noqa: E402

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
QUESTION = [{"role": "user", "content": "how far is it?"}]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = tiny_model.build(tmp_path_factory.mktemp("vllm") / "m", short=True)
    return tiny_model.policy(folder, engine="vllm", lr=3e-3)


def samples(policy, share=lambda items: items):
    """Replies of up to 40 tokens to prompts of many lengths, half of them good, as the learner sees them."""
    prompts = [(i, policy.prompt_ids([{"role": "user", "content": "x" * (30 * i)}])) for i in range(12)]
    mine = share(prompts)
    replies = policy.sample([prompt for _, prompt in mine], 40, 0.7)
    return [grpo.Sample(prompt + r.ids, [0] * len(prompt) + [1] * len(r.ids), r.logprobs, "agent", "g", 0.0, (-1.0)**i)
            for (i, prompt), r in zip(mine, replies)]


def mismatch(policy, batch):
    return grpo.update(policy, batch, temperature=0.7)["loss/engine_mismatch"]


def test_log_probs_are_transformers_before_and_after_a_sync_and_the_alarm_rings_without(policy):
    worst = 0.0
    for s in (batch := samples(policy)):
        ids = torch.tensor([s.ids])
        logprobs, _ = policy.net(ids, torch.ones_like(ids), torch.tensor([s.mask]).bool(), 0.7)
        worst = max(worst, (logprobs - torch.tensor(s.logprobs)).abs().max().item())
    assert worst < 1e-3
    assert mismatch(policy, batch) < 1e-3       # and a step is taken, of which the sampler does not know
    assert mismatch(policy, samples(policy)) > 0.1
    policy.sync()
    assert mismatch(policy, samples(policy)) < 1e-3
    policy.sync()
    again = samples(policy)                     # the same prompts: their old keys and values must not be reused
    assert mismatch(policy, again) < 1e-3
    policy.sync()


def test_replies_look_like_those_of_the_other_engine(policy):
    prompt = policy.prompt_ids(QUESTION)
    for i in range(20):
        policy.engine.submit(("key", i), prompt, 2 + i, 1.0)
    replies = {}
    while policy.engine.busy():
        replies |= policy.engine.collect()
    assert sorted(replies) == [("key", i) for i in range(20)]
    for (_, i), reply in replies.items():
        ends = [j for j, token in enumerate(reply.ids) if token in policy.eos_ids]
        assert ends == ([len(reply.ids) - 1] if reply.finished else [])     # the end token is there, and only there
        assert len(reply.ids) == len(reply.logprobs) <= 2 + i and (reply.finished or len(reply.ids) == 2 + i)
        assert reply.text == policy.tokenizer.decode(reply.ids[:-1] if reply.finished else reply.ids)
        assert all(type(token) is int for token in reply.ids)
    assert {r.finished for r in replies.values()} == {True, False}


def test_a_reply_is_handed_over_while_others_decode(policy):
    forever = policy.engine.eos_ids, policy.engine.fixed["stop_token_ids"]
    policy.engine.eos_ids, policy.engine.fixed["stop_token_ids"] = [], []      # nothing ends before its limit
    try:
        prompt = policy.prompt_ids(QUESTION)
        policy.engine.submit("long", prompt, 40, 1.0)
        policy.engine.submit("short", prompt, 3, 1.0)
        steps = [policy.engine.collect() for _ in range(3)]
        assert [[key for key, _ in replies] for replies in steps] == [[], [], ["short"]]
        policy.engine.submit("next turn", prompt, 5, 1.0)
        steps = [policy.engine.collect() for _ in range(37)]
        assert [key for key, _ in steps[4]] == ["next turn"]
        assert [(key, len(r.ids)) for key, r in steps[36]] == [("long", 40)]
        assert sum(map(len, steps)) == 2 and not policy.engine.busy()
    finally:
        policy.engine.eos_ids, policy.engine.fixed["stop_token_ids"] = forever


def test_tokens_are_counted_before_a_reply_is_over(policy):
    forever = policy.engine.eos_ids, policy.engine.fixed["stop_token_ids"]
    policy.engine.eos_ids, policy.engine.fixed["stop_token_ids"] = [], []
    try:
        before, counts = policy.engine.sampled, []
        for limit in (2, 4):
            policy.engine.submit(limit, policy.prompt_ids(QUESTION), limit, 1.0)
        while policy.engine.busy():
            policy.engine.collect()
            counts.append(policy.engine.sampled - before)
        assert counts == [2, 4, 5, 6]
    finally:
        policy.engine.eos_ids, policy.engine.fixed["stop_token_ids"] = forever


def test_the_learner_keeps_its_threads(policy):
    had = torch.get_num_threads()
    assert had == int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(had + 1)   # vLLM puts a function in this place that does nothing
    assert torch.get_num_threads() == had + 1
    torch.set_num_threads(had)


def test_prompts_without_room_do_not_abort_the_others(policy):
    full, almost = [65] * policy.context, [65] * (policy.context - 1)
    refused, last, usual = policy.sample([full, almost, policy.prompt_ids(QUESTION)], 10, 1.0)
    assert refused.ids == [] and not refused.finished
    assert len(last.ids) == 1 and usual.ids


def test_its_randomness_is_the_runs_own(policy):
    prompts = [policy.prompt_ids(QUESTION)] * 6
    state = policy.rng.getstate()
    first = policy.sample(prompts, 20, 1.0)
    torch.manual_seed(1)
    random.seed(1)
    policy.rng.setstate(state)
    assert [r.ids for r in policy.sample(prompts, 20, 1.0)] == [r.ids for r in first]
    assert [r.ids for r in policy.sample(prompts, 20, 1.0)] != [r.ids for r in first]
    assert len({tuple(r.ids) for r in first}) == 6


class World:
    """Answers at once, or after a nap; three steps and it is over."""
    naps = {}

    def __init__(self, name):
        self.name, self.steps = name, 0

    def reset(self, seed):
        return f"{self.name} {seed}", {}

    def step(self, action):
        time.sleep(self.naps.get(self.name, 0))
        self.steps += 1
        return f"after {action!r}", 1.0, self.steps == 3, False, {}

    def close(self):
        pass


def test_play_streams_and_trains_on_what_was_sampled(policy):
    setting = SimpleNamespace(
        open=lambda box, environment: World(environment.name), agent_messages=agent.agent_messages,
        observation_messages=agent.observation_messages, parse_action=agent.extract_action)
    jobs = [agent.Job(Environment("", "", "", "games", "", f"e{i}"), i, False) for i in range(8)]
    World.naps = {"e0": 0.3, "e1": 0.3, "e2": 0.3}
    seen, events = {}, []
    submit, collect = policy.engine.submit, policy.engine.collect

    def spy_submit(key, ids, limit, temperature):
        seen.setdefault(key, []).append((list(ids), None))
        events.append(key)
        submit(key, ids, limit, temperature)

    def spy_collect():
        replies = collect()
        for key, reply in replies:
            seen[key][-1] = (seen[key][-1][0], reply)
            events.append(key)
        return replies
    policy.engine.submit, policy.engine.collect = spy_submit, spy_collect
    try:
        episodes = agent.play(policy, None, setting, jobs, brief=True, temperature=1.0, max_new_tokens=30, context=512)
    finally:
        del policy.engine.submit, policy.engine.collect
    for i, e in enumerate(episodes):
        piece, = e.pieces
        for ids, reply in seen[i]:      # turn by turn, what the sampler saw and said is a prefix of what is trained on
            assert piece.ids[:len(ids)] == ids and piece.ids[len(ids):len(ids) + len(reply.ids)] == reply.ids
            assert not piece.mask[len(ids) - 1] and all(piece.mask[len(ids):len(ids) + len(reply.ids)])
        said = [reply for _, reply in seen[i]]
        assert [token for token, m in zip(piece.ids, piece.mask) if m] == sum([r.ids for r in said], [])
        assert piece.logprobs == sum([r.logprobs for r in said], [])
        assert e.outcome == ("terminated" if len(said) == 3 and said[-1].finished else "context_limit")
    assert sum(e.outcome == "terminated" for e in episodes) >= 2
    turns = [[n for n, key in enumerate(events) if key == i] for i in (0, 1, 2)]   # of the sleepy worlds
    assert any(len(mine) >= 3 for mine in turns)
    for mine in turns:                  # between a reply to one of them and its next turn others went on
        assert len(mine) < 3 or any(key > 2 for key in events[mine[1]:mine[2]])


def test_sleep_wakes_the_weights_before_the_sync_and_the_cache_after(monkeypatch):
    calls = []

    class Fake:
        def __getattr__(self, name):
            return lambda *arguments, **options: calls.append((name, *arguments, *options.values()))
    engine = object.__new__(VLLMEngine)
    engine.llm, engine.can_sleep, engine.cuda = Fake(), True, True
    engine.sleep()
    engine.sync("weights")
    assert [c[:2] for c in calls] == [
        ("sleep", 1), ("wake_up", ["weights"]), ("collective_rpc", "reload_weights"), ("wake_up", ["kv_cache"]),
        ("reset_prefix_cache",)]


def test_experts_and_an_untied_head_follow_a_sync(tmp_path):
    folder = tiny_model.build(tmp_path / "m", "qwen3_moe", short=True, tied=False)
    done = subprocess.run([sys.executable, __file__, folder, "1"], capture_output=True, text=True, timeout=240,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]   # a process of its own: vLLM starts once in each
    assert "synced, stale, synced: ok" in done.stdout


def test_two_ranks_hold_one_sampler_between_them(tmp_path):
    folder = tiny_model.build(tmp_path / "m", short=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", __file__]
    command += [folder, "2"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "12 samples, all of rank 0; synced, stale, synced: ok" in done.stdout


def followed(folder, size):
    """Rank 0 plays, the others follow; all learn; the gathered weights go into every part of the sampler."""
    policy = tiny_model.policy(folder, engine="vllm", lr=3e-3, tensor_parallel=size)
    assert policy.engine.llm.get_world_size() == size
    batch = samples(policy, lambda items: ranks.share(items, size))
    counts = ranks.gather([len(batch)])
    found = [mismatch(policy, batch), mismatch(policy, samples(policy, lambda items: ranks.share(items, size)))]
    policy.sync()
    found.append(mismatch(policy, samples(policy, lambda items: ranks.share(items, size))))
    assert counts == [12, 0][:size] and found[0] < 1e-3 < 0.1 < found[1] and found[2] < 1e-3, (counts, found)
    if ranks.rank() == 0:
        print("12 samples, all of rank 0; synced, stale, synced: ok")


if __name__ == "__main__":
    followed(sys.argv[1], int(sys.argv[2]))
