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
from study import report

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
    words = [re.findall(r"\w+", text) for text in texts]
    index = {word: i for i, word in enumerate(sorted(set().union(*words)))}
    counts = np.zeros((len(texts), len(index)))                       # (n, V)
    for row, text in zip(counts, words):
        np.add.at(row, [index[word] for word in text], 1)
    vectors = counts * (np.log((1 + len(texts)) / (1 + (counts > 0).sum(0))) + 1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    values = np.linalg.eigvalsh(vectors @ vectors.T / len(texts))     # (n,), their sum is 1
    values = values[values > 1e-12]
    return float(np.exp(-(values * np.log(values)).sum()) / len(texts))


def mean(values) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def show(folder: Path) -> None:
    """One line for every 16 rollouts, and one for all."""
    if not (folder / "plays.jsonl").exists():
        raise SystemExit(f"{folder} is no run folder, or nothing has happened there yet")
    run = report.load(folder)
    metrics, programs = run["metrics"], [e for e in run["programs"] if "arms" in e]   # not the refused
    with open(folder / "plays.jsonl", encoding="utf-8", errors="replace") as file:
        plays = list(report.records(file.name, file, {"rollout", "hinted", "turns"}, run["broken"]))
    print(LEGEND + "\n  rollouts" + "".join(f"{head:>10s}" for head in HEADS))
    last = metrics[-1]["rollout"]
    windows = [(start, min(start + WINDOW - 1, last)) for start in range(0, last + 1, WINDOW)] + [(0, last)]
    for start, end in dict.fromkeys(windows):
        now, played, made = ([row for row in rows if start <= row["rollout"] <= end]
                             for rows in (metrics, plays, programs))
        first = [play["turns"][0][1] for play in played if play["turns"] and not play["hinted"]]
        codes = [program["code"] for program in made]
        classes = {name for code in codes for name in re.findall(r"^class (\w+)", code, re.M)}
        returns = [set(p["hinted"] + sum(p["unhinted"], [])) for p in made]
        row = [mean([m[key] for m in now])
               for key in ("designer/learnable_share", "agent/return", "agent/turns")]
        row += [len(codes), len(set(map(source.normalised, codes))), len(classes),
                vendi(random.Random(0).sample(codes, min(len(codes), 100))) if codes else math.nan]
        row += [mean([bool(FORMULA.search(text)) for text in first]), mean([len(s) for s in returns]),
                mean([sum(0 < level < 1 for level in s) for s in returns])]
        cells = [f"{value:10d}" if isinstance(value, int) else f"{value:10.3f}" for value in row]
        print(f"{start:5d}-{end:<4d}" + "".join(cells))
