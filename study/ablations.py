"""The papers' comparisons at laptop scale: fifteen arms over several seeds, one table with error bars.

What it teaches: how to compare training recipes honestly. Equal numbers of updates and of plays on offer (a program
that is refused is not played), several seeds, paired differences, held-out environments that no choice was made on, and
the ceiling first: if not even an oracle curriculum beats a Designer that never learns (the *gate*), no comparison of
Designers can show anything.

What it leaves out: anything about large models. The laptop world is ladders (tiny.py); a null here is a null here.

    python ablations.py --seeds 3                    all arms; an arm that is finished is not run again
    python ablations.py --seeds 3 --arms oracle frozen-no-memory       the gate
    python ablations.py --table ablations.json       prints the table of a saved result
    python ablations.py --seeds 5 --first 6 --rollouts 110 --folder runs/longer       other flags go to train.py

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
    command = [sys.executable, str(Path(__file__).parents[1] / "train.py"), "--run-dir", str(run)]
    if (run / "checkpoint").exists():
        command += ["--resume", str(run)]
    else:
        shutil.rmtree(run, ignore_errors=True)   # ended before its first checkpoint
        command += [*ARMS[arm], "--seed", str(seed), *BUDGET, *extra]
    with open(folder / f"{arm}-{seed}.log", "w") as log:   # one thread each: two runs side by side do not fight
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT,
                              env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
    print(f"{arm} seed {seed}: " + ("done" if code == 0 else f"failed, see {log.name}"), flush=True)
    return code


def collect(folder: Path) -> dict:
    """The numbers of all finished runs: {arm: {seed: {figure: value}}}."""
    table = {}
    for path in sorted(folder.glob("*/summary.json")):
        arm, _, seed = path.parent.name.rpartition("-")
        summary = json.loads(path.read_text())
        if not all("heldout/win_rate" in summary[when] for when in ("before", "after")):
            continue   # every held-out play broke
        rows = [json.loads(line) for line in path.with_name("metrics.jsonl").read_text().splitlines()]
        fifth = max(len(rows) // 5, 1)

        def mean(key, part):
            values = [row[key] for row in part if key in row]
            return fmean(values) if values else None
        figures = held_out(summary["after"])
        for name in ("learnable_share", "rung"):
            figures |= {f"{name}_early": mean(f"designer/{name}", rows[:fifth]),
                        f"{name}_late": mean(f"designer/{name}", rows[-fifth:])}
        figures |= {name: mean(f"designer/{name}", rows[-fifth:]) for name in ("valid", "unique")}
        table.setdefault(arm, {})[seed] = figures
        table.setdefault("untrained", {})[seed] = held_out(summary["before"])   # the same in every arm
    return table


def held_out(measured: dict) -> dict:
    return {"heldout": measured["heldout/win_rate"], "hinted": measured.get("heldout/win_rate_hinted"),
            "rungs": measured.get("heldout/rungs_mastered")}


def standard_error(values: list[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan


def comparisons(table: dict) -> list[tuple[str, str, list[float]]]:
    """What is compared, what the papers say, and the differences of the seeds that both sides have."""
    found = [(f"{first} − {second}", f"{expected} ({source})",
              [run["heldout"] - table[second][seed]["heldout"] for seed, run in table[first].items()
               if seed in table[second]])
             for first, second, expected, source in CLAIMS if first in table and second in table]
    climbs = [run["rung_late"] - run["rung_early"] for run in table.get("spade", {}).values()
              if None not in (run.get("rung_early"), run.get("rung_late"))]
    return found + [("mean rung of spade, late − early", "? (here)", climbs)]


def verdict(differences: list[float]) -> tuple[float, float, str]:
    """Mean, standard error, and the sign if it is outside the 95 % interval of Student's t (with three seeds 4.3
    standard errors, with five 2.8).
    """
    mean, error = fmean(differences), standard_error(differences)
    clear = len(differences) > 1 and abs(mean) > STUDENT[min(len(differences) - 2, len(STUDENT) - 1)] * error
    return mean, error, "no difference at this size" if not clear else "+" if mean > 0 else "-"


def print_table(table: dict) -> None:
    def average(runs, key):
        values = [run[key] for run in runs.values() if run.get(key) is not None]
        return f"{fmean(values):.2f}" if values else "–"

    print("| arm | held-out win rate | rungs mastered | with hint | learnable early / late | mean rung early / late "
          "| valid | unique |\n|---|---|---|---|---|---|---|---|")
    rates = {arm: [run["heldout"] for run in runs.values()] for arm, runs in table.items()}
    for arm in sorted(table, key=lambda arm: -fmean(rates[arm])):
        cells = [f"{fmean(rates[arm]):.3f} ± {standard_error(rates[arm]):.3f} (n={len(rates[arm])})"]
        cells += [average(table[arm], key) for key in ("rungs", "hinted")]
        cells += [f"{average(table[arm], key + '_early')} / {average(table[arm], key + '_late')}"
                  for key in ("learnable_share", "rung")]
        print("|", " | ".join([arm, *cells, *(average(table[arm], key) for key in ("valid", "unique"))]), "|")
    print("\n| comparison | papers | here: paired difference | verdict |\n|---|---|---|---|")
    for what, papers, differences in filter(lambda row: row[-1], comparisons(table)):
        mean, error, sign = verdict(differences)
        word = {"+": "same sign", "-": "opposite sign"}.get(sign, sign) if papers.startswith("+") else sign
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
    if any(options.folder.glob("*/checkpoint")) and flags.exists() and json.loads(flags.read_text()) != extra:
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
    if any(codes):
        raise SystemExit(f"{sum(map(bool, codes))} runs failed: the table is of the others. The same command goes on.")


if __name__ == "__main__":
    main()
