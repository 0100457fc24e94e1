"""Benchmarks that lose nothing: tags, columns of data sets, and templates that want no system message."""
import argparse
import json
import random
import re

import pytest
import tiny_model
from test_evaluate import score, write_rows  # noqa: F401  (a fixture)
from test_evaluate_agents import acebench  # noqa: F401  (a fixture)

import evaluate
from benchmarks import agents, columns, problems, rules

# --- <answer> ---


@pytest.mark.parametrize("reply, answer", [
    (r"<answer>\boxed{-4}</answer>", "-4"), ("<answer>$-4$</answer>", "-4"), ("<answer>**-4**</answer>", "-4"),
    (r"<answer>**$\boxed{-4}$**</answer>", "-4"), (r"<answer> \(-4\) </answer>", "-4"),
    ("<answer>$$-4$$</answer>", "-4"),
    ("<answer>`-4`</answer>", "-4"), (r"<answer>It is \boxed{-4}.</answer>", "-4"),
    ("<Answer>-4</Answer>", "-4"), ("<ANSWER>-4</answer>", "-4"), ("< answer >-4</ answer>", "-4"),
    ("<answer>-4</answer> as you want it inside <answer></answer>", "-4"),
    ("<answer>-4</answer><answer> </answer>", "-4"),
    (r"<answer>-4</answer><answer>\boxed{}</answer>", "-4"), ("<answer>7</answer> no, <answer>-4</answer>", "-4"),
    ("I use <answer> tags: <answer>-4</answer>", "-4"), (r"\boxed{7}, <answer>-4</answer>", "-4"),
    (r"so \boxed{-4}", "-4"),
    ("<answer>7</answer> no, <answer>-4", ""), (r"\boxed{7} <answer>-4", ""), ("none", ""),
    ("<answer>2**3</answer>", "2**3"), ("<answer>$5 and $6</answer>", "$5 and $6"),
    ("<answer>a *b* c</answer>", "a *b* c"),
    ("<answer>1 2\n3 4</answer>", "1 2\n3 4"), ("<answer>**1** or **2**</answer>", "**1** or **2**")])
def test_what_stands_in_answer_tags(reply, answer):
    assert problems.tagged(reply) == answer


# --- columns ---

def asked(row, name="math500"):
    return columns.question(name, row, random.Random(0))


@pytest.mark.parametrize("row", [
    {"problem": "p?", "expected_answer": "5"}, {"question": "p?", "ground_truth": 5}, {"prompt": "p?", "gold": "5"},
    {"Problem": "p?", "Answer": "5"}, {"QUESTION": "p?", "Final Answer": "5"}, {"problem_statement": "p?",
    "label": "5"},
    {"Question": "p?", "correct-answer": "5"}, {"query": "p?", "reference_answer": "5"}, {"problem": "p?",
    "gold_answer": "5"},
    {"problem": "p?", "solution": r"We add. So \boxed{5}."}, {"problem": "p?", "Solution": r"So \fbox{5}."},
    {"problem": "p?", "solution": "We add.\n#### 5"}, {"problem": "p?", "solution": "5"}, {"problem": "p?",
    "answer": 5},
    {"problem": "p?", "answer": "", "solution": r"\boxed{5}"}, {"problem": "p?", "answer": None, "target": "5"},
    {"problem": "p?", "answer": "  ", "gold": "5"}, {"problem": "p?", "final_answer": ["5"]},
    {"problem": "p?", "answer": "a model's guess, 6", "expected_answer": "5"}])
def test_columns_of_other_names(row):
    question = asked(row)
    assert question["question"].startswith("p?\n") and question["answer"] == "5" and question["kind"] == "math"


def test_zero_is_an_answer():
    assert asked({"problem": "p?", "answer": 0})["answer"] == "0"
    assert asked({"problem": "p?", "solution": r"\frac{1}{2} + x"})["answer"] == r"\frac{1}{2} + x"


