r"""Math-Verify in a process of its own: are two mathematical texts the same?

A file of its own because it runs as a program. Math-Verify may think for ever, and its time limits are signal
handlers, which work in no thread and interrupt no huge power. So a fork judges each pair, and after two seconds of
computing it is killed. Only its LaTeX parser is used: the other one evaluates text as Python.

Try it:  echo '["1/2", "0.5"]' | python settings/judge.py        true: the second is the same as the first
"""
import json
import logging
import os
import queue
import resource
import signal
import subprocess
import sys

JUDGES = queue.LifoQueue()
for _ in range(min(os.cpu_count() or 1, 8)):
    JUDGES.put(None)  # a process, once one is needed
PART = 1e-5           # of the smaller number that two may differ by


def ask(gold: str, answer: str) -> bool:
    """Math-Verify's verdict on two LaTeX texts; False where it needs too long, too much memory, or breaks."""
    judge = JUDGES.get()
    try:
        judge = judge or subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, text=True,
                                          stdout=subprocess.PIPE, start_new_session=True)
        print(json.dumps([gold, answer]), file=judge.stdin, flush=True)
        verdict = judge.stdout.readline()
    finally:
        JUDGES.put(judge)
    if not verdict:
        raise RuntimeError("Math-Verify does not run; see: echo '[\"1\", \"1\"]' | python settings/judge.py")
    return json.loads(verdict)


def close(a, b) -> bool:
    """Are all numbers in a - b small beside those in a and b? To Math-Verify's six decimals all tiny ones are 0."""
    from sympy import Float
    sizes = [abs(number) for side in (a, b) for number in side.evalf().atoms(Float) if number]
    gaps = [abs(number) for number in (a - b).evalf().atoms(Float) if number]
    return not gaps or bool(sizes) and max(gaps) <= PART * min(sizes)


def main() -> None:
    from math_verify import LatexExtractionConfig, grader, parse, verify
    from sympy import MatrixBase, UnevaluatedExpr
    logging.disable()  # of what cannot be parsed
    to_six_decimals = grader.sympy_numeric_eq

    def numeric_eq(a, b, *digits):
        if not to_six_decimals(a, b, *digits):
            return False
        # of matrices the entries come here one by one; percents are right as 0.5, 50 % and 50
        return isinstance(a, MatrixBase) or a.has(UnevaluatedExpr) or b.has(UnevaluatedExpr) or close(a, b)

    grader.sympy_numeric_eq = numeric_eq

    def same(*pair):
        gold, answer = (parse("$" + text.replace("\\$", "").replace("$", "") + "$", [LatexExtractionConfig()],
                              parsing_timeout=None, fallback_mode="no_fallback") for text in pair)
        return verify(gold, answer, timeout_seconds=None)

    for pair in [(r"\frac12", "0.5"), ("(x+1)^2", "x^2+2x+1"), (r"\sqrt{2}", "1"), (r"\{1,2\}", "(1,2)")]:
        same(*pair)  # fills caches of the parser that every fork then shares
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (2, 2))   # the kernel kills; of computing, since a busy machine
            signal.alarm(4)                                   # is a bad reason to refuse a right answer
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            verdict = 1
            try:
                verdict = 0 if same(*json.loads(line)) else 1
            finally:
                os._exit(verdict)  # whatever went wrong: the trainer learns only that it is not the same
        print(json.dumps(os.waitpid(pid, 0)[1] == 0), flush=True)


if __name__ == "__main__":
    main()
