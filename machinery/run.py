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
import random
import shutil
import traceback
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError
from tqdm import tqdm

import regret
from designer import Corpus, Design, Environment, EnvironmentMemory, Slot
from machinery import ranks, source
from machinery.engines import Reply
from machinery.files import save_environment
from study import report


class State:
    """Everything a rollout changes besides the weights; `as_json` and back make a resumed run exact.

    `designs` are this rank's programs of the open window, `windows` the returns of those that hold, by name.
    """

    def __init__(self, args):
        self.rollout = 0
        self.closed = False     # has the Designer been paid for the open window?
        self.designs: list[Design] = []
        self.windows: dict[str, regret.Window] = {}
        self.hung: set[str] = set()
        self.corpus = None if args.no_corpus or args.pool else Corpus(args.corpus, args.document_words, args.seed)
        self.memory = EnvironmentMemory(args.memory, args.memory_select)
        self.learning_potential = regret.LearningPotential()
        self.levels: dict[str, list[int]] = {}   # of rlve.py's generators
        self.rng = random.Random(f"{args.seed} slots")
        self.start: dict = {}   # held-out figures before training

    def as_json(self, policy) -> dict:
        return {"rollout": self.rollout, "closed": self.closed, "start": self.start, "hung": sorted(self.hung),
                "designs": [asdict(d) for d in self.designs],
                "windows": {name: asdict(w) for name, w in self.windows.items()},
                "corpus": self.corpus.drawn if self.corpus else 0, "memory": self.memory.records,
                "learning_potential": self.learning_potential.state_dict(), "levels": self.levels,
                "rng": self.rng.getstate(), "sampler": policy.rng.getstate()}

    def restore(self, saved: dict, policy) -> None:
        def design(d):
            return Design(**d | {"slot": Slot(**d["slot"]), "reply": d["reply"] and Reply(**d["reply"]),
                                 "environment": d["environment"] and Environment(**d["environment"])})
        self.rollout, self.start, self.hung = saved["rollout"], saved["start"], set(saved["hung"])
        self.closed = saved["closed"]
        self.designs = [design(d) for d in saved["designs"]]
        self.windows = {name: regret.Window(**w) for name, w in saved["windows"].items()}
        if self.corpus:
            self.corpus.drawn = saved["corpus"]
        self.memory.records, self.levels = saved["memory"], saved["levels"]
        self.learning_potential.load_state_dict(saved["learning_potential"])
        for rng, state in ((self.rng, saved["rng"]), (policy.rng, saved["sampler"])):
            rng.setstate((state[0], tuple(state[1]), state[2]))


