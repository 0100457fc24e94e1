"""The laptop-scale model: its programs are environments, its tokenizer loses nothing, its folder is a checkpoint."""
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from laptop import tiny
from machinery import source


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of a few steps: enough to see the machinery."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    patch.setattr(tiny, "STEPS", 3)
    patch.setattr(tiny, "POOL", 20)
    yield tiny.build(tiny.sample_texts(), quiet=True)
    patch.undo()


def play(code, seed, *actions):
    game = tiny.play_copy(code)
    observations, rewards, ended = [game.reset(seed)[0]], [], False
    for action in actions:
        observation, reward, ended, truncated, info = game.step(rf"\boxed{{{action}}}")
        observations.append(observation)
        rewards.append(reward)
    return observations, rewards, ended, game.answer


@pytest.mark.parametrize("skill", tiny.GAMES)
@pytest.mark.parametrize("rungs", [1, 4, 8])
def test_programs_are_games(skill, rungs):
    code = tiny.program(skill, "Fractions", rungs, 2)
    assert source.rung(code) == rungs and "class FractionsEnv" in code
    first = ["0"] if "effect" in tiny.GAMES[skill] else []
    for seed in range(20):
        solution = play(code, seed)[3]
        assert len(solution) == rungs + 1
        assert play(code, seed, *first, solution)[1:3] == ([0.0] * len(first) + [1.0], True)
        assert play(code, seed, *first, "x" + solution)[1][-1] == 0.0
        assert play(code, seed) == play(code, seed)
        for junk in ("", "0", "42", "A", "N", "yes", "left", "0123", "\n"):
            assert sum(play(code, seed, junk, junk)[1]) == 0.0
    assert len({play(code, seed)[3] for seed in range(20)}) > 1


def test_heldout_programs_are_high_rungs_of_every_skill():
    made = tiny.heldout(0, 60)
    assert made == tiny.heldout(0, 60) != tiny.heldout(1, 60)
    assert {skill for _, _, skill, _ in made} == set(tiny.GAMES)
    assert [rung for *_, rung in made] == [source.rung(code) for code, *_ in made]
    assert {rung for *_, rung in made} == {4, 5, 6, 7, 8}
    assert all(len(text.split()) <= 100 for _, text, _, _ in made)


def test_rung_of_other_programs_is_unknown():
    assert source.rung("class Other:\n    rungs = many\n") is None


def test_the_folder_is_an_ordinary_checkpoint(folder):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert 300_000 < sum(p.numel() for p in model.parameters()) < 1_000_000
    for text in ("any text\n\n\tat all: Ünïcödé 日本 🙂 0123456789", tiny.program("Optimization", "Waves", 5, 1)):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    code = tiny.fenced(tiny.program("Causal Inference", "Primes", 7, 3))
    assert len(tokenizer.encode(code, add_special_tokens=False)) < 50
    ids = tokenizer.encode(r"\boxed{2013.}", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == ["\\boxed{", "2", "0", "1", "3", ".}"]
    with torch.no_grad():
        assert torch.isfinite(model(torch.tensor([ids])).logits).all()


def test_the_chat_template_has_the_prefix_property(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    talk = [{"role": role, "content": text} for role, text in
            [("system", "s"), ("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four")]]
    whole = tokenizer.apply_chat_template(talk, tokenize=False)
    for n in range(1, len(talk) + 1):
        part = tokenizer.apply_chat_template(talk[:n], tokenize=False)
        assert whole.startswith(part)
        if talk[n - 1]["role"] == "assistant":
            assert part.endswith(tokenizer.eos_token)
            asked = tokenizer.apply_chat_template(talk[:n - 1], tokenize=False, add_generation_prompt=True)
            assert part.startswith(asked)


def test_training_and_chat_template_agree_on_the_ids(folder):
    tokenizer, rng = AutoTokenizer.from_pretrained(folder), random.Random(0)
    for _, make in tiny.DEMONSTRATIONS:
        for _ in range(20):
            turns = make(rng, tiny.sample_texts())
            talk = [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns)]
            ids, weights = tiny.encode(tokenizer, turns)
            assert ids == tokenizer.apply_chat_template(talk, return_dict=False)
            says = tokenizer.decode([i for i, w in zip(ids, weights) if w == 1])
            assert says == "".join(t + "<|end|>" for t in turns[1::2])


def test_the_cache_is_used_and_global_randomness_is_left_alone(folder, monkeypatch):
    state, python_state = torch.get_rng_state(), random.getstate()
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(folder).parent))
    monkeypatch.setattr(tiny, "warm_start", lambda *a: pytest.fail("built twice"))
    assert tiny.build(tiny.sample_texts(), quiet=True) == folder
    assert torch.equal(state, torch.get_rng_state()) and random.getstate() == python_state


def test_two_builds_give_the_same_weights(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tiny, "STEPS", 3)
    monkeypatch.setattr(tiny, "POOL", 20)
    state = torch.get_rng_state()
    again = tiny.build(tiny.sample_texts(), quiet=True)
    assert torch.equal(state, torch.get_rng_state())
    one, two = (AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (folder, again))
    assert all(torch.equal(one[name], two[name]) for name in one)
