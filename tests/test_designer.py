"""designer.py: replies to programs, hints, corpus, memory, files."""
import codecs
import importlib.util
import json
import random
import sys
import time
from types import SimpleNamespace

import pytest

import agent
import designer
from designer import Order, Refused, Remembered, check_hint, extract_code
from machinery import files, source
from machinery.documents import read_documents
from machinery.state import State
from sandbox import Sandbox
from settings import pools
from train import parse

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


DRAWN = 'class AEnv:\n    """Shows:\n    ```\n    # . #\n    ```\n    """\n    x = 1'


@pytest.mark.parametrize("reply, code", [
    (f"```\n{PROGRAM}\n```", PROGRAM),                                     # fences that say nothing
    (f"~~~\n{PROGRAM}\n~~~", PROGRAM),
    (f"The plan:\n```\nstep one, step two\n```\nso\n```\n{PROGRAM}\n```", PROGRAM),
    (f"The board:\n```\nwall\n```\n```\n{PROGRAM}\n```", PROGRAM),
    (f"```\nenv = AEnv()\n```\nplays this:\n```python\n{PROGRAM}\n```", PROGRAM),
    (f"~~~python\n{PROGRAM}\n~~~", PROGRAM),                              # other fences
    (f"~~~~ py\n{PROGRAM}\n    y = ~~~2\n~~~~", PROGRAM + "\n    y = ~~~2"),
    (f"````markdown\n```python\n{PROGRAM}\n```\n````", PROGRAM),
    (f'```python title="x"\n{PROGRAM}\n```', PROGRAM),                     # what stands behind a fence
    (f"```{{.python .numberLines}}\n{PROGRAM}\n```", PROGRAM),
    (f"```python:src/board.py\n{PROGRAM}\n```", PROGRAM),
    (f"```board.py\n{PROGRAM}\n```", PROGRAM),
    (f"```language-python\n{PROGRAM}\n```", PROGRAM),
    (f"```text\n```\n```pycon\n>>> 1\n```\n```python\n{PROGRAM}\n```", PROGRAM),
    (f"```python\n{DRAWN}\n```", DRAWN),                                  # fences inside the program
    (DRAWN, DRAWN),
    (f"```python\n{PROGRAM}  # not a ```\n    y = 2\n```", PROGRAM + "  # not a ```\n    y = 2"),
    ("```python\n" + DRAWN.replace("1", 'f"{a b}"') + "\n```", DRAWN.replace("1", 'f"{{a b}}"')),
    ("```python\nx = \"\"\"a\n```\nno:\n```python\ny = \"\"\"b\"\"\"\n```", 'x = """a'),   # a quote is missing
    (f"Sure!\r\n```python\r\n{PROGRAM}\r\n```\r\nEnjoy.\r\n".replace(":\n", ":\r\n"), PROGRAM),
    (f"\ufeff{PROGRAM}\n", PROGRAM),
    (f"```python\n{PROGRAM}\n```Enjoy the game.\n```text\nend\n```", PROGRAM),   # glued to a fence
    (f"```python\n{PROGRAM}``` Enjoy.", PROGRAM),
    (f"The program: ```python\n{PROGRAM}\n```", PROGRAM),
    (f"```python\n{PROGRAM}\n```python\nclass Other: pass\n```", PROGRAM),
    (f"1. This:\n   ```python\n   {PROGRAM.replace(chr(10), chr(10) + '   ')}\n   ```", PROGRAM),   # in a list
    (f"Write ```x``` in code.\n```python\n{PROGRAM}\n```", PROGRAM),
])
def test_fences_of_all_kinds(reply, code):
    assert extract_code(reply) == code


