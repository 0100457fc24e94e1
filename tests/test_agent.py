r"""agent.py: actions, and play() with the real tokenizers and the real sandbox, the sampler scripted.

The environment "counter" wants \boxed{up} three times; the seed is shown in its first observation.
"""
import random

import pytest

import agent
import sandbox
import tests.tiny_model as tiny_model
from agent import Job, extract_action, play
from designer import Environment
from machinery.engines import Reply

COUNTER = '''
class CounterEnv:
    def reset(self, seed=None):
        self.count = 0
        return f"seed {seed}, <|im_end|> count 0", {}
    def step(self, action):
        if action == r"\\boxed{crash}":
            raise ValueError("asked to")
        if action == r"\\boxed{hang}":
            while True: pass
        if action == r"\\boxed{stop}":
            return "stopped", 0.7, False, True, {}
        self.count += action == r"\\boxed{up}"
        won = self.count == 3
        return f"count {self.count}", 5.0 * won, won, False, {}
'''


@pytest.mark.parametrize("reply, action", [
    (r"\boxed{up}", r"\boxed{up}"),
    (r"first \boxed{a} but then \boxed{b}.", r"\boxed{b}"),
    (r"\boxed{ open {3} }", r"\boxed{open {3}}"),
    (r"\boxed{{'k': {1}}}", r"\boxed{{'k': {1}}}"),
    (r"\boxed {x}", r"\boxed{x}"),
    (r"\boxed{a} and \boxed{never closed", r"and \boxed{never closed"),
    (r"\boxed{outer \boxed{inner}}", r"\boxed{inner}"),
    (r"\boxed{}", r"\boxed{}"),
    ("  go north \n", "go north"),
    ("", ""),
    ("boxed{x}", "boxed{x}"),
    (r"<think>or \boxed{a}?</think> \boxed{b}", r"\boxed{b}"),
    (r"or \boxed{a}?</think> go north", "go north"),            # the prompt had opened the thought
    (r"\boxed{a}<think>or \boxed{b}?</think>", r"\boxed{a}"),
    (r"<think>or \boxed{a}", ""),
])
def test_extract_action(reply, action):
    assert extract_action(reply) == action


def test_extract_action_is_linear_on_hostile_text():
    assert extract_action("\\boxed{" * 20_000) == ("\\boxed{" * 20_000).strip()


class Script:
    """An engine that answers every turn by a function of what was said so far; one request at a time or all."""

    def __init__(self, policy, answer, streams=False):
        self.tokenizer, self.eos, self.answer, self.streams = policy.tokenizer, policy.eos_ids[0], answer, streams
        self.waiting, self.seen = [], []

    def submit(self, key, ids, max_new_tokens, temperature):
        self.waiting.append((key, list(ids), max_new_tokens))

    def busy(self):
        return bool(self.waiting)

    def done(self):
        assert not self.waiting

    def collect(self):
        batch = [self.waiting.pop(random.Random(len(self.seen)).randrange(len(self.waiting)))] if self.streams else \
            [self.waiting.pop(0) for _ in range(len(self.waiting))]
        replies = []
        for key, ids, limit in batch:
            self.seen.append((key, ids))
            text = self.answer(key, self.tokenizer.decode(ids))
            new = self.tokenizer.encode(text, add_special_tokens=False) + [self.eos]
            finished = len(new) <= limit
            new = new[:limit]
            replies.append((key, Reply(new, [-0.5] * len(new), text, finished)))
        return replies


@pytest.fixture(scope="module")
def box():
    with sandbox.Sandbox() as box:
        yield box


@pytest.fixture(scope="module", params=["chatml", "llama3", "hybrid"])
def policy(request, tmp_path_factory):
    template = {"chatml": tiny_model.CHATML, "llama3": tiny_model.LLAMA3, "hybrid": tiny_model.HYBRID}[request.param]
    folder = tiny_model.build(tmp_path_factory.mktemp("m"), "llama" if request.param == "llama3" else "qwen3", template)
    return tiny_model.policy(folder, context=2048)


ENVIRONMENT = Environment(COUNTER, "say up", "skill", "games", "", "counter")


def run(policy, box, answer, jobs=None, streams=False, **limits):
    policy.engine = Script(policy, answer, streams)
    options = dict(brief=True, temperature=1.0, max_turns=6, max_new_tokens=40, context=2048) | limits
    return play(policy, box, agent.GAMES, jobs or [Job(ENVIRONMENT, 7, False)], **options)


