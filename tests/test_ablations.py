"""The sweep: equal budgets, nothing run twice, and tables in study/README.md that follow from the committed numbers."""
import json
import math
import re
import subprocess
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest

from laptop import tiny
from study import ablations
from train import parse

ROOT = Path(__file__).parent.parent


def test_verdict_by_hand():
    # .2 .3 .3: mean .8/3, standard deviation .1/sqrt(3), divided by sqrt(3)
    assert ablations.verdict([.2, .3, .3]) == (pytest.approx(.8 / 3), pytest.approx(.1 / 3), "+")
    assert ablations.verdict([-.2, -.3, -.3]) == (pytest.approx(-.8 / 3), pytest.approx(.1 / 3), "-")
    assert ablations.verdict([.1, -.1])[2] == "no difference at this size"
    # .1 .3 .3: mean .7/3 is 3.5 standard errors of .2/3, clear among many seeds but not among three
    assert ablations.verdict([.1, .3, .3])[2] == "no difference at this size"
    assert ablations.verdict([.1, .3, .3] * 4)[2] == "+"
    # ten seeds, standard error 1/3: the limit is 2.262 standard errors, .754
    ten = [1., -1.] * 5
    assert ablations.standard_error(ten) == pytest.approx(1 / 3)
    assert ablations.verdict([d + .76 for d in ten])[2] == "+"
    assert ablations.verdict([d + .75 for d in ten])[2] == "no difference at this size"
    mean, error, sign = ablations.verdict([.8])
    assert math.isnan(error) and sign == "no difference at this size"   # one seed proves nothing


def test_differences_are_of_the_same_seed(capsys):
    def runs(*rates):
        return {str(seed): {"heldout": rate} for seed, rate in enumerate(rates, 1)}
    table = {"spade": runs(.3, .5, .4), "untrained": runs(.1, .2, .1, 7.)}   # the fourth has no partner
    (what, papers, differences), (_, _, climbs) = ablations.comparisons(table)
    assert (what, papers) == ("spade − untrained", "+ (SPADE Table 1)") and climbs == []
    assert differences == pytest.approx([.2, .3, .3])
    table["spade"]["1"] |= {"rung_early": 4., "rung_late": 4.5}
    assert ablations.comparisons(table)[-1][2] == [.5]
    table["oracle"] = {"9": {"heldout": .9}}   # shares no seed with anybody
    ablations.print_table(table)
    printed = capsys.readouterr().out
    assert "| spade − untrained |" in printed and "oracle −" not in printed


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
    ablations.main(["--seeds", "3", "--arms", "spade", "--folder", str(tmp_path), "--lr", "5"])
    assert len(calls) == 5   # seeds 1 and 2 are there
    table = json.loads((tmp_path / "ablations.json").read_text())
    assert [run["heldout"] for run in table["spade"].values()] == pytest.approx([.1, .2, .3])
    assert len(table["fixed-grpo"]) == 2 and len(table["untrained"]) == 3
    assert table["spade"]["1"]["learnable_share_early"] == pytest.approx(.05)   # mean of 0 and .1
    assert table["spade"]["1"]["learnable_share_late"] == pytest.approx(.85)
    assert table["spade"]["1"]["rung_late"] is None   # nothing declared it
    assert "| spade | 0.200 ± 0.058 (n=3) |" in capsys.readouterr().out
    (tmp_path / "spade-1" / "checkpoint").mkdir()
    with pytest.raises(SystemExit):   # another budget is another table
        ablations.main(["--seeds", "3", "--arms", "spade", "--folder", str(tmp_path), "--rollouts", "9", "--lr", "5"])
    assert "with other flags" in capsys.readouterr().err and len(calls) == 5


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: calls.append(command) or SimpleNamespace(returncode=1))
    (tmp_path / "spade-1" / "checkpoint").mkdir(parents=True)
    ablations.run_arm("spade", 1, tmp_path, [])
    assert calls[0][-2:] == ["--resume", str(tmp_path / "spade-1")]


# --- the committed results: the sweep of all arms, and five arms for as long as `python train.py` trains ---

FILES = ["ablations.json", "ablations-110.json"]
LIMIT = {3: 4.303, 5: 2.776}   # Student's t, two-sided 95 %, 2 and 4 degrees of freedom


def section(name):
    """The part of study/README.md that shows a file's tables."""
    readme = (ROOT / "study" / "README.md").read_text(encoding="utf-8")
    headings = ["## Results: all arms", "## Results: five arms", "## Speed and memory"]
    begin, end = headings[FILES.index(name)], headings[FILES.index(name) + 1]
    return readme[readme.index(begin):readme.index(end)]


@pytest.mark.parametrize("name", FILES)
def test_the_readme_has_the_tables_of_the_committed_numbers(name, capsys):
    ablations.main(["--table", str(ROOT / "study" / name)])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > 15 and [line for line in printed if line not in section(name).splitlines()] == []


@pytest.mark.parametrize("name", FILES)
def test_means_errors_and_signs_recomputed(name):
    table, text = json.loads((ROOT / "study" / name).read_text()), section(name)
    for arm, of_seed in table.items():
        mean, error, n = re.search(rf"^\| {arm} \| (\S+) ± (\S+) \(n=(\d)\) \|", text, re.M).groups()
        rates = [run["heldout"] for run in of_seed.values()]
        assert int(n) == len(rates) and float(mean) == pytest.approx(fmean(rates), abs=6e-4)
        assert float(error) == pytest.approx(stdev(rates) / len(rates) ** .5, abs=6e-4)
    for first, second, expected, _ in ablations.CLAIMS:
        if first not in table or second not in table:
            continue
        row = re.search(rf"^\| {first} − {second} \| .+ \| (\S+) ± (\S+) \(n=(\d)\) \| (.+) \|$", text, re.M)
        gaps = [table[first][s]["heldout"] - table[second][s]["heldout"] for s in table[first] if s in table[second]]
        mean, error = fmean(gaps), stdev(gaps) / len(gaps) ** .5
        assert (float(row[1]), float(row[2])) == (pytest.approx(mean, abs=6e-4), pytest.approx(error, abs=6e-4))
        sign = "no difference at this size" if abs(mean) <= LIMIT[len(gaps)] * error else "+" if mean > 0 else "-"
        same = {"+": "same sign", "-": "opposite sign"} if expected == "+" else {}
        assert row[4] == same.get(sign, sign)


@pytest.mark.parametrize("name", FILES)
def test_what_the_readme_claims_of_five_seeds_holds(name):
    table = json.loads((ROOT / "study" / name).read_text())
    found = {what: differences for what, _, differences in ablations.comparisons(table)}
    for other in ("untrained", "fixed-grpo"):
        mean, error, sign = ablations.verdict(found[f"spade − {other}"])
        assert len(found[f"spade − {other}"]) == 5 and mean > 2 * error and sign == "+"
    assert fmean(found["oracle − frozen-no-memory"]) >= 0.25   # the gate: is there anything to be won?
    assert fmean(found["spade − frozen-no-memory"]) >= 0.15
    if name == "ablations-110.json":
        assert all(seeds.keys() == {"6", "7", "8", "9", "10"} for seeds in table.values())
        assert fmean(found["oracle − frozen-designer"]) >= 0.25
        mean, error, _ = ablations.verdict(found["mean rung of spade, late − early"])
        assert mean > 2 * error