def test_no_reply_takes_long_to_read():
    start = time.monotonic()
    for piece in ("```python\n", "'''\n```\n", "```\n(\n", "~~~\n", "```", "\\"):
        extract_code("```python\n\"" + piece * (20_000 // len(piece)))
    assert time.monotonic() - start < 10


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
    corpus = designer.Corpus(read_documents(path), words=2, seed=3)
    drawn = [corpus.draw() for _ in range(14)]
    assert sorted(drawn[:7]) == sorted(drawn[7:]) == [f"document {i}" for i in range(7)]
    assert drawn[:7] != drawn[7:]
    again = designer.Corpus(read_documents(path), words=2, seed=3)
    again.drawn = 5
    assert [again.draw() for _ in range(9)] == drawn[5:]


def test_malformed_corpus_lines_are_named_skipped_and_counted(tmp_path, capsys):
    path = corpus_file(tmp_path, ['{"text": "good"}', "{not json", '{"other": 1}', '{"text": 5}', "", '{"text": ""}',
                                  '["list"]', "[" * 100_000])
    assert read_documents(path) == ["good"]
    assert f"5 malformed lines skipped, first {path}:2: JSONDecodeError" in capsys.readouterr().out


@pytest.mark.parametrize("data", [
    codecs.BOM_UTF8 + b'{"text": "first"}\n{"text": "second"}\n',
    codecs.BOM_UTF8 + b'{"text": "first"}\r\n{"text": "second"}\r\n',
    b'{"text": "first"}\n' + codecs.BOM_UTF8 + b'{"text": "second"}',          # two files put together
    codecs.BOM_UTF8 * 2 + b'\n{"text": "first"}\n \t\n{"text": "second"}',
    '\ufeff{"text": "first"}\n{"text": "second"}'.encode("utf-16-le"),
    '\ufeff{"text": "first"}\n{"text": "second"}'.encode("utf-16-be"),
    '\ufeff{"text": "first"}\n{"text": "second"}'.encode("utf-32-le"),
])
def test_a_byte_order_mark_loses_no_document(tmp_path, capsys, data):
    (tmp_path / "c.jsonl").write_bytes(data)
    assert read_documents(str(tmp_path / "c.jsonl")) == ["first", "second"]
    assert "skipped" not in capsys.readouterr().out


@pytest.mark.parametrize("data, problem", [
    (b'[\n  {"text": "a"}\n]', ""), (b"just prose", "c.jsonl:1: JSONDecodeError"), (b"", "wants JSON lines"),
    (b"\n\n[1, 2]\n", "c.jsonl:3: a JSON object is wanted, not '[1, 2]'"), (b"\x1f\x8b\x08\0", "c.jsonl:1: "),
    (b'{"title": "a"}', 'c.jsonl:1: there is no "text"'), (b"title,text\na,b\n", "c.jsonl:1: JSONDecodeError")])
def test_a_corpus_that_is_no_json_lines_is_told_of_in_one_line(tmp_path, capsys, data, problem):
    (tmp_path / "c.jsonl").write_bytes(data)
    if not problem:   # of a list over several lines, some may be documents: they are used, the others counted
        assert read_documents(str(tmp_path / "c.jsonl")) == ["a"]
        assert "2 malformed lines skipped" in capsys.readouterr().out
        return
    with pytest.raises(SystemExit) as refusal:
        read_documents(str(tmp_path / "c.jsonl"))
    assert problem in str(refusal.value) and "\n" not in str(refusal.value) and str(refusal.value).isprintable()


def test_missing_and_empty_corpus_say_what_to_do(tmp_path):
    with pytest.raises(SystemExit, match="cannot read the corpus .*--corpus wants JSON lines"):
        read_documents(str(tmp_path / "no"))
    with pytest.raises(SystemExit, match="holds no document"):
        read_documents(corpus_file(tmp_path, ["", "{}"]))


def test_a_folder_of_texts_is_a_corpus(tmp_path):
    (tmp_path / "in").mkdir()
    files = {"b.txt": "second", "a.md": "\ufefffirst", "in/c.md": "third", "d.txt": " \n", "e.py": "x"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_documents(str(tmp_path)) == ["first", "second", "third"]
    (tmp_path / "in" / "c.md").unlink()
    with pytest.raises(SystemExit, match="holds no document: --corpus wants a folder of .txt or .md files"):
        read_documents(str(tmp_path / "in"))


def test_a_data_set_is_a_corpus_and_a_pool(tmp_path, monkeypatch):
    """Laid out as the hub's; `datasets` itself where it is installed, else what it returns."""
    (tmp_path / "data").mkdir()
    rows = [{"text": "first", "code": GAME, "skill": "s"}, {"text": "", "code": GAME}, {"text": "second", "code": GAME}]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if importlib.util.find_spec("datasets") is None:
        fake = SimpleNamespace(load_dataset=lambda where: {"train": rows})
        monkeypatch.setitem(sys.modules, "datasets", fake)
    assert read_documents(str(tmp_path)) == ["first", "second"]
    pool = pools.read_pool(str(tmp_path))
    assert [e.code for e in pool] == [GAME] * 3 and pool[0].skill == "s" and len({e.name for e in pool}) == 3


def test_a_hub_id_without_package_or_connection_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SystemExit, match="pip install datasets"):
        read_documents("spade-rl/SPADE-Grounding-Corpus-Games-15K")

    def load_dataset(where):
        raise ConnectionError("Couldn't reach it\nat all")
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(SystemExit, match="cannot read the data set .*Couldn't reach it") as stop:
        pools.read_pool("spade-rl/SPADE-Environment-Pool-GPT5.5-Games")
    assert "\n" not in str(stop.value)


GAME = """class AEnv:
    def reset(self, seed=None):
        return "o", {}
    def step(self, action):
        return "o", 0.0, True, False, {}
"""


def test_a_pool_is_judged_as_sandbox_check_judges(tmp_path):
    (tmp_path / "good.py").write_text(GAME)
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("class AEnv(\n")
    args = parse(["--model", "x", "--pool", str(tmp_path), "--hint-plays", "1"])
    with Sandbox() as box:
        designs = pools.given_set(args, box, agent.GAMES, State(args))
    reasons = {d.name[6:]: d.reason.split(":")[0] for d in designs}
    assert reasons == {"good": "", "none": "class", "broken": "syntax"}
    assert [d.environment is None for d in designs] == [bool(d.reason) for d in designs]
    (tmp_path / "good.py").unlink()
    pools.read_pool.cache_clear()
    with Sandbox() as box, pytest.raises(SystemExit, match="nothing of it can be played .* sandbox.py --check"):
        pools.given_set(args, box, agent.GAMES, State(args))


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


@pytest.mark.parametrize("before, encoding", [
    ("\ufeff", "utf-8"), ("\ufeff", "utf-16-le"), ("\ufeff", "utf-16-be"), ("\ufeff\n", "utf-8"), ("\n", "utf-8")])
def test_a_byte_order_mark_loses_no_hint(tmp_path, before, encoding):
    environment = designer.Environment("class AEnv:\n    x = 1", "a hint", "s", "tools", "doc", "e1")
    files.save_environment(tmp_path, environment)
    path = tmp_path / "e1.py"
    path.write_bytes((before + path.read_text().replace("\n", "\r\n")).encode(encoding))
    assert files.load_environment(path) == designer.Environment("class AEnv:\n    x = 1\n", "a hint", "s", "tools",
                                                                "doc", "e1")
    path.write_bytes((before + "class BEnv: pass\n").encode(encoding))
    assert files.load_environment(path).code.strip() == "class BEnv: pass"


@pytest.mark.parametrize("damaged", [
    '# {"hint": "cut of', '# {"hint": "a" "skill": "s"}\nclass A: pass', '# {"hint": null}\nclass A: pass',
    '# {"skill": "s", "hint": ["a"]}\n', '#{ "setting": "tools", }\n', '# {"hint": ' + "[" * 100_000])
def test_damaged_facts_stop_with_file_and_line(tmp_path, damaged):
    (tmp_path / "e.py").write_text(damaged)
    with pytest.raises(SystemExit) as refusal:
        files.load_environment(tmp_path / "e.py")
    assert str(refusal.value).startswith(f"{tmp_path / 'e.py'}:1: ") and "\n" not in str(refusal.value)


@pytest.mark.parametrize("comment", ['# {x: 1} is it', '# {"a": 1}', "# -*- coding: utf-8 -*-", "# {", '# ["hint"]'])
def test_a_comment_is_no_damage(tmp_path, comment):
    (tmp_path / "e.py").write_text(comment + "\nclass A: pass\n")
    assert files.load_environment(tmp_path / "e.py").code == comment + "\nclass A: pass\n"


def test_what_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "folder.py").mkdir()
    for name in ("folder.py", "absent.py"):
        with pytest.raises(SystemExit, match=f"cannot read the environment .*{name}: "):
            files.load_environment(tmp_path / name)
