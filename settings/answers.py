r"""Is an answer the right one? By mathematics, by text, or by letter.

A file of its own because questions that were written here (spice.py) and benchmarks need the same judge, and
because part of it is a process of its own: Math-Verify may think for ever, and its time limits are signal
handlers, which work in no thread and interrupt no huge power. So a fork judges each pair, and after two
seconds it is killed. Only its LaTeX parser is used: the other one evaluates text as Python.

Try it:  echo '["1/2", "0.5"]' | python settings/answers.py        true: the second is the same as the first
"""
import json
import logging
import os
import queue
import re
import resource
import signal
import subprocess
import sys
import unicodedata

LONGEST = 1_000  # characters of an answer
JUDGES = queue.LifoQueue()
for _ in range(min(os.cpu_count() or 1, 8)):
    JUDGES.put(None)  # a process, once one is needed


def normalise(answer: str) -> str:
    r"""For exact match: "The  Krebs cycle." -> "krebs cycle"; \text{} and a leading article do not count."""
    plain = re.sub(r"\\(?:text|mathrm)\w*\s*\{([^{}]*)\}", r"\1", unicodedata.normalize("NFKC", answer))
    return re.sub(r"^(the|a|an) ", "", " ".join(plain.casefold().split()).strip(" .,;:!?'\"`$*"))


def letter(answer: str) -> str:
    r"""The choice that is meant, or "": "B", "(b)", "\text{B}", "B. because" -> "B"; "A cat" -> ""."""
    choice = re.fullmatch(r"[\s($]*(?:\\(?:text|math)\w*\{)?[\s(]*([A-J])[\s)}$.]*(?:[).:].*)?", answer, re.S | re.I)
    return choice[1].upper() if choice else ""


def is_right(kind: str, gold: str, answer: str) -> bool:
    """`kind` is mcq (a letter), string (exact match after normalisation), or else mathematics."""
    if not answer.strip() or len(answer) > LONGEST:
        return False
    if kind == "mcq":
        return letter(answer) == gold
    if kind == "string":
        return normalise(answer) == normalise(gold)
    plain = re.sub(r",(?=\d{3}(?!\d))", "", answer.strip())
    if re.fullmatch("[+-]?[0-9]+", gold) and re.fullmatch("[+-]?[0-9]+", plain):
        return int(plain) == int(gold)  # most of them, and a hundred times faster
    return answer.strip() == gold or same_mathematics(gold, answer)


def same_mathematics(gold: str, answer: str) -> bool:
    """Math-Verify's verdict; False where it needs too long, too much memory, or breaks."""
    judge = JUDGES.get()
    try:
        judge = judge or subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, text=True,
                                          stdout=subprocess.PIPE, start_new_session=True)
        print(json.dumps([gold, answer]), file=judge.stdin, flush=True)
        verdict = judge.stdout.readline()
    finally:
        JUDGES.put(judge)
    if not verdict:
        raise RuntimeError("Math-Verify does not run; see: echo '[\"1\", \"1\"]' | python settings/answers.py")
    return json.loads(verdict)


def main() -> None:
    from math_verify import LatexExtractionConfig, parse, verify
    logging.disable()  # of what cannot be parsed

    def same(*pair):
        gold, answer = (parse("$" + text.replace("\\$", "").replace("$", "") + "$", [LatexExtractionConfig()],
                              parsing_timeout=None, fallback_mode="no_fallback") for text in pair)
        return verify(gold, answer, timeout_seconds=None)

    for pair in [(r"\frac12", "0.5"), ("(x+1)^2", "x^2+2x+1"), (r"\sqrt{2}", "1"), (r"\{1,2\}", "(1,2)")]:
        same(*pair)  # fills caches of the parser that every fork then shares
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.alarm(2)  # without a handler: the kernel kills
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
