"""evaluate.py and evaluate_problems.py: every suite through the whole path, with models that are scripts."""
import base64
import contextlib
import http.server
import json
import pickle
import random
import re
import threading
import time
import zlib

import numpy as np
import pytest
import tiny_model

import evaluate
import sandbox
from benchmarks import agents, problems, programs, scores
from designer import Environment
from machinery.endpoint import Endpoint
from machinery.engines import Reply
from machinery.files import save_environment
from study import figures


class Scripted(Endpoint):
    """A model that is a function of (messages, tools); None means that the reply was cut off."""

    def __init__(self, function):
        super().__init__("http://nowhere#script")
        self.function, self.asked = function, 0

    def answer(self, ids, max_new_tokens, temperature):
        self.asked += 1
        text = self.function(ids[1:], ids[0]["tools"])
        said = {"role": "assistant", "content": text or "because"}
        return Reply([said], [0.0], said["content"], text is not None)


@pytest.fixture
def score(tmp_path, monkeypatch, capsys):
    """score(function, "suite --flag ...") -> results lines; score.out is the file, score.shown what was printed."""
    def score(function, flags, out="results.jsonl"):
        score.model = function if isinstance(function, Endpoint) else Scripted(function)
        monkeypatch.setattr(evaluate, "load_model", lambda *_: score.model)
        score.out = tmp_path / out
        try:
            evaluate.main(["--model", "script", "--data", str(tmp_path), "--out", str(score.out),
                           "--suites", *flags.split()])
        finally:
            score.shown = capsys.readouterr().out
        return [r for r in evaluate.read_results(score.out) if "score" in r]
    return score


