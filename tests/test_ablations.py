"""The sweep: equal budgets, nothing run twice, and a table in the README that follows from the committed numbers."""
import json
import math
import re
import subprocess
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest

import ablations
import tiny
from recipes import parse

ROOT = Path(__file__).parent.parent


def runs(*rates):
    return {str(seed): {"heldout": rate} for seed, rate in enumerate(rates, 1)}


def test_verdict_by_hand():
    # differences .2 .3 .3: mean .8/3, standard deviation .1/sqrt(3), divided by sqrt(3)
    first, second = runs(.3, .5, .4), runs(.1, .2, .1, 7.)   # the second's fourth seed has no partner
    n, mean, error, sign = ablations.verdict(first, second)
    assert (n, sign) == (3, "+") and mean == pytest.approx(.8 / 3) and error == pytest.approx(.1 / 3)
    assert ablations.verdict(second, first)[1:] == (pytest.approx(-.8 / 3), pytest.approx(.1 / 3), "-")
    assert ablations.verdict(runs(.3, .1), runs(.2, .2))[3] == "no difference at this size"
    # differences .1 .3 .3: mean .7/3 is 3.5 standard errors of .2/3, clear among many seeds but not among three
    assert ablations.verdict(runs(.1, .3, .3), runs(0, 0, 0))[3] == "no difference at this size"
    assert ablations.verdict(runs(*[.1, .3, .3] * 4), runs(*[0.] * 12))[3] == "+"
    n, mean, error, sign = ablations.verdict(runs(.9), runs(.1))
    assert n == 1 and math.isnan(error) and sign == "no difference at this size"   # one seed proves nothing


@pytest.mark.parametrize("arm", ablations.ARMS)
def test_every_arm_has_the_same_budget(arm):
    flags, base = (vars(parse([*ablations.ARMS[name], *ablations.BUDGET])) for name in (arm, "spade"))
    for name in ("rollouts", "n_envs", "plays", "k" if not flags["pool"] else "plays", "context", "lr", "heldout",
                 "heldout_plays", "temperature"):
        assert flags[name] == base[name], name
    assert flags["heldout"] == "tiny-report" and flags["rollouts"] == 60


def fake_training(calls, after):
    def run(command, **_):
        calls.append(command)
        folder = Path(command[command.index("--run-dir") + 1])
        folder.mkdir(exist_ok=True)
        seed = int(command[command.index("--seed") + 1])
        measured = {"heldout/win_rate_hinted": .2, "heldout/rungs_mastered": 0.}
        (folder / "summary.json").write_text(json.dumps({
            "before": measured | {"heldout/win_rate": .01}, "after": measured | {"heldout/win_rate": after * seed}}))
        rows = [{"designer/learnable_share": i / 10, "designer/valid": 1., "designer/unique": 1.} for i in range(10)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return SimpleNamespace(returncode=0)
    return run


def test_a_sweep_runs_each_arm_once_and_tabulates_all(tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(tiny, "build", lambda texts: "")
    monkeypatch.setattr(subprocess, "run", fake_training(calls, .1))
    ablations.main(["--seeds", "2", "--arms", "spade", "fixed-grpo", "--folder", str(tmp_path), "--lr", "5"])
    assert len(calls) == 4 and all(call[-2:] == ["--lr", "5"] for call in calls)
    ablations.main(["--seeds", "3", "--arms", "spade", "--folder", str(tmp_path)])
    assert len(calls) == 5   # seeds 1 and 2 are there
    table = json.loads((tmp_path / "ablations.json").read_text())
    assert [run["heldout"] for run in table["spade"].values()] == pytest.approx([.1, .2, .3])
    assert len(table["fixed-grpo"]) == 2 and len(table["untrained"]) == 3
    assert table["spade"]["1"]["learnable_share_early"] == pytest.approx(.05)   # mean of 0 and .1
    assert table["spade"]["1"]["learnable_share_late"] == pytest.approx(.85)
    assert "rung" not in str(table["spade"]["1"]["rung_late"]) and table["spade"]["1"]["rung_late"] is None
    assert "| spade | 0.200 ± 0.058 (n=3) |" in capsys.readouterr().out


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: calls.append(command) or SimpleNamespace(returncode=1))
    (tmp_path / "spade-1" / "checkpoint").mkdir(parents=True)
    ablations.run_arm("spade", 1, tmp_path, [])
    assert calls[0][-2:] == ["--resume", str(tmp_path / "spade-1")]


# --- the committed result ---

@pytest.fixture(scope="module")
def table():
    return json.loads((ROOT / "ablations.json").read_text())


def test_the_readme_has_the_table_of_the_committed_numbers(table, capsys):
    ablations.main(["--table", str(ROOT / "ablations.json")])
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > len(ablations.ARMS) + len(ablations.CLAIMS)
    assert [line for line in printed if line not in readme] == []


def test_means_errors_and_signs_recomputed(table):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for arm, of_seed in table.items():
        mean, error, n = re.search(rf"^\| {arm} \| (\S+) ± (\S+) \(n=(\d)\) \|", readme, re.M).groups()
        rates = [run["heldout"] for run in of_seed.values()]
        assert int(n) == len(rates) and float(mean) == pytest.approx(fmean(rates), abs=6e-4)
        assert float(error) == pytest.approx(stdev(rates) / len(rates) ** .5, abs=6e-4)
    for first, second, expected, _ in ablations.CLAIMS:
        row = re.search(rf"^\| {first} − {second} \| .+ \| (\S+) ± (\S+) \(n=(\d)\) \| (.+) \|$", readme, re.M)
        gaps = [table[first][s]["heldout"] - table[second][s]["heldout"] for s in table[first] if s in table[second]]
        mean, error = fmean(gaps), stdev(gaps) / len(gaps) ** .5
        assert (float(row[1]), float(row[2])) == (pytest.approx(mean, abs=6e-4), pytest.approx(error, abs=6e-4))
        limit = {3: 4.303, 5: 2.776}[len(gaps)] * error
        sign = "no difference at this size" if abs(mean) <= limit else "+" if mean > 0 else "-"
        same = {"+": "same sign", "-": "opposite sign"} if expected == "+" else {}
        assert row[4] == same.get(sign, sign)


def test_what_the_readme_claims_holds(table):
    def difference(first, second):
        n, mean, error, sign = ablations.verdict(table[first], table[second])
        assert n == 5
        return mean, error, sign
    for other in ("untrained", "fixed-grpo"):
        mean, error, sign = difference("spade", other)
        assert mean > 2 * error and sign == "+"
    assert difference("oracle", "frozen-no-memory")[0] >= 0.25   # the gate: is there anything to be won?
    assert difference("spade", "frozen-no-memory")[0] >= 0.15
    assert difference("spade", "frozen-designer")[2] == "no difference at this size"
