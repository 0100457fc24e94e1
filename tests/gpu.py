"""What a GPU has to show, in at most ten minutes: one command, one line for each check, whatever fails before.

    python tests/gpu.py                         everything; writes gpu.json, and prints a table for the README
    python tests/gpu.py --only vllm train       some of it, by its name
    python tests/gpu.py --toy                   the same code at toy size; what happens anyway where there is no GPU

It needs torch and transformers, no network, and no model: the shapes are real, the weights random. vLLM is checked
where it is installed. On a GPU every check has a process of its own, so that one that dies takes nothing with it.
"""
import argparse
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch  # noqa: E402

NAMES = ["learner-0.6B", "learner-1.7B", "learner-4B", "log-probs", "gradient", "offload", "kl", "transformers", "vllm",
         "vllm-experts", "train", "two"]
SECONDS, LONGEST = 600, 200   # for everything; for one check


def perform(names: list[str], toy: bool, into: Path) -> None:
    """Runs these checks in this process; a JSON line for each row, and {"done": name} after each check."""
    from tests.gpu_checks import CHECKS  # here: who only starts processes needs no transformers
    with open(into, "a", buffering=1) as file:
        for name in names:
            start = time.monotonic()
            try:
                for what, ok, number, facts in CHECKS[name](toy):
                    took = time.monotonic() - start
                    verdict = "skipped" if ok is None else "ok" if ok else "FAILED"
                    row = {"check": name, "what": what, "verdict": verdict, "number": number,
                           "seconds": round(took, 1), "facts": facts}
                    file.write(json.dumps(row) + "\n")
            except (Exception, SystemExit) as error:   # the next check goes on
                file.write(json.dumps(failure(name, f"{type(error).__name__}: {error}")) + "\n")
            file.write(json.dumps({"done": name}) + "\n")
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def failure(name: str, why: str) -> dict:
    line = " ".join(why.split())[:300]
    return {"check": name, "what": name, "verdict": "FAILED", "number": line, "seconds": 0, "facts": {}}


def in_a_process(names: list[str], toy: bool, into: Path, seconds: float) -> str:
    """Why it ended early, or nothing. What it prints goes to a file beside `into`."""
    log = into.with_suffix(".log")
    command = [sys.executable, __file__, "--perform", str(into), "--only", *names] + ["--toy"] * toy
    with open(log, "a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"not done after {seconds:.0f} s"
        finally:
            if process.poll() is None:   # with all that it started
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    lines = log.read_text(errors="replace").strip().splitlines()
    return "" if code == 0 else f"exit status {code}: {lines[-1] if lines else ''}"


def next_group(left: list[str], toy: bool) -> list[str]:
    """What shares a process. On a GPU each check is alone; else only those of vLLM, which starts once in a process."""
    def alone(name):
        return not toy or name.startswith("vllm") and importlib.util.find_spec("vllm") is not None
    return left[:1] if alone(left[0]) else list(takewhile(lambda name: not alone(name), left))


def everything(names: list[str], toy: bool, out: Path) -> list[dict]:
    """The rows of all checks, printed as they come."""
    lines = out.with_suffix(".rows")
    lines.unlink(missing_ok=True)
    lines.with_suffix(".log").unlink(missing_ok=True)
    end, rows, left, read = time.monotonic() + SECONDS, [], list(names), 0
    while left:
        seconds = end - time.monotonic()
        if seconds < 10:
            rows += [failure(name, "no time left: run it alone, with --only") for name in left]
            break
        group = next_group(left, toy)
        why = in_a_process(group, toy, lines, seconds if toy else min(seconds, LONGEST))
        found = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        done = {row["done"] for row in found if "done" in row}
        new = [row for row in found[read:] if "done" not in row]
        broken = [name for name in group if name not in done][:1]   # the others of the group are tried again
        new += [failure(name, why) for name in broken]
        for row in new:
            print(f"{row['verdict']:8}{row['what']:46}{row['number']}", flush=True)
        rows, read = rows + new, len(found)
        left = [name for name in left if name not in done and name not in broken]
    return rows


def table(rows: list[dict], about: dict) -> str:
    versions = [f"{name} {about[name]}" for name in ("torch", "transformers", "vllm")]
    lines = [f"{', '.join([about['device'], *versions])}:", "", "| check | verdict | measured |", "|---|---|---|"]
    return "\n".join(lines + [f"| {row['what']} | {row['verdict']} | {row['number']} |" for row in rows])


def version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed
    for package in (name, name + "-cpu"):
        try:
            return installed(package)
        except PackageNotFoundError:
            continue
    return "not installed"


def main():
    parser = argparse.ArgumentParser(description="What a GPU has to show, in at most ten minutes.")
    parser.add_argument("--only", nargs="+", default=NAMES, choices=NAMES, metavar="NAME")
    parser.add_argument("--out", default="gpu.json", help="where the figures go (default gpu.json)")
    parser.add_argument("--toy", action="store_true", help="toy sizes, also on a GPU")
    parser.add_argument("--perform", default="", help=argparse.SUPPRESS)   # inside: the file for the rows
    args = parser.parse_args()
    toy = args.toy or not torch.cuda.is_available()
    if args.perform:
        return perform(args.only, toy, Path(args.perform))
    start = time.monotonic()
    rows = everything(args.only, toy, Path(args.out))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    about = {"device": device + ", toy sizes" * toy, "seconds": round(time.monotonic() - start),
             **{name: version(name) for name in ("torch", "transformers", "vllm")}}
    Path(args.out).write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")
    print("\n" + table(rows, about))
    failed = sum(row["verdict"] == "FAILED" for row in rows)
    print(f"\n{len(rows)} rows in {about['seconds']} s, {failed} failed; figures in {args.out}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