def write_rows(tmp_path, name, rows):
    (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def by_number(*replies):
    """Answers the question that has number i in it with replies[i]."""
    return lambda messages, tools: replies[int(re.search(r"number (\d+)", messages[-1]["content"])[1])]


MATHS = [{"problem": "number 0", "answer": 12}, {"problem": "number 1", "answer": "\\frac{1}{2}"},
         {"problem": "number 2", "answer": "7"}, {"problem": "number 3", "answer": "7"},
         {"problem": "number 4", "answer": "7"}, {"problem": "number 5", "answer": "7"}]
REPLIES = ["so \\boxed{12}.", "it is \\boxed{0.5}", "\\boxed{8}", "it is 7", None, "\\boxed{3}, no: \\boxed{7}"]
EXPECTED = [1, 1, 0, 0, 0, 1]   # right, right in another form, wrong, no box, cut off, two boxes


@pytest.mark.parametrize("name", ["aime24", "aime25", "aime26", "math500", "gsm8k", "amc", "minerva", "olympiad"])
def test_mathematics(name, score, tmp_path):
    rows = [dict(row) for row in MATHS]
    if name == "gsm8k":
        rows = [{"question": row["problem"], "answer": f"We add. 1,000 things.\n#### {row['answer']}"} for row in rows]
    if name == "olympiad":
        rows = [{"question": row["problem"], "final_answer": [str(row["answer"])]} for row in rows]
    if name == "minerva":
        rows = [{"problem": row["problem"], "solution": f"thus \\boxed{{{row['answer']}}}"} for row in rows]
    if name == "aime26":
        rows = [{"prompt": [{"role": "user", "content": row["problem"]}], "label": str(row["answer"])} for row in rows]
    write_rows(tmp_path, name, rows)
    results = score(by_number(*REPLIES), f"{name} --samples 2")
    assert {r["item"]: r["score"] for r in results} == {f"{name}-{i:05d}": s for i, s in enumerate(EXPECTED)}
    assert len(results) == 12 and {r["verdict"] for r in results} == {"terminated", "context_limit"}
    assert re.search(rf"{name} +0.500 +0.224 .* 6 +12 +2 +0\n", score.shown)   # s.e. = 0.5477 / sqrt(6)


def test_choices_are_shuffled_by_the_seed(score, tmp_path):
    texts = ["a swan", "a crow", "a wren", "a kite"]
    write_rows(tmp_path, "gpqa-diamond", [{"Question": f"bird {i}?", "Correct Answer": "a wren", **{
        f"Incorrect Answer {k}": t for k, t in enumerate(texts[:2] + texts[3:], 1)}} for i in range(30)])
    wide = [f"bird {i}" for i in range(9)] + ["a wren"]
    write_rows(tmp_path, "mmlu-pro", [{"question": "which?", "options": wide, "answer": "J", "answer_index": 9}] * 30)
    write_rows(tmp_path, "supergpqa", [
        {"question": "?", "options": texts, "answer": "a wren", "answer_letter": "C"}] * 9)
    letters = []

    def knows(messages, tools):
        letters.append(re.search(r"([A-J])\) a wren", messages[0]["content"])[1])
        return rf"not \boxed{{A}} but \boxed{{\text{{{letters[-1]}}}}}"
    for suite in ("gpqa-diamond", "mmlu-pro", "supergpqa"):
        assert {r["score"] for r in score(knows, suite)} == {1.0}
        assert len(set(letters)) > 2 or suite == "supergpqa"
        letters.clear()
    first = score(knows, "mmlu-pro --seed 1 --samples 1", "a.jsonl") and sorted(letters)
    letters.clear()
    assert first != (score(knows, "mmlu-pro --seed 2 --samples 1", "b.jsonl") and sorted(letters))
    guesses = score(lambda messages, tools: "\\boxed{B}", "gpqa-diamond --samples 1", "c.jsonl")
    assert 0 < sum(r["score"] for r in guesses) < 20
    wrong = ("\\boxed{E}", "\\boxed{BC}", "\\boxed{}", "C", "\\boxed{Because}", "\\boxed{I think A}")
    for n, reply in enumerate(wrong):
        results = score(lambda messages, tools, reply=reply: reply, "supergpqa", f"{n}.jsonl")
        assert {r["score"] for r in results} == {0.0}, reply


def test_exact_match(score, tmp_path):
    write_rows(tmp_path, "bbeh", [{"task": "x", "input": f"number {i}", "target": "The Red House"} for i in range(4)])
    replies = ("\\boxed{the red house.}", "\\boxed{house}", "red house", "\\boxed{x} \\boxed{\\text{the red house}}")
    results = score(by_number(*replies), "bbeh")
    assert [r["score"] for r in sorted(results, key=lambda r: r["item"])] == [1, 0, 0, 1]


@pytest.mark.parametrize("gold, answer, same", [
    ("(A)", "a", True), ("5", "5.0", True), ("1, 2", "1,2", True), ("x, y", "[x, y]", True), ("it's", "its", True),
    ("yes", "Yes?", True), ("(A)", "(B)", False), ("(A) x", "A x", False), ("5", "50", False), ("nan", "x", False)])
def test_answers_of_bbeh(gold, answer, same):
    assert (problems.plain_answer(gold) == problems.plain_answer(answer)) is same


def test_a_letter_is_believed_before_a_text():
    def right(**row):
        row |= {"question": "?", "options": ["AB", "O", "A", "B"]}
        asked = problems.question("mmlu-pro", row, random.Random(3))
        return re.search(rf"{asked['answer']}\) (\w+)", asked["question"])[1]
    assert right(answer="A", answer_index=0) == right(answer="A", answer_letter="A") == "AB"
    assert right(answer="A") == "A" and right(answer="D") == "B"


# --- files of rows ---

ROWS = '{"problem": "number 0", "answer": "1"}\n{"problem": "number 1", "answer": "2"}\n'


@pytest.mark.parametrize("data", [
    b"\xef\xbb\xbf" + ROWS.encode(), ROWS.replace("\n", "\r\n").encode(), ("\ufeff" + ROWS).encode("utf-16-le"),
    ("\ufeff" + ROWS).encode("utf-16-be"), b"\n\xef\xbb\xbf" + ROWS.replace("\n", "\n\n").encode()])
def test_rows_behind_a_byte_order_mark(tmp_path, data):
    (tmp_path / "rows.jsonl").write_bytes(data)
    assert [row["answer"] for row in problems.read(tmp_path / "rows.jsonl")] == ["1", "2"]


@pytest.mark.parametrize("data, problem", [
    (ROWS.encode() + b'{"problem": "cut o', ":3: JSONDecodeError"), (b"problem,answer\na,b\n", ":1: JSONDecodeError"),
    (b"[\n" + ROWS.encode() + b"]", ":1: JSONDecodeError"), (b"[" * 100_000, ":1: RecursionError"),
    (b"\n" + ROWS.encode() + b"5\n", ":4: a JSON object is wanted, not '5'"), (b"PAR1\0\0\x1b[2J", ":1: "),
    (b"", "has an empty file"), (None, "cannot be read")])
def test_a_file_that_is_no_json_lines_skips_its_suite_in_one_line(score, tmp_path, data, problem):
    if data is None:
        (tmp_path / "aime24.jsonl").mkdir()
    else:
        (tmp_path / "aime24.jsonl").write_bytes(data)
    with pytest.raises(SystemExit):
        score(by_number("1", "2"), "aime24")
    line, = [line for line in score.shown.splitlines() if line.startswith("Skipped: ")]
    assert str(tmp_path / "aime24.jsonl") in line and problem in line and line.isprintable()


# --- LiveCodeBench ---

GOOD = """import sys
def main():
    n = int(input())
    rest = sys.stdin.readline().split() + sys.stdin.read().split()
    print(n + sum(map(int, rest)))
if __name__ == "__main__":
    main()
    sys.exit(0)"""
PROGRAMS = {
    "pieces": (GOOD, 1), "open": ("print(sum(map(int, open(0).read().split())))", 1),
    "buffer": ("import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())), '.0', sep='')", 1),
    "typing": ("def f(x: List[int]) -> int: return reduce(lambda a, b: a + b, x)\n"
               "print(f(map(int, open(0).read().split())))", 1),
    "builtin pow": ("print(pow(5, 1, 7) + 1)", 1), "sys": ("print(sum(map(int, sys.stdin.read().split())))", 1),
    "deep": ("def f(n): return n and 1 + f(n - 1)\nprint(f(20_000) - 19_994)", 1),
    "wrong": ("print(5)", 0), "silent": ("pass", 0), "loop": ("while True: pass", 0), "words": ("print('six')", 0),
    "memory": ("x = [0] * 10\nwhile True: x += x", 0), "output": ("while True: print('x' * 10_000)", 0),
    "crash": ("import os\nos._exit(0)", 0),
    "escape": ("import os\nos.close(os.open(r'ESCAPED', os.O_CREAT | os.O_WRONLY))\nprint(6)", 0),
    "cheat": ("import sys\nsys.stdout = type('S', (), {'getvalue': lambda s: '6'})()", 1),   # it did print 6
}


def test_programs_run_in_the_sandbox_only(score, tmp_path):
    rows, texts = [], {}
    hidden = [{"input": "1\n2 2\n1\n", "output": "6\n", "testtype": "stdin"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(hidden)))).decode()
    for i, (code, _) in enumerate(PROGRAMS.values()):
        rows.append({"question_content": f"number {i}", "starter_code": "", "metadata": "{}",
                     "public_test_cases": json.dumps(hidden), "private_test_cases": packed})
        code = code.replace("ESCAPED", str(tmp_path / "escaped"))
        texts[i] = f"```python\nprint(6)\n```\nno, better:\n```python\n{code}\n```"
    write_rows(tmp_path, "livecodebench", rows)
    results = score(by_number(*texts.values()), "livecodebench")
    names = list(PROGRAMS)
    assert {names[int(r["item"][-5:])]: r["score"] for r in results} == {n: s for n, (_, s) in PROGRAMS.items()}
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("reply", [
    "```python\nprint(6)\n```", "```python3\nprint(6)\n```", "```Python\nprint(6)\n```", "```\nprint(6)\n```",
    "```text\n1 2\n```\nHere is the code:\n```python\nprint(6)\n```", "```cpp\nint x;\n```\n```python\nprint(6)\n```",
    "```python\nprint(6)\n```\nIt prints\n```text\n6\n```", "Solution: ```python\nprint(6)\n```",
    "```python\nprint(6)```", "</think>```python\nprint(6)\n```", "- so:\n  ```python\nprint(6)\n  ```",
    "```python\ns = '''a ``` b'''\nprint(6)\n```",
    "```python\nprint(1)\n```\nBetter:\n```\nprint(6)\n```", "```python\nprint(6)\n```\nIt prints\n```\n6\n```",
    "~~~python\nprint(6)\n~~~", '```python title="x"\nprint(6)\n```', "```{.python}\nprint(6)\n```",
    "```python:sum.py\nprint(6)\n```", "```python\ns = '''\n```\n'''\nprint(6)\n```",
    "```python\r\nprint(6)\r\n```\r\n",
    "```python\nprint(6)\n```It prints 6.", "```python\nprint(6)``` prints 6.",
    "```python\nprint(1)\n```\n```python\nprint(6)",
    "```python\nprint(1\n\nNo, wait:\n```python\nprint(6)\n```",
    "```python\ns = '''\n```\nA quote is missing:\n```python\nprint(6)\n```"])
