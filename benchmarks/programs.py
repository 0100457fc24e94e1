r"""LiveCodeBench: a program is right if it passes all tests, each in a sealed worker of its own.

A file of its own because here a model's text is executed, and judged by what it prints: what it may import, how its
input reaches it and how output is compared follow the benchmark's testing_util.py.
What it leaves out: threads, test cases that are not text, and programs that need more than 512 MB.
"""
import base64
import json
import pickletools
import zlib
from decimal import Decimal

from machinery.source import extract_code
from sandbox import EnvError, SandboxedEnv

NAMES = """string re datetime collections heapq bisect copy math random statistics itertools functools operator io
    sys json builtins typing""".split()   # in LiveCodeBench's order: `pow` and `open` are the builtin ones
GIVEN = "".join(f"from {name} import *\n" for name in NAMES) + f"import {', '.join(NAMES[:-2])}\n"
WORLD = '''
import builtins, io, json, sys
class ProgramEnv:
    """A program and its input: reset runs it, steps read what it printed."""
    def reset(self, seed):
        sys.stdin, sys.stdout = io.TextIOWrapper(io.BytesIO(DATA.encode())), io.StringIO()
        builtins.open = lambda *arguments: sys.stdin   # open(0); it can open nothing else
        space = {"__name__": "solution" if FUNCTION else "__main__"}
        exec(GIVEN, space)
        sys.setrecursionlimit(50_000)
        try:
            exec(compile(CODE, "<program>", "exec"), space)
        except SystemExit:
            pass
        if FUNCTION:
            call = getattr(space["Solution"](), FUNCTION) if "Solution" in space else space[FUNCTION]
            print(json.dumps(call(*map(json.loads, DATA.split("\\n")))))
        self.text = sys.stdout.getvalue()
        return "", {}
    def step(self, action):
        part, self.text = self.text[:50_000], self.text[50_000:]
        return part, 0.0, not self.text, False, {}
'''


def question(text: str, row: dict) -> dict:
    """A row of the data set as {question, kind, tests, answer: the name of a function, or None}."""
    start = row.get("starter_code")
    asked = (f"Complete this program:\n```python\n{start}\n```" if start else
             "Write a Python program that reads standard input and prints the answer.")
    asked += "\nThink first, then give the whole program in one ```python block."
    return {"question": f"{text}\n\n{asked}", "kind": "program",
            "tests": tests(row["public_test_cases"]) + tests(row["private_test_cases"]),
            "answer": json.loads(row.get("metadata") or "{}").get("func_name")}


def tests(text: str) -> list[dict]:
    """The cases of a row: JSON, or that pickled, zipped, in base64. The pickle is read, not executed."""
    if not text.lstrip().startswith("["):
        pickled = zlib.decompress(base64.b64decode(text))
        text = next(value for code, value, _ in pickletools.genops(pickled) if "UNICODE" in code.name)
    return json.loads(text)


def is_right(box, row: dict, reply: str) -> bool:
    """Does the last block of code pass all tests?"""
    code = extract_code(reply, last=True)
    return bool(code) and all(passes(box, code, row["answer"], test) for test in row["tests"])


def passes(box, code: str, function: str | None, test: dict) -> bool:
    """Does a program pass one test, within LiveCodeBench's 6 seconds?"""
    source = f"CODE, FUNCTION, DATA, GIVEN = {code!r}, {function!r}, {test['input']!r}, {GIVEN!r}\n{WORLD}"
    printed, over = "", False
    try:
        with SandboxedEnv(box, source, timeout=6.0, checked=True) as env:
            env.reset(0)
            while not over and len(printed) <= 2 * len(test["output"]) + 100_000:
                part, _, over, _, _ = env.step("")
                printed += part
    except EnvError:
        return False
    try:
        if function:   # the last line is what it returned
            return json.loads(printed.strip().rpartition("\n")[2]) == json.loads(test["output"])
    except (ValueError, RecursionError):
        return False
    ours, theirs = ([line.strip() for line in text.strip().split("\n")] for text in (printed, test["output"]))
    return len(ours) == len(theirs) and all(map(same_line, ours, theirs))


def same_line(ours: str, theirs: str) -> bool:
    """The same text, or the same numbers."""
    try:
        return ours == theirs or [*map(Decimal, ours.split())] == [*map(Decimal, theirs.split())]
    except ArithmeticError:   # not numbers
        return False
