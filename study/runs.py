"""A run folder, read back: its metrics, and its programs with how they fared.

A file of its own because the report and the papers' figures both read runs, also such as were killed while they wrote.
"""
import json
import math
from pathlib import Path
from statistics import fmean

BANDS = ["over 80% solved", "20 to 80%: learnable", "under 20%", "never solved", "refused"]  # of programs
REFUSED = BANDS.index("refused")


def records(name: str, lines, wanted: set[str], broken: list[str]):
    """The JSON objects among `lines` that have the wanted keys; `broken` notes where the others stand."""
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and wanted <= record.keys():
            yield record
        else:
            broken.append(f"{name}:{number}")


def load(folder: Path) -> dict:
    """A run without its plays, which can be large and are read once it is known whose are shown.

    Its programs are what their files say of them, with `code`, `band` (a position in BANDS) and `regret`; those that
    were played have `return_hinted` and `returns` too, of the plays without the hint, rollout by rollout.
    """
    broken, programs, path = [], [], folder / "metrics.jsonl"
    if not path.exists():
        raise SystemExit(f"{folder} has no metrics.jsonl: give the folder of a run, such as runs/NAME")
    metrics = list(records(path.name, path.read_text("utf-8", "replace").splitlines(), {"rollout"}, broken))
    for path in sorted(folder.glob("environments/**/*.py")):
        head, _, code = path.read_text("utf-8", "replace").partition("\n")
        for e in records(path.name, [head[2:]], {"name", "skill", "rollout", "reward", "reason"}, broken):
            e |= {"code": code, "band": REFUSED, "regret": math.nan}
            if "unhinted" in e:
                e["band"] = band(e["unhinted"])
                e["return_hinted"] = mean_return(e["hinted"])
                e["returns"] = [mean_return(rollout) for rollout in e["unhinted"]]
                e["regret"] = e["return_hinted"] - e["returns"][0]   # the same weights played both
            programs.append(e)
    programs.sort(key=lambda e: (e["rollout"], e["band"]))
    return {"folder": folder, "metrics": metrics, "programs": programs, "broken": broken}


def mean_return(returns: list[float]) -> float:
    return fmean(returns) if returns else math.nan


def band(rollouts: list[list[float]]) -> int:
    """The position in BANDS of a program with these returns; one that nobody played is one that nobody solved."""
    solved = [ret > 0 for returns in rollouts for ret in returns]
    share = fmean(solved) if solved else 0
    if share > 0.8:
        return 0
    if share >= 0.2:
        return 1
    return 2 if share > 0 else 3