def test_the_last_python_block_is_the_program(reply):
    row = {"answer": None, "tests": [{"input": "", "output": "6"}]}
    with sandbox.Sandbox() as box:
        assert programs.is_right(box, row, reply) and not programs.is_right(box, row, reply.replace("6", "5"))


def test_functions_and_pickles(score, tmp_path):
    class Bomb:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'pwned')!r}, 'w')",)
    tests = json.dumps([{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}])
    row = {"question_content": "number 0", "starter_code": "class Solution:\n    def add(self, xs, y): ...",
           "metadata": json.dumps({"func_name": "add"}), "public_test_cases": tests, "private_test_cases": "[]"}
    write_rows(tmp_path, "livecodebench", [row])
    right = ("```python\nclass Solution:\n    def add(self, xs: List[int], y: int):\n"
             "        return tuple(x + y for x in xs)\n```")
    assert score(by_number(right), "livecodebench")[0]["score"] == 1
    chatty = right.replace("        return", "        print('debug', xs)\n        return")
    assert score(by_number(chatty), "livecodebench", "d.jsonl")[0]["score"] == 1
    deep = "```python\ndef add(xs, y): print('[' * 50_000)\n```"
    assert score(by_number(deep), "livecodebench", "e.jsonl")[0]["score"] == 0
    assert score(by_number(right.replace("+", "-")), "livecodebench", "b.jsonl")[0]["score"] == 0
    guarded = right.replace("\n```", "\nif __name__ == '__main__':\n    input()\n    1 / 0\n```")
    assert score(by_number(guarded), "livecodebench", "f.jsonl")[0]["score"] == 1
    loose = "```python\ndef add(xs, y): return [4, 5]\n```"
    assert score(by_number(loose), "livecodebench", "c.jsonl")[0]["score"] == 1
    assert "starter" not in score.shown and "class Solution" in evaluate.read_results(score.out)[1]["turns"][0][1]
    bomb = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises((StopIteration, ValueError)):
        programs.tests(bomb)
    assert not (tmp_path / "pwned").exists()


