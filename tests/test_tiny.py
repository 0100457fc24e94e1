"""The laptop-scale model: its programs are environments, its tokenizer loses nothing, its folder is a checkpoint."""
import ast
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from laptop import ladders, quizzes, texts, tiny, tool_worlds
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
    game = texts.play_copy(code)
    observations, rewards, ended = [game.reset(seed)[0]], [], False
    for action in actions:
        observation, reward, ended, truncated, info = game.step(rf"\boxed{{{action}}}")
        observations.append(observation)
        rewards.append(reward)
    return observations, rewards, ended, game.answer


@pytest.mark.parametrize("skill", ladders.TEMPLATES)
@pytest.mark.parametrize("rungs", [1, 4, 8])
def test_programs_are_games(skill, rungs):
    code = ladders.program(skill, "Fractions", rungs, 2)
    assert source.rung(code) == rungs and "class FractionsEnv" in code
    first = ["0"] if "effect" in ladders.TEMPLATES[skill] else []
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
    made = ladders.heldout_programs(0, 60)
    assert made == ladders.heldout_programs(0, 60) != ladders.heldout_programs(1, 60)
    assert {skill for _, _, skill, _ in made} == set(ladders.TEMPLATES)
    assert [rung for *_, rung in made] == [source.rung(code) for code, *_ in made]
    assert {rung for *_, rung in made} == {4, 5, 6, 7, 8}
    assert all(len(text.split()) <= 100 for _, text, _, _ in made)


def test_rung_of_other_programs_is_unknown():
    assert source.rung("class Other:\n    rungs = many\n") is None


def test_the_folder_is_an_ordinary_checkpoint(folder):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert 300_000 < sum(p.numel() for p in model.parameters()) < 1_000_000
    for text in ("any text\n\n\tat all: Ünïcödé 日本 🙂 0123456789", ladders.program("Optimization", "Waves", 5, 1)):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    code = texts.fenced(ladders.program("Causal Inference", "Primes", 7, 3))
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
    for _, make in ladders.DEMONSTRATIONS:
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


def test_a_new_model_is_made_where_its_code_changes_and_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny, "ROOT", tmp_path)
    (tmp_path / "world").mkdir()
    lesson, near, far = tmp_path / "lesson.py", tmp_path / "world" / "near.py", tmp_path / "far.py"
    lesson.write_text('"""A lesson."""\nimport json\nfrom world import near\n\nDEMONSTRATIONS = []\n')
    near.write_text("def f():\n    from far import x\n    return x\n")
    far.write_text("x = 1\n")
    module = SimpleNamespace(__file__=str(lesson))
    first = tiny.made_of(module)
    lesson.write_text('"""Other words."""\nimport json\nfrom world import near   # why\nDEMONSTRATIONS = []\n')
    near.write_text('def f():\n    """New."""\n\n    from far import x\n    return x\n')
    assert tiny.made_of(module) == first
    far.write_text("x = 2\n")
    assert tiny.made_of(module) != first


def test_the_laptop_models_are_made_of_their_lessons_and_what_these_import():
    def words(*names):
        return [ast.dump(ast.parse(name, mode="eval").body) for name in names]
    games, questions, worlds = ("".join(tiny.made_of(lessons)) for lessons in (ladders, quizzes, tool_worlds))
    assert all(word in games for word in words("orthogonal", "heldout_programs", "fill"))
    assert all(word in questions for word in words("reasoner_messages", "same_mathematics", "READERS"))
    assert all(word in worlds for word in words("FAMILIES", "call_of"))
    assert not any(word in games for word in words("reasoner_messages", "FAMILIES"))
