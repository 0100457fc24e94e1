"""designer.py: replies to programs, hints, corpus, memory, files."""
import json
import random

import pytest

import designer
from designer import Order, Refused, Remembered, check_hint, extract_code
from machinery import files, source

PROGRAM = "class AEnv:\n    x = 1"


@pytest.mark.parametrize("reply", [
    f"Sure!\n```python\n{PROGRAM}\n```\nEnjoy.",
    f"```Python\n{PROGRAM}\n```",
    f"```py\n{PROGRAM}\n```",
    f"``` python3 \r\n{PROGRAM}\n  ```",
    f"text\n```python\n{PROGRAM}",                       # the closing fence was cut off
    f"```python\n{PROGRAM}\n```\n```python\nclass Other:\n    pass\n```",
    PROGRAM,                                             # no fence at all
])
def test_extract_code(reply):
    assert extract_code(reply) == PROGRAM


def test_backticks_inside_a_string_do_not_end_the_program():
    code = 'x = "a ``` b"\ny = 2'
    assert extract_code(f"```python\n{code}\n```") == code


@pytest.mark.parametrize("broken, repaired", [
    ('x = f"use {a b} now {y}"', 'x = f"use {{a b}} now {y}"'),
    ('x = f"{}"', 'x = f"{{}}"'),
    ('x = f"set {1, 2 of it} {n}"\nz = f"{two words}"', 'x = f"set {{1, 2 of it}} {n}"\nz = f"{{two words}}"'),
])
def test_brace_repair(broken, repaired):
    assert source.repair_braces(broken) == repaired
    compile(repaired, "repaired", "exec")


def test_brace_repair_leaves_what_it_cannot_mend():
    for code in ("def f(:\n  pass", "x = {", "\x00", "(" * 5000, "a" * 200_000):
        assert source.repair_braces(code) == code


def test_hint_rules():
    solutions = [["\\boxed{4821}"], ["north", "open door"]]
    assert check_hint(" add the digits ", solutions) == "add the digits"
    for hint, reason in (("", "hint: empty"), ("word " * 101, "hint: longer than 100 words"),
                         ("it is 48-21.", "hint: gives a whole solution away"),
                         ("go North, then Open Door", "hint: gives a whole solution away")):
        with pytest.raises(Refused, match=reason):
            check_hint(hint, solutions)
    assert check_hint("the first is 48", solutions)          # a part is no solution
    assert check_hint("say abc", [["abc"]])                  # three characters may turn up by chance


def test_prompt_holds_document_skill_memory_and_reason():
    good = Remembered("g", "s", "class GoodEnv: pass", "", 0.5, 0.0, 0.3, 0)
    easy = Remembered("e", "s", "class EasyEnv: pass", "", 0.95, 0.0, 0.0, 0)
    order = Order("n", "Logical Deduction", "Logical Deduction", "A pulley lifts.", [good], [easy])
    text = designer.design_messages(order, brief=False)[-1]["content"]
    for part in ("logical deduction", "A pulley lifts.", "GoodEnv", "too easy", "EasyEnv", "reset(self, seed"):
        assert part in text
    bare = designer.design_messages(Order("n", "Logical Deduction", "g", ""), brief=False)[-1]["content"]
    without = text.replace("Base it on one idea of this document:\n<document>\nA pulley lifts.\n</document>\n\n", "")
    assert without.startswith(bare)   # no corpus, no memory: nothing else changes
    brief = designer.design_messages(order, brief=True)[-1]["content"]
    assert brief == "design Logical Deduction from: A pulley lifts.\npast:\n```python\nclass GoodEnv: pass\n```"


def corpus_file(tmp_path, lines):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_corpus_draws_without_replacement_and_goes_on_from_a_number(tmp_path):
    path = corpus_file(tmp_path, [json.dumps({"text": f"document {i} has more words"}) for i in range(7)])
    corpus = designer.Corpus(path, words=2, seed=3)
    drawn = [corpus.draw() for _ in range(14)]
    assert sorted(drawn[:7]) == sorted(drawn[7:]) == [f"document {i}" for i in range(7)]
    assert drawn[:7] != drawn[7:]
    again = designer.Corpus(path, words=2, seed=3)
    again.drawn = 5
    assert [again.draw() for _ in range(9)] == drawn[5:]


def test_malformed_corpus_lines_are_named_skipped_and_counted(tmp_path, capsys):
    path = corpus_file(tmp_path, ['{"text": "good"}', "{not json", '{"other": 1}', '{"text": 5}', "", '{"text": ""}',
                                  '["list"]', "[" * 100_000])
    corpus = designer.Corpus(path, words=9)
    assert corpus.texts == ["good"] and len(corpus.skipped) == 5
    assert "5 malformed lines skipped" in capsys.readouterr().out
    assert f"{path}:2: JSONDecodeError" in corpus.skipped[0]


def test_missing_and_empty_corpus_say_what_to_do(tmp_path):
    with pytest.raises(SystemExit, match="cannot read the corpus .*--corpus FILE"):
        designer.Corpus(str(tmp_path / "no"), words=9)
    with pytest.raises(SystemExit, match="holds no document"):
        designer.Corpus(corpus_file(tmp_path, ["", "{}"]), words=9)


def record(i, win_rate, regret=0.0, skill="s"):
    return Remembered(f"e{i}", skill, f"class E{i}Env: pass", "", win_rate, -regret, regret, i)


def test_memory_examples_follow_the_rules():
    m = designer.EnvironmentMemory(capacity=30)
    m.add([record(i, 0.5, regret=i / 100) for i in range(20)] + [record(20, 0.9), record(21, 0.95), record(22, 0.05)])
    m.add([record(23, 0.5, 9.0, skill="other")])
    seen, avoided = set(), set()
    for i in range(200):
        good, bad = m.examples("s", random.Random(i))
        assert len(good) == 2 and len(bad) == 1
        seen |= {r.name for r in good}
        avoided |= {r.name for r in bad}
    assert seen == {f"e{i}" for i in range(10, 20)}   # the ten highest regrets with a win rate in [.15, .85]
    assert avoided == {"e21", "e22"}
    assert m.examples("unknown", random.Random(0)) == ([], [])


def test_memory_is_first_in_first_out_and_may_be_absent():
    m = designer.EnvironmentMemory(capacity=3)
    m.add([record(i, 0.5) for i in range(5)])
    assert [r.name for r in m.records] == ["e2", "e3", "e4"]
    none = designer.EnvironmentMemory(capacity=0)
    none.add([record(1, 0.5)])
    assert none.records == [] and none.examples("s", random.Random(0)) == ([], [])


def test_environment_files_round_trip_and_plain_programs_load(tmp_path):
    environment = designer.Environment('class AEnv:\n    s = "ü\\n"', "a hint\nof two lines", "s", "games", "doc", "e1")
    files.save_environment(tmp_path, environment, win_rate=0.5)
    assert files.load_environment(tmp_path / "e1.py") == designer.Environment(
        environment.code + "\n", environment.hint, "s", "games", "doc", "e1")
    (tmp_path / "plain.py").write_text("# a comment\nclass BEnv: pass\n")
    plain = files.load_environment(tmp_path / "plain.py")
    assert plain.code == "# a comment\nclass BEnv: pass\n" and plain.hint == "" and plain.name == "plain"