def test_numbers_are_compared_exactly_and_words_as_they_are():
    with sandbox.Sandbox() as box:
        def same(printed, output):
            return programs.passes(box, f"print({printed!r})", None, {"input": "", "output": output})
        assert not same("1e999999999", "1") and not same("nan", "nan nan") and not same("1e5 x", "100000 y")
        assert same("0.50 1e3", "0.5 1000") and same(" a b \nc", "a b\nc\n") and same("YES\n0.50", "YES\n0.5")
        assert not same("a  b", "a b")   # words are compared as text, line by line
        assert not same("50000000000000001", "50000000000000000") and not same("a b c", "a b\nc") and not same("", "1")
        assert programs.passes(box, "print('ab' * 60_000)", None, {"input": "x" * 300_000, "output": "ab" * 60_000})


# --- packages; what they need is not installed everywhere ---

@pytest.mark.parametrize("name, rate, at_least", [("reasoning-gym", 1.0, 70), ("rlve", 1.0, 70)])
def test_reference_answers_pass(name, rate, at_least, score, monkeypatch):
    """The sandboxed verifier takes the package's own answer, and nothing else."""
    pytest.importorskip({"reasoning-gym": "reasoning_gym", "rlve": "Gym.parameter_controllers"}[name],
                        reason=f"{name} needs its package: pip install reasoning-gym rlve-gym networkx")
    items, setting, source, _ = getattr(problems, name.replace("-", "_"))(evaluate.argparse.Namespace())
    random.Random(1).shuffle(items)
    judged = wrongly = 0
    with sandbox.Sandbox(prelude=source) as box:
        for item in items[:120]:
            with setting.open(box, item) as env:
                assert env.reset(0)[0].endswith("inside <answer></answer>.")
                reference, won, over, _, _ = env.step("")
                assert (won, over) == (0.0, True)
                reference = reference.removeprefix("reference: ")
                if reference != "None" and item.name != "PolyaModel":   # whose reference is in another format
                    judged += 1
                    reply = f"<answer>1</answer> or <answer>{reference}</answer>"
                    assert env.step(setting.parse_action(reply))[1] == 1, item.name
                    with contextlib.suppress(sandbox.EnvError):   # some verifiers break on it
                        wrongly += env.step("no idea at all")[1]
    assert judged >= at_least and wrongly < judged / 20


def test_a_package_suite_from_end_to_end(score):
    pytest.importorskip("Gym.parameter_controllers", reason="pip install rlve-gym networkx")
    results = score(lambda messages, tools: "<answer>no idea</answer>", "rlve --limit 5")
    assert [r["score"] for r in results] == [0] * 5 and all(r["turns"][0][0] == "user" for r in results)


