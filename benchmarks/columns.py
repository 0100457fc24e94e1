r"""A row of whatever data set becomes a question and the answer that is right.

A file of its own because data sets agree on nothing: columns have a dozen names, an answer is a letter, a number of an
option, a text, or the end of a worked solution. A row in which nothing is recognised stops its suite: a made-up gold
answer would score every model 0.
What it leaves out: columns inside columns.
"""
import random
import re

import agent
from benchmarks import programs

LETTERS = "ABCDEFGHIJ"
ASKED = "problem|question|prompt|input|question_content|problem_statement|query|instruction"
GOLD = "answer_letter|correct_answer|expected_answer|ground_truth|gold|gold_answer|reference_answer|answer|label|" \
       "target|final_answer"


class Missing(Exception):
    """A suite cannot run here; the message says what to install or download, and where to put it, or to mend."""


def pick(row: dict, keys: str):
    """What the first of these columns that is not empty holds; "" if there is none."""
    return next((row[key] for key in keys.split("|") if row.get(key) not in (None, []) and str(row[key]).strip()), "")


def first(value) -> str:
    """A text, or the first of several."""
    return str(value[0] if isinstance(value, list) and value else value).strip()


def end_of(solution: str) -> str:
    r"""The answer that a worked solution ends with: boxed, behind ####, or all of it; "" if it is prose."""
    if (boxed := agent.last_boxed(solution)) or "####" in solution:
        return boxed or solution.rpartition("####")[2].strip()
    prose = len(solution.split()) > 1 and re.search(r"(?<![\\A-Za-z])[A-Za-z]{2}", solution)
    return "" if prose else solution.strip()


def right_option(row: dict, options: list, gold):
    """Which of the options is right; None if that cannot be told. An option may be the text "A": where a row says that
    its answer is a letter, that is believed first.
    """
    letter = re.fullmatch(r"\s*\(?([A-J])[).]*\s*", str(gold))
    is_letter = row.get("answer_letter") or row.get("answer_index") is not None
    if gold in options and not is_letter:
        return gold
    index = LETTERS.index(letter[1]) if letter else row.get("answer_index", gold)
    if type(index) is int and 0 <= index < len(options):
        return options[index]
    return gold if gold in options else None


def question(name: str, row: dict, rng: random.Random) -> dict:
    """A row of whatever data set as {question, answer, kind}, of choices with {letter: text} as options; these are
    shuffled. Raises Missing where a column is.
    """
    known = {re.sub(r"\W+", "_", key).lower(): value for key, value in row.items()}
    text = pick(known, ASKED)
    text = text[-1]["content"] if isinstance(text, list) else text   # messages
    if not str(text).strip():
        raise Missing(f"no question in its columns {', '.join(row)}; it may be called {ASKED.replace('|', ', ')}")
    if name == "livecodebench":
        asked = programs.question(text, row) if {"public_test_cases", "private_test_cases"} <= row.keys() else {}
        if not asked.get("tests"):
            raise Missing(f"no public_test_cases and private_test_cases in its columns {', '.join(row)}")
        return asked
    gold, kind, letters = pick(known, GOLD), "string", {}
    options = pick(known, "options|choices") or [known[key] for key in known if re.match("(in)?correct_an", key)]
    if isinstance(options, dict):
        options = list(options.values())   # by their letters
    if not isinstance(options, list):
        raise Missing("its options are no list")
    if len(options) > 1:
        right = right_option(known, options, gold)
        options = rng.sample(options, len(options))
        letters = {letter: str(option) for letter, option in zip(LETTERS, options)}
        kind, gold = "mcq", LETTERS[options.index(right)] if right in options[:len(LETTERS)] else ""
        text += "\n\n" + "\n".join(f"{letter}) {option}" for letter, option in letters.items())
    else:
        kind = "bbeh" if name == "bbeh" else "math"
        gold = first(gold)
        if kind == "math":
            gold = agent.last_boxed(gold) or gold.rpartition("####")[2].strip()
        gold = gold or end_of(first(known.get("solution") or ""))
    if not gold:
        raise Missing(f"no answer in its columns {', '.join(row)}; it may be called {GOLD.replace('|', ', ')}, or be "
                      f"boxed in a solution; of options it is one of them, or its letter")
    what = "the letter of the right option" if kind == "mcq" else "the final answer"
    return {"question": f"{text}\n\nReason step by step, then put {what} inside \\boxed{{}}.", "answer": gold,
            "kind": kind, "options": letters}
