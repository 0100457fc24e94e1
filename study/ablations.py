"""The papers' comparisons at laptop scale: fifteen arms over several seeds, one table with error bars.

What it teaches: how to compare training recipes honestly. Equal numbers of updates and of plays on offer (a program
that is refused is not played), several seeds, paired differences, held-out environments that no choice was made on, and
the ceiling first: if not even an oracle curriculum beats a Designer that never learns (the *gate*), no comparison of
Designers can show anything.

What it leaves out: anything about large models. The laptop world is ladders.py; a null here is a null here.

    python -m study.ablations --seeds 3                       all arms; an arm that is finished is not run again
    python -m study.ablations --seeds 3 --arms oracle frozen-no-memory       the gate
    python -m study.ablations --table study/ablations.json    prints the table of a saved result
    python -m study.ablations --seeds 5 --first 6 --rollouts 110 --folder runs/longer       other flags go to train.py

Everything was tuned on seed 0 and the held-out set `tiny`; the sweep reports seeds 1, 2, ... on the set `tiny-report`.
"""
import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev

from laptop import tiny

TRAIN = Path(__file__).parents[1] / "train.py"
# of every arm: updates, and the set to report on; programs and plays of each are everywhere the laptop's
BUDGET = "--rollouts 60 --heldout tiny-report --heldout-plays 8 --show-every 0".split()
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
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)   # two-sided 95 %, of 2, 3, ... seeds
# (first, second, what the papers say of first - second)
CLAIMS = [("spade", "untrained", "+", "SPADE Table 1"), ("spade", "fixed-grpo", "+", "SPADE Table 1"),
          ("spade", "learning-potential", "+", "SPADE Table 3"), ("spade", "two-skills", "+", "SPADE Table 3"),
          ("spade", "no-corpus", "+", "SPADE Table 3"), ("spade", "no-memory", "+", "SPADE Table 3"),
          ("spade", "frozen-no-memory", "+", "SPADE Table 3"), ("variance", "absolute-zero", "+", "SPICE Fig. 7"),
          ("oracle", "frozen-no-memory", "gate", "here"), ("oracle", "frozen-designer", "gate", "here"),
          ("oracle", "spade", "?", "here"), ("frozen-designer", "frozen-no-memory", "?", "here"),
          ("spade", "frozen-designer", "?", "here"), ("spade", "frozen-reward-memory", "?", "here"),
          ("spade", "frozen-random-memory", "?", "here"), ("spade", "spade-regret", "?", "here"),
          ("spade", "solve-rate", "?", "here"), ("spade", "variance", "?", "here")]


def run_arm(arm: str, seed: int, folder: Path, extra: list[str]) -> int:
    """One training run in a process of its own; continues an interrupted one, skips a finished one."""
    run = folder / f"{arm}-{seed}"
    if (run / "summary.json").exists():
        return 0
    command = [sys.executable, str(TRAIN), "--run-dir", str(run)]
    if (run / "checkpoint").exists():
        command += ["--resume", str(run)]
    else:
        shutil.rmtree(run, ignore_errors=True)   # ended before its first checkpoint
        command += [*ARMS[arm], "--seed", str(seed), *BUDGET, *extra]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}   # two runs side by side do not fight
    with open(folder / f"{arm}-{seed}.log", "w") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=one_thread).returncode
    outcome = "done" if code == 0 else f"failed, see {log.name}"
    print(f"{arm} seed {seed}: {outcome}", flush=True)
    return code


