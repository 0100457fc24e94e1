"""Environments held out from training: the laptop world's high rungs, or a folder of files."""
from pathlib import Path

import agent
from laptop import ladders
from machinery.files import check_setting, load_environment
from machinery.records import Environment

SETS = {"tiny": 0, "tiny-report": 1}   # the first to choose by, the second to report on (study/ablations.py)


def environments(where: str, n: int | None = None) -> list[Environment]:
    """The first n of a set or of a folder, all without n. Their instances (seeds 0, 1, ...) are in no training."""
    if where in SETS:
        programs = ladders.heldout_programs(SETS[where], n or 60)
        return [Environment(code, hint, skill, "games", "", f"heldout_{i:03d}_{rung}")
                for i, (code, hint, skill, rung) in enumerate(programs)]
    found = [load_environment(f) for f in sorted(Path(where).glob("*.py"))[:n]]
    if not found:
        raise SystemExit(f"{where} holds no environments: give a folder of *.py, such as runs/NAME/environments, or "
                         f"one of {', '.join(SETS)}")
    return found


def suite(args):
    """For evaluate.py: items, setting, prelude, the most turns."""
    found = environments(args.pool or "tiny")
    check_setting(found, agent.GAMES, f"--pool {args.pool}")
    return found, agent.GAMES, "", 25
