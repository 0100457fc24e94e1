"""tests/gpu.py at toy size, which is what it does without a GPU: the script for the day there is one is not rotten."""
import json
import os
import subprocess
import sys
from pathlib import Path

import tests.gpu as gpu
import tests.gpu_checks as gpu_checks

ROOT = Path(__file__).resolve().parent.parent


ONE_CORE = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def test_every_check_passes_at_toy_size_and_the_table_has_a_line_for_each(tmp_path):
    out = tmp_path / "gpu.json"
    done = subprocess.run([sys.executable, "tests/gpu.py", "--toy", "--out", str(out)], cwd=ROOT, capture_output=True,
                          text=True, env={**os.environ, **ONE_CORE})
    rows = json.loads(out.read_text())["rows"]
    assert done.returncode == 0, done.stdout
    assert {row["check"] for row in rows} == set(gpu_checks.CHECKS) == set(gpu.NAMES)
    assert all(row["verdict"] in ("ok", "skipped") for row in rows)
    assert {row["check"] for row in rows if row["verdict"] == "skipped"} <= {"vllm", "vllm-experts"}
    for row in rows:
        assert f"| {row['what']} | {row['verdict']} | {row['number']} |" in done.stdout


def test_it_goes_on_after_a_check_that_raises_and_one_that_kills_its_process(tmp_path, monkeypatch):
    def passes(toy):
        yield "first row", True, "1", {}

    def raises(toy):
        yield "before", True, "1", {}
        raise ValueError("no more memory")

    monkeypatch.setattr(gpu_checks, "CHECKS", {"a": raises, "b": passes})
    gpu.perform(["a", "b"], True, tmp_path / "rows")
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [(r.get("what"), r.get("verdict"), r.get("done")) for r in rows] == [
        ("before", "ok", None), ("a", "FAILED", None), (None, None, "a"), ("first row", "ok", None), (None, None, "b")]

    def dies(names, toy, into, seconds):   # the first process dies in "b", the second does the rest
        for name in names[:1] if "a" in names else names:
            into.open("a").write(json.dumps({"check": name, "what": name, "verdict": "ok", "number": "1"}) + "\n"
                                 + json.dumps({"done": name}) + "\n")
        return "exit status -9: killed" if "a" in names else ""
    monkeypatch.setattr(gpu, "in_a_process", dies)
    found = gpu.everything(["a", "b", "c"], True, tmp_path / "gpu.json")
    assert [(r["what"], r["verdict"]) for r in found] == [("a", "ok"), ("b", "FAILED"), ("c", "ok")]
    assert found[1]["number"] == "exit status -9: killed"