def collect(folder: Path) -> dict:
    """The numbers of all finished runs: {arm: {seed: {figure: value}}}."""
    table = {}
    for path in sorted(folder.glob("*/summary.json")):
        arm, _, seed = path.parent.name.rpartition("-")
        summary = json.loads(path.read_text())
        if "heldout/win_rate" not in summary["before"] or "heldout/win_rate" not in summary["after"]:
            continue   # every held-out play broke
        rows = [json.loads(line) for line in path.with_name("metrics.jsonl").read_text().splitlines()]
        fifth = max(len(rows) // 5, 1)
        early, late = rows[:fifth], rows[-fifth:]
        figures = held_out(summary["after"])
        for name in ("learnable_share", "rung"):
            figures[f"{name}_early"] = mean_of(early, f"designer/{name}")
            figures[f"{name}_late"] = mean_of(late, f"designer/{name}")
        for name in ("valid", "unique"):
            figures[name] = mean_of(late, f"designer/{name}")
        table.setdefault(arm, {})[seed] = figures
        table.setdefault("untrained", {})[seed] = held_out(summary["before"])   # the same in every arm
    return table


def mean_of(rows: list[dict], key: str) -> float | None:
    """The mean over the rows that have the key; None if none has."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return fmean(values) if values else None


def held_out(measured: dict) -> dict:
    return {"heldout": measured["heldout/win_rate"], "hinted": measured.get("heldout/win_rate_hinted"),
            "rungs": measured.get("heldout/rungs_mastered")}


def standard_error(values: list[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan


def comparisons(table: dict) -> list[tuple[str, str, list[float]]]:
    """What is compared, what the papers say, and the differences of the seeds that both sides have."""
    found = []
    for first, second, expected, source in CLAIMS:
        if first in table and second in table:
            ours, theirs = table[first], table[second]
            differences = [ours[seed]["heldout"] - theirs[seed]["heldout"] for seed in ours if seed in theirs]
            found.append((f"{first} − {second}", f"{expected} ({source})", differences))
    climbs = []
    for run in table.get("spade", {}).values():
        early, late = run.get("rung_early"), run.get("rung_late")
        if early is not None and late is not None:
            climbs.append(late - early)
    return [*found, ("mean rung of spade, late − early", "? (here)", climbs)]


def verdict(differences: list[float]) -> tuple[float, float, str]:
    """Mean, standard error, and the sign if it is outside the 95 % interval of Student's t (with three seeds 4.3
    standard errors, with five 2.8).
    """
    mean, error = fmean(differences), standard_error(differences)
    if len(differences) > 1:
        row = min(len(differences), len(STUDENT) + 1) - 2   # with more seeds than the table has, its last
        if abs(mean) > STUDENT[row] * error:
            return mean, error, "+" if mean > 0 else "-"
    return mean, error, "no difference at this size"


def print_table(table: dict) -> None:
    def average(arm, key):
        mean = mean_of(table[arm].values(), key)
        return "–" if mean is None else f"{mean:.2f}"

    print("| arm | held-out win rate | rungs mastered | with hint | learnable early / late | mean rung early / late "
          "| valid | unique |\n|---|---|---|---|---|---|---|---|")
    rates = {arm: [run["heldout"] for run in runs.values()] for arm, runs in table.items()}
    for arm in sorted(table, key=lambda arm: -fmean(rates[arm])):
        mean, error, n = fmean(rates[arm]), standard_error(rates[arm]), len(rates[arm])
        cells = [arm, f"{mean:.3f} ± {error:.3f} (n={n})", average(arm, "rungs"), average(arm, "hinted")]
        for key in ("learnable_share", "rung"):
            early, late = average(arm, f"{key}_early"), average(arm, f"{key}_late")
            cells.append(f"{early} / {late}")
        cells += [average(arm, "valid"), average(arm, "unique")]
        print(f"| {' | '.join(cells)} |")
    print("\n| comparison | papers | here: paired difference | verdict |\n|---|---|---|---|")
    for what, papers, differences in comparisons(table):
        if not differences:
            continue
        mean, error, word = verdict(differences)
        if papers.startswith("+"):
            word = {"+": "same sign", "-": "opposite sign"}.get(word, word)
        print(f"| {what} | {papers} | {mean:+.3f} ± {error:.3f} (n={len(differences)}) | {word} |")


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many; the table is of all that the folder has")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), metavar="ARM")
    parser.add_argument("--folder", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--table", type=Path, help="print the table of this JSON file and stop")
    options, extra = parser.parse_known_args(argv)   # what is not known here goes to train.py, e.g. --rollouts 20
    if options.table:
        return print_table(json.loads(options.table.read_text()))
    options.folder.mkdir(parents=True, exist_ok=True)
    flags = options.folder / "flags.json"
    begun = any(options.folder.glob("*/checkpoint")) and flags.exists()
    if begun and json.loads(flags.read_text()) != extra:
        parser.error(f"{options.folder} has runs with other flags, {flags.read_text()}: give another --folder")
    flags.write_text(json.dumps(extra))
    tiny.build(tiny.sample_texts())   # once, and not in every run that begins
    seeds = range(options.first, options.first + options.seeds)
    jobs = [(arm, seed) for seed in seeds for arm in options.arms]   # an early stop leaves whole comparisons
    with ThreadPoolExecutor(options.jobs) as pool:
        codes = list(pool.map(lambda job: run_arm(*job, options.folder, extra), jobs))
    table = collect(options.folder)
    (options.folder / "ablations.json").write_text(json.dumps(table, indent=1))
    print_table(table)
    failed = [code for code in codes if code != 0]
    if failed:
        raise SystemExit(f"{len(failed)} runs failed: the table is of the others. The same command goes on.")


if __name__ == "__main__":
    main()