def test_the_mask_is_exactly_what_was_sampled_and_ids_are_never_tokenised_again(policy, box):
    said = []

    def answer(key, context):
        said.append(["think \\boxed{up}", "née \\boxed{down}", "\\boxed{up}", "\\boxed{up}"][len(said)])
        return said[-1]
    episode, = run(policy, box, answer)
    piece, = episode.pieces
    assert (episode.outcome, episode.ret) == ("terminated", 1.0)      # reward 5 is clamped
    end = policy.tokenizer.decode([policy.eos_ids[0]])
    sampled = [i for i, m in zip(piece.ids, piece.mask) if m]
    assert policy.tokenizer.decode(sampled) == "".join(text + end for text in said)
    assert len(piece.ids) == len(piece.mask) and len(piece.logprobs) == len(sampled)
    runs = "".join(map(str, piece.mask)).split("0")
    assert sum(bool(r) for r in runs) == 4                           # one trainable run per turn
    for (_, earlier), (_, later) in zip(policy.engine.seen, policy.engine.seen[1:]):
        assert later[:len(earlier)] == earlier                       # what the sampler saw only ever grows
    assert piece.ids[:len(policy.engine.seen[-1][1])] == policy.engine.seen[-1][1]
    shown = [{"role": r, "content": t.replace("<|im_end|>", "< |im_end|>") if policy.tokenizer.eos_token == "<|im_end|>"
              else t} for r, t in episode.turns[:-1]]
    whole = policy.tokenizer.apply_chat_template(shown, tokenize=False)
    empty = "<think>\n\n</think>\n\n"
    assert policy.tokenizer.decode(piece.ids).replace(empty, "") == whole.replace(empty, "").removesuffix("\n")


def test_control_tokens_in_an_observation_stay_text(policy, box):
    episode, = run(policy, box, lambda key, context: "\\boxed{stop}")
    piece, = episode.pieces
    prompt = piece.ids[:piece.mask.index(1)]
    clean = policy.prompt_ids([{"role": "user", "content": "seed 7, count 0"}])
    for token in policy.tokenizer.all_special_ids:
        assert prompt.count(token) == clean.count(token)
    assert "im_end" in policy.tokenizer.decode(prompt)


def test_both_arms_meet_the_same_instance_and_differ_by_the_hint(policy, box):
    jobs = [Job(ENVIRONMENT, seed, hinted) for seed in (3, 4) for hinted in (True, False)]
    episodes = run(policy, box, lambda key, context: "\\boxed{stop}", jobs)
    for hinted, unhinted in (episodes[:2], episodes[2:]):
        assert hinted.turns[0][1] == unhinted.turns[0][1] + "\nhint: say up"
    assert episodes[1].turns[0][1] == "seed 3, <|im_end|> count 0" != episodes[3].turns[0][1]
    full = agent.agent_messages("obs", {}, "say up", brief=False)[0][0]["content"]
    assert full.replace("\n\nHINT: say up", "") == agent.agent_messages("obs", {}, "", brief=False)[0][0]["content"]


@pytest.mark.parametrize("streams", [False, True])
def test_every_outcome(policy, box, streams):
    answers = {0: "\\boxed{stop}", 1: "\\boxed{crash}", 2: "no idea", 3: "x" * 100, 4: "\\boxed{up}"}
    jobs = [Job(ENVIRONMENT, seed, False) for seed in range(5)]
    jobs.append(Job(Environment("class XEnv:\n  pass", "", "s", "games", "", "broken"), 0, False))
    episodes = run(policy, box, lambda key, context: answers[key], jobs, streams)
    assert [e.outcome for e in episodes] == ["truncated", "env_error", "turn_limit", "context_limit", "terminated",
                                            "env_error"]
    assert [e.ret for e in episodes] == [0, 0, 0, 0, 1.0, 0]
    assert episodes[1].error.startswith("exception: ") and "asked to" in episodes[1].error
    assert len([r for r, _ in episodes[2].turns if r == "assistant"]) == 6
    piece, = episodes[3].pieces
    assert piece.mask[-1] == 1 and policy.eos_ids[0] not in piece.ids[-40:]   # cut, so not stepped
    assert len(episodes[3].turns) == 2
    assert episodes[5].pieces == []


def test_a_hanging_environment_ends_its_episode_only(policy, box, monkeypatch):
    monkeypatch.setattr(agent, "Game", lambda *a, **k: sandbox.Game(*a, timeout=0.3, **k))
    jobs = [Job(ENVIRONMENT, 0, False), Job(ENVIRONMENT, 1, False)]
    episodes = run(policy, box, lambda key, context: ["\\boxed{hang}", "\\boxed{up}"][key], jobs)
    assert [e.outcome for e in episodes] == ["env_error", "terminated"]
    assert episodes[0].error.startswith("timeout")


def test_the_context_budget_ends_an_episode(policy, box):
    episode, = run(policy, box, lambda key, context: "\\boxed{down}", context=200, max_turns=50)
    piece, = episode.pieces
    assert episode.outcome == "context_limit" and len(piece.ids) <= 200
    assert piece.mask[-1] == 1 and episode.turns[-1][0] == "user"   # what found no room is shown, not trained on