def test_gem_games_are_played(score):
    pytest.importorskip("gem", reason="pip install pandas; pip install --no-deps gem-llm")

    def bisect(messages, tools):
        if "Guess The Number" not in messages[0]["content"]:
            return "\\boxed{nonsense}"
        low, high = map(int, re.search(r"between (\d+) and (\d+)", messages[0]["content"]).groups())
        for hint, guess in re.findall(r"is (higher|lower) than (\d+)", "".join(m["content"] for m in messages)):
            low, high = (int(guess) + 1, high) if hint == "higher" else (low, int(guess) - 1)
        return f"first \\boxed{{0}}, then \\boxed{{{(low + high) // 2}}}"
    results = score(bisect, "gem --samples 1")
    rates = {r["item"]: r["score"] for r in results}
    assert len(results) == 18 and len(rates) == 18 and not any(r["score"] is None for r in results)
    assert {r["category"] for r in results} == {"easy", "hard"}
    assert rates["GuessTheNumber-v0-easy"] == rates["GuessTheNumber-v0-hard"] == 1 and sum(rates.values()) == 2


# --- the loop ---

GAME = """class DoorEnv:
    def reset(self, seed):
        self.door = seed % 2
        return f"Which door, 0 or 1? A sign says {self.door}.", {}
    def step(self, action):
        return "", float(action == "\\\\boxed{%d}" % self.door), True, False, {}"""


@pytest.fixture
def pool(tmp_path):
    for name in ("a", "b", "c"):
        save_environment(tmp_path / "pool", Environment(GAME, "Read the sign.", name.upper(), "games", "", name))
    (tmp_path / "pool" / "d.py").write_text(
        "class BrokenEnv:\n    def reset(self, seed): 1 / 0\n    def step(self, action): 1 / 0\n")
    return f"--pool {tmp_path / 'pool'}"


def reads_the_sign(messages, tools):
    return f"\\boxed{{{re.search('says (.)', messages[0]['content'])[1]}}}"


def test_held_out_environments(score, pool):
    results = score(reads_the_sign, f"heldout {pool} --samples 4")
    assert [r["score"] for r in results if r["item"] != "d"] == [1.0] * 12
    assert {r["score"] for r in results if r["item"] == "d"} == {None}   # not the model's fault: counted, not averaged
    # of a skill with a single program there is no standard error
    assert re.search(r"heldout +1.000 +nan +\[0.438, 1.000\] +3 +16 +0 +4\n", score.shown)
    table = score.shown.partition("\n\n")[2]
    score(reads_the_sign, f"heldout {pool} --samples 4")   # asks again for what failed, which counts once
    assert score.shown.partition("\n\n")[2] == table and score.model.asked == 0
    with pytest.raises(SystemExit, match="other settings"):   # another pool has items of the same names
        score(reads_the_sign, "heldout --samples 4")
    always = score(lambda messages, tools: "\\boxed{0}", f"heldout {pool} --samples 4", "b.jsonl")
    assert np.mean([r["score"] for r in always if r["item"] != "d"]) == 0.5   # the seed is the sample
    assert score(lambda messages, tools: "no", "heldout --samples 1 --limit 6", "c.jsonl")[5]["score"] == 0


def test_interrupted_and_rerun(score, tmp_path):
    write_rows(tmp_path, "math500", [{"problem": f"{i} times 3?", "answer": str(3 * i)} for i in range(40)])

    def mostly(messages, tools):
        i = int(messages[0]["content"].split()[0])
        return f"\\boxed{{{3 * i if i % 3 else 1}}}"
    whole = score(mostly, "math500 --samples 2", "whole.jsonl")
    table = score.shown.partition("\n\n")[2].replace("whole.jsonl", "")

    class Stops(Scripted):
        def answer(self, *arguments):
            time.sleep(0.01)
            if self.asked == 50:
                raise KeyboardInterrupt
            return super().answer(*arguments)
    stops = Stops(mostly)
    stops.pool._max_workers = 1
    with pytest.raises(KeyboardInterrupt):
        score(stops, "math500 --samples 2", "parts.jsonl")
    saved = score.out.read_text()
    assert 10 < saved.count("\n") <= 51
    score.out.write_text(saved + '{"suite": "math500", "item": "math5')   # killed in the middle of a line
    parts = score(mostly, "math500 --samples 2", "parts.jsonl")
    assert score.model.asked == 81 - saved.count("\n")   # one line is the settings
    assert score.shown.partition("\n\n")[2].replace("parts.jsonl", "") == table
    assert sorted(map(str, parts)) == sorted(map(str, whole))
    assert score(mostly, "math500 --samples 2", "parts.jsonl") == parts and score.model.asked == 0
    assert len(score(mostly, "math500 --samples 3 --limit 5", "parts.jsonl")) == 85   # more of some
    with pytest.raises(SystemExit, match="other settings"):
        score(mostly, "math500 --temperature 0.2", "parts.jsonl")


