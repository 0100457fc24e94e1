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
from pathlib import Path

import numpy as np


def read_results(path: Path) -> list[dict]:
    """The lines of a results file, without one that was cut off by a kill. What failed and was repeated later, or is
    repeated now (no score: not the model's fault), counts once: the last time.
    """
    if not path.exists():
        return []
    *whole, _ = path.read_text().split("\n")
    last = {}
    for line in whole:
        r = json.loads(line)
        last[r["suite"], r.get("item"), r.get("sample")] = r
    return list(last.values())


def by_item(results: list[dict]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """suite -> category -> item -> scores of its samples"""
    table = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for r in sorted(results, key=lambda r: (r["suite"], r.get("category", ""), r.get("item", ""))):
        if r.get("score") is not None:
            table[r["suite"]][r["category"]][r["item"]].append(r["score"])
    return table


def labelled(suite: str, categories) -> dict[str, list[str]]:
    """Line of a table -> categories that it averages: the whole suite, then each of them if there are several."""
    lines = {suite: list(categories)}
    if len(categories) > 1:
        lines |= {f"  {category}": [category] for category in categories}
    return lines


def estimate(categories: list[dict[str, list[float]]]) -> tuple[float, float, float, float]:
    """Mean over categories of the mean over items; its standard error; and a 95% interval (Wilson's).

    Wilson's does not shrink to nothing where all or no items are solved. Its n is the number of independent
    coin flips with this mean and standard error, at most the samples; where nothing varies, the items.
    """
    means = [np.array([np.mean(scores) for scores in items.values()]) for items in categories]
    mean = float(np.mean([m.mean() for m in means]))
    # of a category with a single item nobody knows how it varies
    variances = [m.var(ddof=1) / len(m) if len(m) > 1 else math.nan for m in means]
    error = math.sqrt(sum(variances)) / len(means)
    n_items = sum(len(items) for items in categories)
    n_samples = sum(len(scores) for items in categories for scores in items.values())
    flips = mean * (1 - mean) / error ** 2 if error > 0 else n_items
    n = min(flips, n_samples)
    z = 1.96
    middle = (mean + z * z / 2 / n) / (1 + z * z / n)
    half = z * math.sqrt(mean * (1 - mean) / n + z * z / 4 / n ** 2) / (1 + z * z / n)
    return mean, error, max(middle - half, 0.0), min(middle + half, 1.0)


def show(results: list[dict]) -> None:
    """One line per suite and category; `failed` is what has no score."""
    print(f"\n{'':40s}   mean   s.e.    95% interval    items  samples  cut off   failed")
    table = by_item(results)
    played = [r for r in results if "score" in r]
    for suite in dict.fromkeys(r["suite"] for r in played):
        if suite not in table:
            print(f"{suite:40s}    nothing could be scored: see the verdicts")
            continue
        for label, names in labelled(suite, table[suite]).items():
            scored = [table[suite][name] for name in names]
            here = [r for r in played if r["suite"] == suite]
            if label != suite:
                here = [r for r in here if r["category"] in names]
            mean, error, low, high = estimate(scored)
            n_items = sum(len(items) for items in scored)
            cut_off = [r for r in here if r["verdict"] == "context_limit"]
            failed = [r for r in here if r["score"] is None]
            print(f"{label:40s}{mean:7.3f}{error:7.3f}    [{low:.3f}, {high:.3f}]"
                  f"{n_items:9d}{len(here):9d}{len(cut_off):9d}{len(failed):9d}")


def compare(first: Path, second: Path, resamples: int = 10_000) -> None:
    """B - A on the items that both have; the interval is a bootstrap over items, within categories."""
    results_a, results_b = read_results(first), read_results(second)
    warn_of_other_items(results_a, results_b)
    a, b = by_item(results_a), by_item(results_b)
    rng = np.random.default_rng(0)
    print(f"A = {first}, B = {second}\n{'':40s}   B - A       95% interval    items")
    for suite in a:
        if suite not in b:
            continue
        gaps = {}    # category -> B - A of each item
        for category in a[suite]:
            ours, theirs = a[suite][category], b[suite].get(category, {})
            both = [item for item in ours if item in theirs]
            if both:
                gaps[category] = np.array([np.mean(theirs[item]) - np.mean(ours[item]) for item in both])
        draws = {category: resampled_means(gaps[category], rng, resamples) for category in gaps}
        for label, names in labelled(suite, gaps).items():
            gap = np.mean([gaps[name].mean() for name in names])
            low, high = np.quantile(np.mean([draws[name] for name in names], axis=0), [0.025, 0.975])
            n_items = sum(len(gaps[name]) for name in names)
            print(f"{label:40s}{gap:+8.3f}   [{low:+.3f}, {high:+.3f}]{n_items:9d}")


def resampled_means(values: np.ndarray, rng: np.random.Generator, resamples: int) -> np.ndarray:
    """Means of as many values drawn with replacement; of a single one nobody knows how it varies."""
    if len(values) == 1:
        return np.full(resamples, np.nan)
    return np.array([rng.choice(values, len(values)).mean() for _ in range(resamples)])


def warn_of_other_items(results_a: list[dict], results_b: list[dict]) -> None:
    """Says where two files' suites were set up differently."""
    setup_a = {r["suite"]: r["setup"] for r in results_a if "setup" in r}
    setup_b = {r["suite"]: r["setup"] for r in results_b if "setup" in r}
    for suite in setup_a:
        for key in ("seed", "pool", "user"):
            if suite in setup_b and setup_a[suite][key] != setup_b[suite][key]:
                print(f"{suite}: A had {key} {setup_a[suite][key]!r}, B {setup_b[suite][key]!r}: "
                      f"items of one name may differ")
