"""A results file of evaluate.py in, a table with its uncertainty out.

A file of its own because it is statistics: it knows neither models nor suites. What it teaches: samples of an item are
averaged first, for they are not independent; the standard error is that of the items' means; two models are compared
item by item.
What it leaves out: tests that correct for looking at many suites.

Try it:  python evaluate.py --compare before.jsonl after.jsonl
"""
import json
import math
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np


def read_results(path: Path) -> list[dict]:
    """The lines of a results file, without one that was cut off by a kill. What failed and was repeated later, or is
    repeated now (no score: not the model's fault), counts once: the last time.
    """
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    return list({(r["suite"], r.get("item"), r.get("sample")): r for r in lines}.values())


def by_item(results: list[dict]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """suite -> category -> item -> scores of its samples"""
    table = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for r in sorted(results, key=lambda r: (r["suite"], r.get("category", ""), r.get("item", ""))):
        if r.get("score") is not None:
            table[r["suite"]][r["category"]][r["item"]].append(r["score"])
    return table


def labelled(suite: str, categories) -> dict[str, list[str]]:
    """Line of a table -> categories that it averages: the whole suite, then each of them."""
    return {suite: list(categories)} | ({f"  {c}": [c] for c in categories} if len(categories) > 1 else {})


def estimate(categories: list[dict[str, list[float]]]) -> tuple[float, float, float, float]:
    """Mean over categories of the mean over items; its standard error; and a 95% interval (Wilson's).

    Wilson's does not shrink to nothing where all or no items are solved. Its n is the number of independent
    coin flips with this mean and standard error, at most the samples; where nothing varies, the items.
    """
    means = [np.array([np.mean(scores) for scores in items.values()]) for items in categories]
    mean = float(np.mean([m.mean() for m in means]))
    # of a category with a single item nobody knows how it varies
    error = math.sqrt(sum(m.var(ddof=1) / len(m) if len(m) > 1 else math.nan for m in means)) / len(means)
    n_items, n_samples = sum(map(len, means)), sum(len(s) for items in categories for s in items.values())
    n = min(mean * (1 - mean) / error ** 2 if error > 0 else n_items, n_samples)
    z = 1.96
    middle = (mean + z * z / 2 / n) / (1 + z * z / n)
    half = z * math.sqrt(mean * (1 - mean) / n + z * z / 4 / n ** 2) / (1 + z * z / n)
    return mean, error, max(middle - half, 0.0), min(middle + half, 1.0)


def show(results: list[dict]) -> None:
    print(f"\n{'':40s}   mean   s.e.    95% interval    items  samples  cut off   failed")
    table = by_item(results)
    for suite in dict.fromkeys(r["suite"] for r in results if "score" in r):
        if suite not in table:
            print(f"{suite:40s}    nothing could be scored: see the verdicts")
        for label, names in labelled(suite, table[suite]).items() if suite in table else ():
            categories = table[suite]
            here = [r for r in results if r["suite"] == suite and "score" in r and (
                label == suite or r["category"] in names)]
            mean, error, low, high = estimate([categories[name] for name in names])
            cut = sum(r["verdict"] == "context_limit" for r in here)
            print(f"{label:40s}{mean:7.3f}{error:7.3f}    [{low:.3f}, {high:.3f}]"
                  f"{sum(len(categories[name]) for name in names):9d}{len(here):9d}{cut:9d}"
                  f"{sum(r['score'] is None for r in here):9d}")


def compare(first: Path, second: Path, resamples: int = 10_000) -> None:
    """B - A on the items that both have; the interval is a bootstrap over items, within categories."""
    results = read_results(first), read_results(second)
    one, other = ({r["suite"]: r["setup"] for r in rows if "setup" in r} for rows in results)
    for suite, key in product(one.keys() & other.keys(), ("seed", "pool", "user")):
        if one[suite][key] != other[suite][key]:
            print(f"{suite}: A had {key} {one[suite][key]!r}, B {other[suite][key]!r}: items of one name may differ")
    a, b = map(by_item, results)
    rng = np.random.default_rng(0)
    print(f"A = {first}, B = {second}\n{'':40s}   B - A       95% interval    items")
    for suite in [suite for suite in a if suite in b]:
        pairs = {category: np.array([np.mean(b[suite][category][i]) - np.mean(a[suite][category][i])
                                     for i in a[suite][category] if i in b[suite][category]])
                 for category in a[suite] if category in b[suite]}
        pairs = {category: d for category, d in pairs.items() if len(d)}
        draws = {category: np.array([rng.choice(d, len(d)).mean() for _ in range(resamples)])
                 if len(d) > 1 else np.full(resamples, np.nan) for category, d in pairs.items()}
        for label, names in labelled(suite, pairs).items():
            low, high = np.quantile(np.mean([draws[c] for c in names], axis=0), [0.025, 0.975])
            print(f"{label:40s}{np.mean([pairs[c].mean() for c in names]):+8.3f}   [{low:+.3f}, {high:+.3f}]"
                  f"{sum(len(pairs[c]) for c in names):9d}")
