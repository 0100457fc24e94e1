"""A run folder: what happened, for people and programs, and how to go on.

A file of its own because "nothing already computed is lost" is a concept: JSON lines as they happen, checkpoints that
appear whole or not at all, and a resumed run that is the run that was interrupted.

    runs/NAME/args.json            the flags            metrics.jsonl   one object per rollout
    runs/NAME/environments/*.py    every program        plays.jsonl     one play per arm and environment
    runs/NAME/checkpoint/          a Hugging Face model plus optimizer.pt and state-RANK.json
    runs/NAME/summary.json         the held-out figures before and after

`checkpoint` is a link to `checkpoint-<rollout>`: the new folder is complete before the link moves to it, so a kill at
any moment leaves a usable one. No pickle is ever read: state is JSON, tensors are loaded with weights_only.
"""
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path

from safetensors import SafetensorError
from tqdm import tqdm

from machinery import metrics, ranks
from machinery.endpoint import Unreachable
from machinery.files import save_environment
from machinery.records import Environment
from machinery.state import State

SECONDS = Counter()   # what the phases of the current rollout took; see `timed`


def timed(phase: str) -> Callable:
    """A function so decorated adds its seconds to time/PHASE of the rollout's metrics."""
    def decorate(function):
        @wraps(function)
        def measured(*arguments, **options):
            began = time.time()
            result = function(*arguments, **options)
            SECONDS[phase] += time.time() - began
            return result
        return measured
    return decorate


@dataclass
class Rollout:
    opens: bool    # does it begin with a new set of environments?
    closes: bool   # is it the last of its set, so that the Designer is paid? The last of the run always is
    sampled: Callable[[], int]   # tokens that the sampler has written since it began


