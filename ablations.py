"""The papers' comparisons at laptop scale: every recipe over several seeds, one table with error bars.

What it teaches: how to compare training recipes honestly. Equal numbers of updates and plays, several seeds, paired
differences, held-out environments that no choice was made on, and the ceiling first: if not even an oracle curriculum
beats a Designer that never learns (the *gate*), no comparison of Designers can show anything.

What it leaves out: anything about large models. The laptop world is ladders (tiny.py); a null here is a null here.

    python ablations.py --seeds 3                    all arms; an arm that is finished is not run again
    python ablations.py --seeds 1 --arms oracle frozen-no-memory       the gate
    python ablations.py --table ablations.json       prints the table of a saved result

Everything was tuned on seed 0 and the held-out set `tiny`; the sweep reports seeds 1, 2, ... on the set `tiny-report`.
"""
import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev

ARMS = {  # name: the flags that make it
    "oracle": ["--pool", "tiny-oracle", "--hint-plays", "0"],
    "spade": [],
    "spade-regret": ["--recipe", "spade-regret"],
    "solve-rate": ["--recipe", "solve-rate"],
    "learning-potential": ["--recipe", "learning-potential"],
    "variance": ["--designer-reward", "variance"],
    "absolute-zero": ["--designer-reward", "absolute-zero"],
    "no-memory": ["--recipe", "no-memory"],
    "no-corpus": ["--recipe", "no-corpus"],
    "two-skills": ["--recipe", "two-skills"],
    "frozen-designer": ["--recipe", "frozen-designer"],   # its memory is chosen by regret
    "frozen-reward-memory": ["--recipe", "frozen-designer", "--memory-select", "reward"],
    "frozen-random-memory": ["--recipe", "frozen-designer", "--memory-select", "random"],
    "frozen-no-memory": ["--recipe", "frozen-designer-no-memory"],
    "fixed-grpo": ["--recipe", "fixed-grpo"],
}
# (first, second, what the papers say of first - second)
CLAIMS = [("spade", "untrained", "+", "SPADE Table 1"), ("spade", "fixed-grpo", "+", "SPADE Table 1"),
          ("spade", "learning-potential", "+", "SPADE Table 3"), ("spade", "two-skills", "+", "SPADE Table 3"),
          ("spade", "no-corpus", "+", "SPADE Table 3"), ("spade", "no-memory", "+", "SPADE Table 3"),
          ("spade", "frozen-no-memory", "+", "SPADE Table 3"), ("variance", "absolute-zero", "+", "SPICE Fig. 7"),
          ("oracle", "frozen-no-memory", "gate", "here"), ("spade", "frozen-designer", "?", "here"),
          ("spade", "frozen-reward-memory", "?", "here"),
          ("spade", "frozen-random-memory", "?", "here"), ("spade", "spade-regret", "?", "here"),
          ("spade", "solve-rate", "?", "here"), ("spade", "variance", "?", "here")]


def run_arm(arm: str, seed: int, folder: Path, extra: list[str]) -> None:
    """One training run in a process of its own; continues an interrupted one, skips a finished one."""
    run = folder / f"{arm}-{seed}"
    if (run / "summary.json").exists():
        return
    command = [sys.executable, str(Path(__file__).parent / "train.py"), "--run-dir", str(run)]
    if (run / "checkpoint").exists():
        command += ["--resume", str(run)]
    else:
        command += [*ARMS[arm], "--seed", str(seed), "--heldout", "tiny-report", "--show-every", "0", *extra]
    with open(folder / f"{arm}-{seed}.log", "w") as log:   # one thread each: two runs side by side do not fight
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT,
                              env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
    print(f"{arm} seed {seed}: " + ("done" if code == 0 else f"failed, see {log.name}"), flush=True)


