"""--prompt short: its examples are sound games that can be won, and it reaches Designer, hint writer and Agent."""
import re

import pytest

import agent
from machinery import short_prompts
from machinery.records import Environment, Order
from sandbox import Game, Sandbox, validate
from train import parse


@pytest.fixture(scope="module")
def box():
    with Sandbox() as made:
        yield made


WINS = {  # what a player who has found everything out says last, read from what the game tells
    "Mathematical Reasoning": ["weigh full", "weigh empty"], "Pattern Recognition": ["watch", "watch"],
    "Optimization": ["ask tea", "ask salt", "ask silk"], "Spatial Reasoning": ["look"],
}


@pytest.mark.parametrize("skill", short_prompts.EXAMPLES)
def test_every_example_is_a_sound_game(box, skill):
    _, program = short_prompts.EXAMPLES[skill]
    assert validate(box, program).valid, validate(box, program)
    with Game(box, program) as env:
        opening, _ = env.reset(3)
        for action in WINS.get(skill, []):
            text, reward, over, _, _ = env.step("\\boxed{" + action + "}")
            assert text and not over and reward == 0.0


def test_an_example_is_won_by_what_it_tells(box):
    _, program = short_prompts.EXAMPLES["Mathematical Reasoning"]
    for seed in range(5):
        with Game(box, program) as env:
            env.reset(seed)
            full, empty = (int(re.search(r"\d+", env.step(action)[0])[0]) for action in ("weigh full", "weigh empty"))
            assert env.step(f"\\boxed{{answer {full - empty}}}")[1:3] == (1.0, True)


def test_orders_draw_different_examples_and_the_document_is_last():
    seen = set()
    for i in range(40):
        messages = short_prompts.design_messages(Order(f"n{i}", "Optimization", "", "word " * 50), False)
        assert [m["role"] for m in messages] == ["user", "assistant"] * 3 + ["user"]
        assert messages[-1]["content"].count("word") == short_prompts.WORDS
        seen |= {m["content"] for m in messages if m["role"] == "assistant"}
    assert len(seen) == 6


def test_the_flag_changes_all_three_prompts_and_the_laptop_keeps_its_own():
    environment = Environment("x = 1", "", "s", "games", "", "e")
    short = agent.GAMES.for_run(agent.GAMES, parse(["--model", "x", "--prompt", "short"]), None)
    full = agent.GAMES.for_run(agent.GAMES, parse(["--model", "x"]), None)
    brief = agent.GAMES.for_run(agent.GAMES, parse(["--prompt", "short"]), None)   # the laptop model knows one wording
    order = Order("n", "Optimization", "", "A text.")
    assert len(short.design_messages(order, False)) == 7 and len(full.design_messages(order, False)) == 1
    assert "Think step by step" in full.agent_messages("o", {}, "", False)[0][0]["content"]
    assert "Think step by step" not in short.agent_messages("o", {}, "h", False)[0][0]["content"]
    assert "at most 100 words" not in short.hint_messages(environment, False)[0]["content"]
    assert brief.design_messages is agent.GAMES.design_messages