class Run:
    """The open folder. Only rank 0 writes what all ranks share."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

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
        """Every program of the window, with what it earned; refused ones with the reason, in rejected/."""
        for d in state.designs:
            facts = {"reward": d.reward, "reason": d.reason, "rollout": state.rollout}
            where, environment = self.folder / "environments", d.environment
            if environment:
                window = state.windows[d.slot.name]
                facts |= {"hinted": window.hinted, "unhinted": window.by_rollout}
            else:
                where /= "rejected"
                environment = Environment(d.code, "", d.slot.skill, "", d.slot.document, d.slot.name)
            try:
                save_environment(where, environment, **facts)
            except OSError as error:
                raise self.unwritable(error) from error

    def show(self, args, bar, state: State, metrics: dict, episodes: list) -> None:
        """One line per rollout; now and then an environment and a play in full."""
        if ranks.rank() > 0:
            return
        m = metrics
        line = f"{state.rollout:4d} | return {m['agent/return']:+.2f}"
        if "agent/return_hinted" in m:
            line += f"  hinted {m['agent/return_hinted']:+.2f}"
        line += f" | valid {m['designer/valid']:.2f}  learnable {m['designer/learnable_share']:.2f}"
        if "designer/rung" in m:
            line += f"  rung {m['designer/rung']:.2f}"
        if "designer/reward_all" in m:
            line += f"  reward {m['designer/reward_all']:+.3f}"
        line += f" | grad {m['loss/grad_norm']:.2f}  entropy {m.get('loss/entropy', 0):.2f} | {m['time/total']:.1f} s"
        tqdm.write(line)
        # among them may be the Designer's samples, which are k rollouts old: then a difference is no sign
        old = args.k > 1 and not args.freeze_designer and "designer/reward_all" in m
        if m.get("loss/engine_mismatch", 0) > 0.1 and not old:
            tqdm.write("     learner and sampler disagree by more than 0.1 per token: stale weights in the sampler?")
        bar.update()
        if args.show_every and state.rollout % args.show_every == 0 and episodes:
            e = episodes[0]
            text = "\n".join([f"\n--- {e.environment.name}: {e.environment.skill} ---", e.environment.code,
                              f"hint: {e.environment.hint}", f"--- a play {'with' if e.hinted else 'without'} hint ---",
                              *(f"[{role}] {said}" for role, said in e.turns), f"return {e.ret}: {e.outcome}\n"])
            # What a model wrote must not move the cursor of somebody's terminal.
            tqdm.write("".join(c if c.isprintable() or c == "\n" else "?" for c in text))

    def summary(self, args, state: State, end: dict) -> None:
        """What changed, measured; and where everything is."""
        if ranks.rank() > 0:
            return
        lines = [json.loads(x) for x in (self.folder / "metrics.jsonl").read_text().splitlines()]
        tenth = min(max(len(lines) // 10, 2 * args.k), len(lines))   # two sets: half of the skills are in each
        print(f"\n{'':34s}{'first':>8s}{'last':>8s}   (means over {tenth} rollouts)")
        for key in ("agent/return", "agent/return_hinted", "designer/valid", "designer/learnable_share",
                    "designer/unique", "designer/rung"):
            ends = [[x[key] for x in part if key in x] for part in (lines[:tenth], lines[-tenth:])]
            if all(ends):
                print(f"{key:34s}{regret.mean(ends[0]):8.3f}{regret.mean(ends[1]):8.3f}")
        for key in [key for key in end if key in state.start]:   # of an arm that programs broke there is no figure
            print(f"{key:34s}{state.start[key]:8.3f}{end[key]:8.3f}   (before and after training)")
        self.put("summary.json", json.dumps({"before": state.start, "after": end}, indent=1))
        if not any(x["loss/grad_norm"] for x in lines):
            print("nothing was learnt: no group of samples had different rewards")
        print(f"the run is in {self.folder}")
        try:
            print(f"the report is {report.write(self.folder)}")
        except Exception:   # whatever is wrong with the page, the run is complete
            traceback.print_exc()
            print(f"the run is complete and saved, only its report failed: python report.py {self.folder}")


def measure(state: State, hinted: list, plays: list, new: bool) -> dict:
    """The metrics of one rollout over all ranks; `new`: the first of its set. Both arms, always: their difference alone
    hides two diseases.
    """
    rows = ranks.gather([(e.hinted, e.ret, e.outcome, len(e.logprobs),
                          sum(role == "assistant" for role, _ in e.turns)) for e in hinted + plays])
    returns = {arm: [r[1] for r in rows if r[0] == arm and r[2] != "env_error"] for arm in (True, False)}
    designs = ranks.gather([(d.code, d.environment is not None, d.reason) for d in state.designs])
    codes = [code for code, valid, _ in designs if valid]
    solved = ranks.gather([regret.solved_share(window.by_rollout[-1]) for window in state.windows.values()])
    wanted = max(len(designs), 1)
    metrics = {"agent/return": regret.mean(returns[False]),
               "designer/valid": len(codes) / wanted,
               "designer/learnable_share": sum(0.2 <= share <= 0.8 for share in solved) / wanted,
               "designer/unique": len(set(map(source.normalised, codes))) / wanted,
               "agent/turns": regret.mean([float(r[4]) for r in rows]),
               "tokens/sampled": float(sum(r[3] for r in rows))}
    if returns[True]:
        metrics["agent/return_hinted"] = regret.mean(returns[True])
    if new:
        gaps = ranks.gather([regret.hint_regret(w.hinted, w.first) for w in state.windows.values() if w.hinted])
        metrics["designer/regret"] = regret.mean(gaps)
        old = {source.normalised(r["code"]) for r in state.memory.records if r["rollout"] != state.rollout}
        metrics["designer/repeats"] = sum(source.normalised(code) in old for code in codes)
        reasons = Counter(reason.split(":")[0] for _, valid, reason in designs if reason and not valid)
        metrics |= {f"refused/{reason}": count for reason, count in reasons.items()}
        # where a program that holds has a reason, its hint was refused
        metrics["designer/no_hint"] = sum(valid and reason != "" for _, valid, reason in designs)
    rungs = [rung for rung in map(source.rung, codes) if rung is not None]
    if rungs:
        metrics["designer/rung"] = regret.mean([float(r) for r in rungs])
    for outcome, count in Counter(r[2] for r in rows).items():
        metrics[f"outcome/{outcome}"] = count / len(rows)
    return metrics


def one_play_each(state: State, episodes: list) -> list[dict]:
    """The first play of each environment and arm, for people to read."""
    first = {(e.environment.name, e.hinted): e for e in reversed(episodes)}
    return [{"rollout": state.rollout, "environment": name, "hinted": arm, "seed": e.seed, "return": e.ret,
             "outcome": e.outcome, "error": e.error, "turns": e.turns} for (name, arm), e in first.items()]