class Run:
    """The open folder. Only rank 0 writes what all ranks share."""

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self.interrupts = []

    @classmethod
    def open(cls, args) -> "Run":
        """The folder of --run-dir or --resume, the same on every rank; a new run must not write over an old one."""
        folder = args.resume or args.run_dir or f"runs/{args.recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
        if not args.resume and (Path(folder) / "args.json").exists():
            go_on = f"or go on with --resume {folder}" if (Path(folder) / "checkpoint").exists() else "or remove it"
            raise SystemExit(f"{folder} already holds a run: choose another --run-dir, {go_on}")
        return cls(ranks.gather([folder])[0])

    # --- one rollout after the other ---

    def rollouts(self, args, policy, state: State) -> Iterator[Rollout]:
        """Yields the rollouts that are left. Between them: checkpoints, and the end by Ctrl-C or a scheduler's SIGTERM,
        which lets a rollout finish.
        """
        handlers = {number: signal.signal(number, self.interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        saved, stop = True, False
        bar = tqdm(total=args.rollouts, initial=state.rollout, desc="rollouts", disable=ranks.rank() > 0)
        try:
            while state.rollout < args.rollouts and not stop:
                SECONDS.clear()
                SECONDS["began"] = time.time()
                sampled = policy.engine.sampled
                last = state.rollout == args.rollouts - 1
                opens = state.rollout % args.k == 0 or state.closed   # a raised run closed its last set early
                closes = state.rollout % args.k == args.k - 1 or last
                yield Rollout(opens, closes, lambda before=sampled: policy.engine.sampled - before)
                state.rollout += 1
                state.closed = closes
                bar.update()
                stop = any(ranks.gather(self.interrupts))   # of any rank: all leave together
                due = args.save_every and state.rollout % args.save_every == 0
                if due or stop or state.rollout == args.rollouts:
                    saved = self.save(policy, state.as_json(policy), state.rollout)
        finally:
            bar.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if stop or not saved:
            older = "" if saved else "The last checkpoint is older: saving failed. "
            raise SystemExit(f"stopped after {state.rollout} rollouts. {older}"
                             f"Go on with: python train.py --resume {self.folder}")

    def interrupt(self, number: int, frame) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        if self.interrupts:
            saved = (self.folder / "checkpoint").exists()
            raise SystemExit("stopped at once. " + (
                f"Go on from the last checkpoint: python train.py --resume {self.folder}" if saved
                else "There was no checkpoint yet."))
        self.interrupts.append(True)
        alone = ranks.world_size() == 1
        tqdm.write(f"{name}: this rollout is finished and saved first; once more to stop at once" if alone else
                   f"{name}: torchrun waits 30 s; after that the last checkpoint is what stays")

    def snapshot(self, args, policy, state: State) -> dict | None:
        """The state before a set is designed, to go on from if a Designer behind a URL does not answer; else None."""
        return state.as_json(policy) if args.designer_model else None

    def ask_or_stop(self, policy, state: State, before: dict | None, ask: Callable, *arguments):
        """ask(*arguments); where the Designer is out of reach on any rank, the run ends, saved as it was `before`."""
        if before is None:
            return ask(*arguments)
        answer, problem = None, ""
        try:
            answer = ask(*arguments)
        except Unreachable as error:
            problem = str(error)
        problem = next(filter(None, ranks.gather([problem])), "")
        if problem:
            if (self.folder / "checkpoint").resolve().name != f"checkpoint-{state.rollout}":
                self.save(policy, before, state.rollout)   # says so if it fails
            raise SystemExit(f"the Designer is out of reach: {problem}. "
                             f"Go on with: python train.py --resume {self.folder}")
        return answer

    def log(self, args, state: State, rollout: Rollout, facts: dict, hinted: list, plays: list) -> None:
        """This rollout's metrics and plays, to the folder and to the terminal."""
        facts |= metrics.measure(state, hinted, plays, rollout.opens)
        facts["time/tokens_per_second"] = rollout.sampled() / max(SECONDS["design"] + SECONDS["play"], 1e-9)
        facts |= {f"time/{phase}": seconds for phase, seconds in SECONDS.items() if phase != "began"}
        facts["time/total"] = time.time() - SECONDS["began"]
        self.append("metrics.jsonl", [{"rollout": state.rollout} | facts])
        self.append("plays.jsonl", ranks.gather(metrics.one_play_each(state, hinted + plays)))
        if ranks.rank() == 0:
            metrics.show(args, state, facts, hinted + plays)

    # --- files ---

    def put(self, name: str, text: str, mode: str = "w") -> None:
        if ranks.rank() == 0:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with open(self.folder / name, mode, encoding="utf-8", errors="replace") as file:
                    file.write(text)
            except OSError as error:
                raise self.unwritable(error) from error

    def append(self, name: str, records: list[dict]) -> None:
        self.put(name, "".join(json.dumps(record) + "\n" for record in records), "a")

    def unwritable(self, error: OSError) -> SystemExit:
        saved = (self.folder / "checkpoint").exists()
        return SystemExit(f"cannot write to {self.folder}: {error.strerror}. " + (
            f"The last checkpoint is whole: make room, then python train.py --resume {self.folder}" if saved else
            "Make room, or give another --run-dir"))

    def forget_after(self, rollout: int) -> None:
        """Drops what the checkpoint does not know of: those rollouts are about to happen again."""
        for path in self.folder.glob("environments/**/[0-9]*.py") if ranks.rank() == 0 else ():
            if int(path.name[:5]) >= rollout:   # named by the rollout that its window began with
                path.unlink()
        for name in ("metrics.jsonl", "plays.jsonl"):
            path = self.folder / name
            if ranks.rank() == 0 and path.exists():
                lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
                kept = [line for line in lines if line.endswith("\n") and json.loads(line)["rollout"] < rollout]
                self.put(name + ".new", "".join(kept))
                os.replace(self.folder / (name + ".new"), path)

    def save(self, policy, state: dict, rollout: int) -> bool:
        """Writes checkpoint-<rollout>, then moves the link. On a full disk the old one stays and the run goes on.
        Did it work? (Twice 12 bytes per parameter of disk: the old one goes last.)
        """
        new, link = self.folder / f"checkpoint-{rollout}", self.folder / "checkpoint"
        if ranks.rank() == 0:
            shutil.rmtree(new, ignore_errors=True)   # left by a kill in the middle of an earlier save
        tensors, problem = policy.state(), ""
        try:
            new.mkdir(exist_ok=True)
            (new / f"state-{ranks.rank()}.json").write_text(json.dumps(state), encoding="utf-8")
            if ranks.rank() == 0:
                policy.write(new, tensors)
        except (OSError, RuntimeError, SafetensorError) as error:   # torch reports a full disk as a RuntimeError
            problem = str(error)
        problem = next(filter(None, ranks.gather([problem])), "")   # and from here on every rank has written
        if ranks.rank() == 0 and problem:
            shutil.rmtree(new, ignore_errors=True)
            tqdm.write(f"could not save after {rollout} rollouts ({problem}): free some space. {link} stays as it was")
        elif ranks.rank() == 0:
            moving = self.folder / "checkpoint.moving"
            moving.unlink(missing_ok=True)
            moving.symlink_to(new.name)
            os.replace(moving, link)
            for old in self.folder.glob("checkpoint-*"):
                if old != new:
                    shutil.rmtree(old, ignore_errors=True)
        return not problem

    def load(self) -> tuple[Path, dict]:
        """The last complete checkpoint's folder and this rank's state."""
        folder = self.folder / "checkpoint"
        processes = len(list(folder.glob("state-*.json")))
        if processes != ranks.world_size():
            raise SystemExit(f"{self.folder} has no checkpoint yet: start the run again" if processes == 0 else
                             f"{folder} was saved by {processes} processes and can be resumed by as many only")
        return folder, json.loads((folder / f"state-{ranks.rank()}.json").read_text(encoding="utf-8"))

    def write_args(self, args) -> None:
        self.put("args.json.new", json.dumps(asdict(args) | {"resume": ""}, indent=1))
        if ranks.rank() == 0:
            os.replace(self.folder / "args.json.new", self.folder / "args.json")

    def write_environments(self, state: State) -> None:
        """Every program of the set, with what it earned; refused ones with the reason, in rejected/."""
        for d in state.designs:
            facts = {"reward": d.reward, "reason": d.reason, "rollout": state.rollout}
            where, environment = self.folder / "environments", d.environment
            if environment:
                facts |= {"hinted": d.window.hinted, "unhinted": d.window.by_rollout}
            else:
                where /= "rejected"
                environment = Environment(d.code, "", d.order.skill, "", d.order.document, d.name)
            try:
                save_environment(where, environment, **facts)
            except OSError as error:
                raise self.unwritable(error) from error

    def summary(self, args, state: State, end: dict) -> None:
        """What changed, measured, and where everything is."""
        if ranks.rank() == 0:
            lines = (self.folder / "metrics.jsonl").read_text().splitlines()
            metrics.summary(args, [json.loads(line) for line in lines], state.heldout_before, end)
            self.put("summary.json", json.dumps({"before": state.heldout_before, "after": end}, indent=1))
            print(f"the run is in {self.folder}")