def test_missing_data_is_told_and_the_others_run(score, tmp_path, pool, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(SystemExit) as stopped:
        score(reads_the_sign, f"amc,tau2,acebench-agent,heldout {pool} --samples 1")
    assert stopped.value.code == 1 and len(evaluate.read_results(score.out)) == 5
    for said in ("amc needs DIR/amc.jsonl with --data DIR", "pip install datasets", "git clone https://github.com/ACEBench",
                 "tau2 needs", "heldout     "):
        assert said in score.shown
    with pytest.raises(SystemExit):
        score(reads_the_sign, "nonsense")
    monkeypatch.setattr(problems.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        score(reads_the_sign, "reasoning-gym,rlve,gem,bfcl-multi-turn,tau2", "b.jsonl")
    for package in ("reasoning-gym", "rlve-gym networkx", "--no-deps gem-llm", "--no-deps bfcl-eval", "git+https"):
        assert f"pip install {package}" in score.shown


def test_a_local_model_from_end_to_end(tmp_path, pool, monkeypatch, capsys):
    folder = tiny_model.build(tmp_path / "m")
    evaluate.main(["--model", folder, "--suites", "heldout", *pool.split(), "--samples", "2", "--max-tokens", "4",
                   "--context", "2048", "--out", str(tmp_path / "o.jsonl"), "--top-k", "1", "--engine", "transformers"])
    results = evaluate.read_results(tmp_path / "o.jsonl")[1:]
    replies = {r["item"]: r["turns"][1][1] for r in results if r["sample"] == 0 and r["score"] is not None}
    assert len(results) == 8 and len(set(replies.values())) == 1   # greedy: the same prompt, the same reply
    assert "'top_k': 1" in capsys.readouterr().out


def test_a_run_is_asked_as_it_was_trained(tmp_path):
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "args.json").write_text(json.dumps({"brief": True, "max_tokens": 7, "context": 99}))
    args = evaluate.argparse.Namespace(seed=0, temperature=None, samples=3)
    chosen = evaluate.sampling_of(args, evaluate.trained_with(str(tmp_path / "run")), "math500")
    assert chosen["brief"] and chosen["max_tokens"] == 7 and chosen["context"] == 99 and chosen["samples"] == 3
    paper = evaluate.sampling_of(args, evaluate.trained_with("Qwen3-4B"), "aime25")
    assert (paper["temperature"], paper["top_p"], paper["top_k"], paper["max_tokens"]) == (1.0, 0.95, 20, 32768)
    assert evaluate.trained_with("tiny")["max_tokens"] == evaluate.flags.TINY["max_tokens"]


# --- servers ---

@pytest.fixture
def server():
    """A chat server; server.reply(order) -> message, or a status and a text. server.orders is what was asked."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.orders.append((self.path, self.headers["Authorization"], order))
            message = served.reply(order)
            status, text = message if isinstance(message, tuple) else (200, "")
            body = text.encode() or json.dumps({
                "id": "1", "object": "chat.completion", "created": 1, "model": "some-model",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.orders, served.url = [], f"http://127.0.0.1:{served.server_port}/v1#some-model"
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield served
    served.shutdown()


def test_a_server_is_a_model(server, tmp_path, pool, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server.reply = lambda order: {"role": "assistant", "content": reads_the_sign(order["messages"], None)}
    evaluate.main(["--model", server.url, "--suites", "heldout", *pool.split(), "--samples", "2", "--top-k", "1",
                   "--out", str(tmp_path / "o.jsonl")])
    results = evaluate.read_results(tmp_path / "o.jsonl")[1:]
    assert sum(r["score"] or 0 for r in results) == 6
    path, key, order = server.orders[0]
    assert path == "/v1/chat/completions" and key == "Bearer secret" and order["model"] == "some-model"
    assert order["temperature"] == 0 and "top_k" not in order and "tools" not in order
    with pytest.raises(SystemExit, match="#NAME"):
        Endpoint("http://127.0.0.1/v1")


def test_one_temperature_only_and_no_room_left(server):
    """A reasoning model that refuses temperature 0, too; a conversation that no longer fits ends, the others go on."""
    def reply(order):
        if "temperature" in order:
            return 400, "unsupported value: temperature"
        return (400, "maximum context length is 99") if "long" in order["messages"][0]["content"] else {"content": "hi"}
    server.reply = reply
    model = Endpoint(server.url)
    model.fixed.update(top_k=1)
    prompts = [model.prompt_ids([{"role": "user", "content": text}]) for text in ("long", "short")]
    long, short = model.sample(prompts, 10, 0.5)
    assert (long.text, long.finished, short.text, short.finished) == ("", False, "hi", True)


def test_a_limit_that_does_not_fit_behind_the_prompt_is_left_to_the_server(server):
    server.reply = lambda order: ((400, "maximum context length is 99: 50 + 60 tokens were asked for")
                                  if "max_completion_tokens" in order else {"content": "hi"})
    model = Endpoint(server.url)
    (reply,) = model.sample([model.prompt_ids([{"role": "user", "content": "?"}])], 60, 0.5)
    assert (reply.text, reply.finished) == ("hi", True)


def test_after_a_refusal_nothing_more_is_asked(server):
    server.reply = lambda order: time.sleep(0.05) or (403, "no")
    model = Endpoint(server.url)
    with pytest.raises(evaluate.Unreachable, match="403"):
        model.sample([model.prompt_ids([{"role": "user", "content": "?"}])] * 200, 10, 0.5)
    model.pool.shutdown()
    assert len(server.orders) < 60


def test_native_calls_of_a_server(server):
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": i})}}
             for i in range(2)]
    server.reply = lambda order: {"role": "assistant", "content": None, "tool_calls": calls}
    model = Endpoint(server.url)
    ids = model.prompt_ids([{"role": "user", "content": "go"}], [{"type": "function"}])
    reply = model.answer(ids, 10, 0.5)
    assert agents.toolcalls.parse_action(reply.text) == json.dumps(
        [{"name": "f", "arguments": {"x": i}} for i in range(2)])
    model.answer(ids + reply.ids + model.turn_ids([{"role": "tool", "content": "r0"}, {"role": "tool", "content": "r1"},
                                                   {"role": "tool", "content": "r2"}]), 10, 0.5)
    sent = server.orders[1][2]
    assert [m.get("tool_call_id") for m in sent["messages"]] == [None, None, "c0", "c1", None]
    assert [m["role"] for m in sent["messages"]] == ["user", "assistant", "tool", "tool", "user"]
    assert sent["messages"][1]["tool_calls"] == calls and sent["tools"] == [{"type": "function"}]
    model.answer(ids + reply.ids + model.turn_ids([{"role": "user", "content": "well?"}]), 10, 0.5)
    sent = server.orders[2][2]     # a call that was not made is answered all the same: servers insist
    assert [m.get("tool_call_id") for m in sent["messages"]] == [None, None, "c0", "c1", None]
    assert [m["role"] for m in sent["messages"]] == ["user", "assistant", "tool", "tool", "user"]
    model.answer(ids + reply.ids + model.turn_ids([{"role": "tool", "content": "r0"}]), 10, 0.5)
    assert [m.get("tool_call_id") for m in server.orders[3][2]["messages"]] == [None, None, "c0", "c1"]


@pytest.mark.parametrize("arguments", ["", None, "{}"])
def test_native_calls_without_arguments_and_without_content(server, arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    server.reply = lambda order: {"role": "assistant", "tool_calls": [call]}
    reply = Endpoint(server.url).answer([{"tools": [{}]}, {"role": "user", "content": "go"}], 10, 0.5)
    assert json.loads(agents.toolcalls.parse_action(reply.text)) == [{"name": "f", "arguments": {}}]


# --- numbers ---

def draw(rng, p, items, samples, spread=0.0):
    """Made-up scores of a model with accuracy p, whose items differ in difficulty if `spread` is not 0."""
    rates = np.clip(p + spread * rng.choice([-1, 1], items), 0, 1)
    return {i: list((rng.random(samples) < rate).astype(float)) for i, rate in enumerate(rates)}


def test_the_interval_covers_the_mean_of_unequal_categories():
    rng, inside = np.random.default_rng(0), 0
    for _ in range(400):
        *_, low, high = scores.estimate([draw(rng, 0.3, 180, 1), draw(rng, 0.5, 40, 1)])
        inside += low <= 0.4 <= high
    assert 0.93 <= inside / 400 <= 0.98


@pytest.mark.parametrize("p, items, samples, spread", [
    (0.5, 30, 1, 0), (0.1, 100, 1, 0), (0.95, 40, 4, 0), (0.02, 200, 1, 0), (0.5, 30, 16, 0.4), (0.3, 100, 8, 0.2)])
def test_the_interval_covers_a_known_accuracy(p, items, samples, spread):
    rng, inside = np.random.default_rng(0), 0
    for _ in range(400):
        mean, error, low, high = scores.estimate([draw(rng, p, items, samples, spread)])
        inside += low <= p <= high
        assert 0 <= low <= mean <= high <= 1
    assert 0.91 <= inside / 400 <= 0.995
    assert error == pytest.approx(np.sqrt((p * (1 - p) + (samples - 1) * spread ** 2) / samples / items), rel=0.5)


def test_a_scripted_model_of_known_accuracy(score, tmp_path):
    write_rows(tmp_path, "math500", [{"problem": f"{i} and?", "answer": str(i)} for i in range(300)])
    rng = random.Random(0)
    score(lambda m, t: "\\boxed{%s}" % (m[0]["content"].split()[0] if rng.random() < 0.7 else "x"), "math500")
    low, high = map(float, re.search(r"math500.*\[(.*), (.*)\]", score.shown).groups())
    assert low <= 0.7 <= high and high - low < 0.11


def test_categories_weigh_the_same():
    many, few = {i: [1.0] for i in range(90)}, {i: [0.0] for i in range(10)}
    assert scores.estimate([many, few])[0] == 0.5
    mean, error, *interval = scores.estimate([{0: [1.0, 0.0]}])
    assert mean == 0.5 and np.isnan(error) and interval == pytest.approx([0.055, 0.945], abs=1e-3)   # Wilson, n = 1


def test_compare(tmp_path, capsys):
    rng = np.random.default_rng(1)
    for file, gain in (("a", 0.0), ("b", 0.2)):
        with open(tmp_path / file, "w") as out:
            for category in ("x", "y"):
                for i in range(100 if file == "a" else 90):
                    hard = (i * 37 % 100) / 100   # the same in both
                    score = float(rng.random() < min(max(1 - hard + gain, 0), 1))
                    out.write(json.dumps({"suite": "s", "category": category, "item": f"{category}{i}", "sample": 0,
                                          "score": score, "verdict": ""}) + "\n")
    evaluate.main(["--compare", str(tmp_path / "a"), str(tmp_path / "b")])
    found = re.findall(r"^(s|  x|  y) +([+-][.\d]+) +\[(.*), (.*)\] +(\d+)$", capsys.readouterr().out, re.M)
    assert [(row[0].strip(), row[4]) for row in found] == [("s", "180"), ("x", "90"), ("y", "90")]
    difference, low, high = map(float, found[0][1:4])
    assert low < 0.18 < high and low > 0 and high - low < 0.3 and low < difference < high
    evaluate.main(["--compare", str(tmp_path / "a"), str(tmp_path / "a")])
    assert re.search(r"s +\+0.000 +\[\+0.000, \+0.000\]", capsys.readouterr().out)


# --- figures ---

def test_vendi():
    assert figures.vendi(["a b c"] * 5) == pytest.approx(1 / 5)
    assert figures.vendi(["a a", "b b", "c c", "d"]) == pytest.approx(1)
    texts = [f"{i % 3} {i % 3}" for i in range(12)]
    assert figures.vendi(texts) == pytest.approx(3 / 12)


def test_figures_of_a_run(tmp_path, capsys):
    run = tmp_path / "run"
    for i in range(6):
        word = ["Lamp", "Lamp", "Door", "Tide", "Coin", "Coin"][i]
        program = Environment(f"class {word}Env:\n    x = {i // 2}", "", "s", "games", "", f"{i}")
        save_environment(run / "environments", program, reward=0.1, reason="", rollout=15 if i < 4 else 19,
                         hinted=[1.0, 0.5], unhinted=[[0.0, 0.25], [1.0]])
    with open(run / "metrics.jsonl", "w") as out:
        for r in range(20):
            out.write(json.dumps({"rollout": r, "designer/learnable_share": 0.25 if r < 16 else 0.5,
                                  "agent/return": 0.1, "agent/turns": 4.0}) + "\n")
    with open(run / "plays.jsonl", "w") as out:
        for r, text in ((0, "Ohm: voltage = current * load"), (3, "x = 5"), (17, "say go"), (18, "E = m * c ^ 2")):
            for hinted in (False, True):
                out.write(json.dumps({"rollout": r, "hinted": hinted, "turns": [["user", text]]}) + "\n")
    evaluate.main(["--run", str(run)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if re.match(r" +\d+-", line)]
    assert [line[0] for line in lines] == ["0-15", "16-19", "0-19"]
    assert lines[0][1:7] == ["0.250", "0.100", "4.000", "4", "2", "3"] and lines[1][4:7] == ["2", "1", "1"]
    assert [line[8:] for line in lines] == [["0.500", "4.000", "2.000"]] * 3
    assert float(lines[1][7]) == pytest.approx(0.5) and float(lines[0][7]) > 0.5
    with pytest.raises(SystemExit, match="no run folder"):
        evaluate.main(["--run", str(tmp_path)])