def collect(folder: Path, arms: list[str], seeds: list[int]) -> dict:
    """The numbers of the sweep: {arm: {figure: [one per finished seed]}}."""
    table = {}
    for arm in arms:
        for seed in seeds:
            run = folder / f"{arm}-{seed}"
            if not (run / "summary.json").exists():
                continue
            summary = json.loads((run / "summary.json").read_text())
            rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            fifth = max(len(rows) // 5, 1)
            after = summary["after"]
            figures = {"heldout": after["heldout/win_rate"], "rungs": after["heldout/rungs_mastered"],
                       "hinted": after["heldout/win_rate_hinted"],
                       "learnable_early": fmean(r["designer/learnable_share"] for r in rows[:fifth]),
                       "learnable_late": fmean(r["designer/learnable_share"] for r in rows[-fifth:]),
                       "rung_early": fmean(r["designer/rung"] for r in rows[:fifth] if "designer/rung" in r),
                       "rung_late": fmean(r["designer/rung"] for r in rows[-fifth:] if "designer/rung" in r),
                       "valid": fmean(r["designer/valid"] for r in rows[-fifth:]),
                       "unique": fmean(r["designer/unique"] for r in rows[-fifth:])}
            for key, value in figures.items():
                table.setdefault(arm, {}).setdefault(key, []).append(value)
            start = table.setdefault("untrained", {})
            start.setdefault("by_seed", {})[str(seed)] = summary["before"]
    start = table.pop("untrained", {}).get("by_seed", {})
    table["untrained"] = {"heldout": [s["heldout/win_rate"] for s in start.values()],
                          "rungs": [s["heldout/rungs_mastered"] for s in start.values()],
                          "hinted": [s["heldout/win_rate_hinted"] for s in start.values()]}
    return table


def standard_error(values: list[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def verdict(first: list[float], second: list[float]) -> tuple[float, float, str]:
    """Mean paired difference, its standard error, and the sign if it is beyond two standard errors."""
    differences = [a - b for a, b in zip(first, second)]
    mean, error = fmean(differences), standard_error(differences)
    return mean, error, "no difference at this size" if not abs(mean) > 2 * error else "+" if mean > 0 else "-"


def print_table(table: dict) -> None:
    print("| arm | held-out win rate | rungs mastered | with hint | learnable early / late | mean rung early / late "
          "| valid | unique |\n|---|---|---|---|---|---|---|---|")
    for arm, figures in sorted(table.items(), key=lambda item: -fmean(item[1]["heldout"])):
        def mean(key, figures=figures):
            return f"{fmean(figures[key]):.2f}" if figures.get(key) else "–"
        held = figures["heldout"]
        print(f"| {arm} | {fmean(held):.3f} ± {standard_error(held):.3f} (n={len(held)}) | {mean('rungs')} "
              f"| {mean('hinted')} | {mean('learnable_early')} / {mean('learnable_late')} "
              f"| {mean('rung_early')} / {mean('rung_late')} | {mean('valid')} | {mean('unique')} |")
    print("\n| comparison | paper | here: paired difference | verdict |\n|---|---|---|---|")
    for first, second, expected, source in CLAIMS:
        if first in table and second in table:
            mean, error, sign = verdict(table[first]["heldout"], table[second]["heldout"])
            word = {"+": "same sign", "-": "opposite sign"}.get(sign, sign) if expected == "+" else sign
            print(f"| {first} − {second} | {expected} ({source}) | {mean:+.3f} ± {error:.3f} | {word} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to this")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), metavar="ARM")
    parser.add_argument("--folder", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--table", type=Path, help="print the table of this JSON file and stop")
    options, extra = parser.parse_known_args()   # what is not known here goes to train.py, e.g. --rollouts 20
    if options.table:
        return print_table(json.loads(options.table.read_text()))
    options.folder.mkdir(parents=True, exist_ok=True)
    seeds = list(range(1, options.seeds + 1))
    with ThreadPoolExecutor(options.jobs) as pool:   # seed by seed, so that an early stop leaves whole comparisons
        list(pool.map(lambda job: run_arm(*job, options.folder, extra),
                      [(arm, seed) for seed in seeds for arm in options.arms]))
    table = collect(options.folder, options.arms, seeds)
    (options.folder / "ablations.json").write_text(json.dumps(table, indent=1))
    print_table(table)


if __name__ == "__main__":
    main()