@pytest.mark.parametrize("row, seen", [
    ({"problem": "p?", "solution": "We add five and get the sum."}, "no answer in its columns problem, solution"),
    ({"problem": "p?", "notes": "5"}, "no answer in its columns problem, notes"),
    ({"problem": "p?", "answer": " "}, "no answer"),
    ({"problem": "p?", "answer": None}, "no answer"),
    ({"text": "p?", "answer": "5"}, "no question in its columns text, answer"),
    ({"problem": "  ", "answer": "5"}, "no question"),
    ({"question": "p?", "options": ["x", "y"], "answer": "z"}, "no answer"),
    ({"question": "p?", "options": ["x", "y"], "answer": "C"}, "no answer"),
    ({"question": "p?", "options": "A) x B) y", "answer": "A"}, "options are no list"),
    ({"question": "p?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "A"}, "no answer")])
def test_a_row_without_question_or_answer_stops_its_suite_alone(row, seen, score, tmp_path):  # noqa: F811
    write_rows(tmp_path, "math500", [{"problem": "p?", "answer": "5"}, row])
    write_rows(tmp_path, "amc", [{"problem": "p?", "answer": "5"}])
    with pytest.raises(SystemExit):
        score(lambda messages, tools: r"\boxed{5}", "math500,amc")
    line, = (line for line in score.shown.splitlines() if line.startswith("Skipped: math500"))
    assert str(tmp_path / "math500.jsonl") in line and "row 2" in line and seen in line
    assert re.search(r"amc +1.000", score.shown)


@pytest.mark.parametrize("row", [
    {"options": ["x", "y", "z"], "answer": "B"}, {"choices": ["x", "y", "z"], "answer": 1}, {"Options": ["x", "y", "z"],
    "Answer": "(B)"}, {"options": ["x", "y", "z"], "gold": "y"}, {"options": {"A": "x", "B": "y",
    "C": "z"}, "answer": "B"},
    {"options": ["x", "y", "z"], "answer": "y", "answer_index": 1}, {"Correct Answer": "y", "Incorrect Answer 1": "x",
                                                                    "Incorrect Answer 2": "z"}])
def test_options_in_many_forms(row):
    question = asked({"question": "p?"} | row, "mmlu-pro")
    assert question["kind"] == "mcq" and question["options"][question["answer"]] == "y"
    right = question["answer"]
    wrong = next(letter for letter in question["options"] if letter != right)
    for reply, score_ in ((right, True), (f"{right}) y", True), (f"{right}) x", False), (wrong, False)):
        assert problems.is_right(None, question, f"\\boxed{{{reply}}}") is score_


def test_a_program_without_tests_is_no_question():
    with pytest.raises(columns.Missing, match="no public_test_cases"):
        asked({"question_content": "p?"}, "livecodebench")
    with pytest.raises(columns.Missing, match="no public_test_cases"):
        asked({"question_content": "p?", "public_test_cases": "[]", "private_test_cases": "[]"}, "livecodebench")


# --- templates that want no system message ---

LOOP = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
END = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
TEMPLATES = {
    "gemma": "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
             "{% for m in messages %}" + LOOP + "{% endfor %}" + END,
    "mistral": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
               "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
               + LOOP + "{% endfor %}" + END,
    "roles": "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}" + LOOP + "{% else %}"
             "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}" + END,
    "undefined": "{% for m in messages %}{{ {'user': '', 'assistant': ''}[m.role] + '' }}"
                 + LOOP + "{% endfor %}" + END,
    "silent": "{% for m in messages if m.role != 'system' %}" + LOOP + "{% endfor %}" + END,
}


def policy_with(template, folder):
    policy = tiny_model.policy(tiny_model.build(folder), context=2048)
    policy.tokenizer.chat_template = template
    return policy


@pytest.mark.parametrize("family", [*TEMPLATES, "chatml"])
def test_rules_reach_every_template(family, tmp_path, acebench):  # noqa: F811
    policy = policy_with(TEMPLATES.get(family, tiny_model.CHATML), tmp_path / "m")
    _, setting, *_ = agents.acebench(argparse.Namespace(data=str(acebench), user_model=""))
    adapted = rules.for_model(policy, setting)
    messages, _ = adapted.agent_messages("the task", {"rules": "the rules"}, "", False)
    assert [m["role"] for m in messages] == (["system", "user"] if family == "chatml" else ["user"])
    shown = policy.tokenizer.decode(policy.prompt_ids(messages))
    assert shown.index("the rules") < shown.index("the task")
    assert rules.for_model(policy, problems.PLAIN) is problems.PLAIN


def test_acebench_is_played_by_a_template_without_system(acebench, tmp_path, monkeypatch, capsys):  # noqa: F811
    policy = policy_with(TEMPLATES["gemma"], tmp_path / "m")
    monkeypatch.setattr(evaluate, "load_model", lambda *_: policy)
    out = tmp_path / "o.jsonl"
    evaluate.main(["--model", "tiny", "--suites", "acebench-agent",
    "--data", str(acebench), "--out", str(out), "--samples",
                   "1", "--max-tokens", "4", "--context", "2048"])
    results = [r for r in evaluate.read_results(out) if "score" in r]
    assert len(results) == 2 and results[0]["turns"][0][0] == "user" and "Be brief" not in results[0]["turns"][0][1]
    assert "You call functions" in results[0]["turns"][0][1] and "Skipped" not in capsys.readouterr().out


def test_a_template_that_fails_skips_its_suite_alone(tmp_path, monkeypatch, capsys):
    picky = ("{% for m in messages %}{% if 'number 1' in m.content %}{{ raise_exception('no numbers') }}{% endif %}"
             + LOOP + "{% endfor %}" + END)
    policy = policy_with(picky, tmp_path / "m")
    monkeypatch.setattr(evaluate, "load_model", lambda *_: policy)
    write_rows(tmp_path, "math500", [{"problem": f"number {i}", "answer": "5"} for i in range(3)])
    write_rows(tmp_path, "amc", [{"problem": "p?", "answer": "5"}] * 2)
    out = tmp_path / "o.jsonl"
    with pytest.raises(SystemExit):
        evaluate.main(["--model", "tiny", "--suites", "math500,amc", "--data", str(tmp_path), "--out", str(out),
                       "--max-tokens", "4", "--context", "2048"])
    assert "Skipped: math500 cannot be played: the chat template says: no numbers" in capsys.readouterr().out
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sum(line["suite"] == "amc" and "score" in line for line in lines) == 2 and not policy.engine.busy()
