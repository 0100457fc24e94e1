"""What the papers plot about a run, as numbers: is the curriculum learnable, varied, and not told too soon?

A file of its own because it measures the Designer and not a model. It reads metrics.jsonl, plays.jsonl and
environments/*.py, whose first line has the returns of both arms.
What it leaves out: sentence embeddings (here TF-IDF: other numbers) and what an LLM judged.

Try it:  python evaluate.py --run runs/NAME
"""
import math
import random
import re
from pathlib import Path

import numpy as np

from machinery import source
from study import runs

WINDOW = 16   # rollouts, as in SPADE's figures
FORMULA = re.compile(r"\b[A-Za-z_]\w*\s*=\s*[^=\n]*[A-Za-z_(]\w*\s*[-+*/^]\s*[\w(]")   # F = m * a
HEADS = "learnable return turns programs unique classes vendi/n formula levels partial".split()
LEGEND = """\
learnable  share of the budget with a win rate in [0.2, 0.8]
unique     programs that differ in more than names of classes, spaces and comments
classes    different names of classes
vendi/n    of at most 100 programs, cosine of TF-IDF
formula    share of first observations, without hint, in which a regular expression finds a formula
levels     different returns of a program; partial: those strictly between 0 and 1
"""


def vendi(texts: list[str]) -> float:
    """Vendi score / n: exp of the entropy of K/n's eigenvalues; 1 if all differ fully, 1/n if none does."""
    n, words = len(texts), [re.findall(r"\w+", text) for text in texts]
    vocabulary = sorted({word for row in words for word in row})
    column = {word: i for i, word in enumerate(vocabulary)}
    counts = np.zeros((n, len(vocabulary)))                           # (n, V)
    for row, text in zip(counts, words):
        np.add.at(row, [column[word] for word in text], 1)
    texts_with_word = (counts > 0).sum(0)                             # (V,)
    vectors = counts * (np.log((1 + n) / (1 + texts_with_word)) + 1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    eigenvalues = np.linalg.eigvalsh(vectors @ vectors.T / n)         # (n,), their sum is 1
    values = eigenvalues[eigenvalues > 1e-12]
    entropy = -(values * np.log(values)).sum()
    return float(np.exp(entropy) / n)


def mean(values) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def numbers(metrics: list[dict], plays: list[dict], programs: list[dict]) -> list:
    """One value for each of HEADS, of a few rollouts' records; counts are integers."""
    learnable, ret, turns = (mean([m[key] for m in metrics])
                             for key in ("designer/learnable_share", "agent/return", "agent/turns"))
    codes = [e["code"] for e in programs]
    different = {source.normalised(code) for code in codes}
    classes = {name for code in codes for name in re.findall(r"^class (\w+)", code, re.M)}
    variety = math.nan
    if codes:
        variety = vendi(random.Random(0).sample(codes, min(len(codes), 100)))
    openings = [play["turns"][0][1] for play in plays if play["turns"] and not play["hinted"]]
    formulas = [bool(FORMULA.search(text)) for text in openings]
    levels, partial = [], []
    for e in programs:
        returns = set(e["hinted"])
        for rollout in e["unhinted"]:
            returns.update(rollout)
        levels.append(len(returns))
        partial.append(len([level for level in returns if 0 < level < 1]))
    return [learnable, ret, turns, len(codes), len(different), len(classes), variety, mean(formulas), mean(levels),
            mean(partial)]


def within(rows: list[dict], start: int, end: int) -> list[dict]:
    return [row for row in rows if start <= row["rollout"] <= end]


def show(folder: Path) -> None:
    """One line for every 16 rollouts, and one for all."""
    if not (folder / "plays.jsonl").exists():
        raise SystemExit(f"{folder} is no run folder, or nothing has happened there yet")
    run = runs.load(folder)
    played = [e for e in run["programs"] if "returns" in e]   # not the refused
    with open(folder / "plays.jsonl", encoding="utf-8", errors="replace") as file:
        plays = list(runs.records(file.name, file, {"rollout", "hinted", "turns"}, run["broken"]))
    print(LEGEND + "\n  rollouts" + "".join(f"{head:>10s}" for head in HEADS))
    last = run["metrics"][-1]["rollout"]
    windows = [(start, min(start + WINDOW - 1, last)) for start in range(0, last + 1, WINDOW)]
    if len(windows) > 1:
        windows.append((0, last))
    for start, end in windows:
        values = numbers(within(run["metrics"], start, end), within(plays, start, end), within(played, start, end))
        cells = [f"{value:10d}" if isinstance(value, int) else f"{value:10.3f}" for value in values]
        print(f"{start:5d}-{end:<4d}" + "".join(cells))
