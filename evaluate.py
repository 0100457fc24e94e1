r"""Held-out benchmarks: does it help on work that nobody trained on?

    python evaluate.py --model runs/NAME --suites heldout,reasoning-gym --out after.jsonl
    python evaluate.py --compare before.jsonl after.jsonl        paired differences
    python evaluate.py --run runs/NAME                           the papers' analysis figures

What it teaches: a benchmark's item is an environment; `agent.play()`, the loop that trains, also measures. A
score without its uncertainty is an anecdote: see benchmarks/scores.py.
What it leaves out: judges that are models, few-shot prompts, and choosing the checkpoint by the suite that is
then reported (both papers do). The prompts are our own.
"""
import argparse
import json
import random
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from jinja2 import TemplateError
from tqdm import tqdm

import agent
import sandbox
from benchmarks import heldout, problems, rules
from benchmarks.scores import compare, read_results, show
from benchmarks.suites import SUITES
from laptop import tiny
from machinery import flags, ranks, source
from machinery.endpoint import Endpoint, Unreachable
from machinery.files import check_setting
from machinery.policy import Policy
from study import figures


def heldout_rates(args, policy, box, setting) -> dict[str, float]:
    """For train.py: win rates on held-out environments, without and with hint; {} where there are none."""
    if not args.heldout:
        return {}
    environments = heldout.environments(args.heldout, args.heldout_envs)
    check_setting(environments, setting, f"--heldout {args.heldout}")
    episodes = []
    starts = range(0, len(environments), 15)   # not all at once: every live episode is a process
    for start in tqdm(starts, desc="held-out plays", leave=False, delay=5, disable=ranks.rank() > 0):
        jobs = []
        for environment in ranks.share(environments[start:start + 15], args.tensor_parallel):
            arms = (False, True) if environment.hint else (False,)
            jobs += [agent.Job(environment, seed, hinted) for seed in range(args.heldout_plays) for hinted in arms]
        episodes += agent.play_shown("held-out plays", policy, box, setting, jobs, args)
    won, won_by_rung = defaultdict(list), defaultdict(list)
    for hinted, ret, skill, rung in ranks.gather([
            (e.hinted, e.ret, e.environment.skill, source.rung(e.environment.code))
            for e in episodes if e.outcome != "env_error"]):
        won["heldout/win_rate_hinted" if hinted else "heldout/win_rate"].append(ret > 0)
        if rung is not None and not hinted:
            won_by_rung[skill, rung].append(ret > 0)
    rates = {name: fmean(wins) for name, wins in won.items()}
    if won_by_rung:
        mastered = [fmean(wins) >= 0.5 for wins in won_by_rung.values()]
        rates["heldout/rungs_mastered"] = fmean(mastered)
    return rates


# --- playing a suite ---

def load_model(args, trained: dict, seed: int):
    """A server, a run's checkpoint, the laptop model, or whatever Policy can load."""
    if args.model.startswith(("http://", "https://")):
        return Endpoint(args.model)
    name = tiny.build(tiny.sample_texts()) if args.model == "tiny" else args.model
    checkpoint = Path(name) / "checkpoint"
    return Policy(str(checkpoint if checkpoint.exists() else name), seed=seed, engine=args.engine, learns=False,
                  context=args.context or trained["context"], thinking=trained["thinking"])


def trained_with(model: str) -> dict:
    """The flags that a run trained `model` with; of any other model the defaults of train.py."""
    file = Path(model) / "args.json"
    small = flags.TINY if flags.is_laptop_model(model) else {}
    return vars(flags.Args(**small)) | (json.loads(file.read_text()) if file.exists() else {})


def sampling_of(args, trained: dict, name: str) -> dict:
    """How a suite is sampled: as in the papers, a small model as it was trained, and any flag wins."""
    suite = SUITES[name]
    sampling = ("temperature", "top_p", "top_k", "max_tokens")
    chosen = {key: getattr(suite, key) for key in sampling} | {
        "samples": suite.samples, "context": trained["context"], "brief": trained["brief"],
        "prompt": trained["prompt"], "seed": args.seed}
    if trained["brief"] or suite.as_trained:
        chosen |= {key: trained[key] for key in sampling}
    return chosen | {key: value for key, value in vars(args).items() if key in chosen and value is not None}


def run_suite(name: str, args, policy, chosen: dict, out: Path, done: list[dict]) -> None:
    """Plays what `done`, the lines of an earlier start, lacks; each episode is a line as soon as it is over."""
    items, setting, prelude, max_turns = SUITES[name].make(args)
    random.Random(0).shuffle(items)   # so that --limit takes some of everything
    seen = {(r["item"], r["sample"]) for r in done if r["suite"] == name and r.get("score") is not None}
    jobs = [agent.Job(item, args.seed + sample, False) for sample in range(chosen["samples"])
            for item in items[:args.limit] if (item.name, sample) not in seen]
    checkpoint = (Path(args.model) / "checkpoint").resolve().name   # checkpoint-110; of a model just "checkpoint"
    setup = {key: value for key, value in chosen.items() if key != "samples"} | {
        "model": args.model, "weights": checkpoint, "pool": args.pool, "data": args.data, "user": args.user_model}
    print(f"{name}: {setup}")
    before = [r["setup"] for r in done if r["suite"] == name and "setup" in r]
    if before and before[0] != setup:
        raise SystemExit(f"{out} has {name} with other settings, {before[0]}: give another --out")
    policy.engine.fixed.update(top_p=chosen["top_p"], top_k=chosen["top_k"])
    if isinstance(policy, Policy):   # of a server nothing is known
        try:
            setting = setting.for_run(setting, argparse.Namespace(max_turns=max_turns, **chosen), policy)
        except SystemExit as refusal:
            raise problems.Missing(f"cannot be played: {refusal}") from None
        setting = rules.for_model(policy, setting)

    def write(**line):
        done.append({"suite": name} | line)
        file.write(json.dumps(done[-1]) + "\n")
        file.flush()

    def record(episode):
        environment, sample = episode.environment, episode.seed - args.seed
        said = any(role == "assistant" for role, _ in episode.turns)
        # not the model's fault: what breaks before it spoke, and programs of held-out plays, which another wrote
        excused = episode.outcome == "env_error" and (
            not said or SUITES[name].as_trained or episode.error.startswith("infrastructure"))
        write(category=environment.skill, item=environment.name, sample=sample, turns=episode.turns,
              verdict=episode.error or episode.outcome,
              score=None if excused else float(episode.ret > 0))
        bar.update()

    at_once = 1024 if policy.engine.streams else 64
    with (sandbox.Sandbox(strict=not args.unsafe_sandbox, prelude=prelude) as box, open(out, "a") as file,
          tqdm(total=len(jobs), desc=name) as bar):
        if not before:
            write(setup=setup)
        for start in range(0, len(jobs), at_once):
            agent.play(policy, box, setting, jobs[start:start + at_once], brief=chosen["brief"],
                       temperature=chosen["temperature"], max_turns=max_turns,
                       max_new_tokens=chosen["max_tokens"], context=chosen["context"], progress=record)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description="Score a model on held-out suites: " + ", ".join(SUITES))
    add = parser.add_argument
    add("--model", help="runs/NAME, 'tiny', a folder or hub id, or URL#NAME of an OpenAI-compatible server")
    add("--suites", default="heldout", help="comma-separated, or 'all'; 'aime' is its three years")
    add("--out", type=Path, help="results, a line for each sample; a file that exists is continued")
    add("--limit", type=int, help="items of each suite, drawn from all of it")
    add("--data", default="", help="a folder with NAME.jsonl files, or a copy of ACEBench or tau2-bench")
    add("--pool", default="", help="a folder of environment files for heldout")
    add("--user-model", default="", help="URL#NAME that plays the user in acebench-agent and tau2")
    add("--engine", default="auto", choices=["auto", "vllm", "transformers"])
    add("--seed", type=int, default=0, help="of instances and the order of options")
    for flag in ("samples", "temperature", "top-p", "top-k", "max-tokens", "context"):
        kind = float if flag in ("temperature", "top-p") else int
        add("--" + flag, type=kind, help="instead of the suite's own")
    add("--unsafe-sandbox", action="store_true", help="go on where workers cannot be sealed")
    add("--compare", nargs=2, type=Path, metavar=("A", "B"), help="two results files: paired differences")
    add("--run", type=Path, help="a run folder: the papers' analysis figures")
    args = parser.parse_args(argv)
    if args.compare:
        if missing := [str(path) for path in args.compare if not path.exists()]:
            parser.error(f"no results in {', '.join(missing)}: evaluate.py --out writes them")
        return compare(*args.compare)
    if args.run:
        return figures.show(args.run)
    names = re.sub(r"\baime\b", "aime24,aime25,aime26", args.suites).split(",")
    names = list(SUITES) if names == ["all"] else names
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        parser.error(f"no suite {unknown[0]}; there are {', '.join(SUITES)}")
    if not args.model:
        parser.error("which --model?")
    out = args.out or Path("eval") / (re.sub(r"\W+", "-", args.model).strip("-") + ".jsonl")
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        with open(out, "rb+") as file:   # a kill may have cut its last line
            file.truncate(file.read().rfind(b"\n") + 1)
    done, trained, skipped = read_results(out), trained_with(args.model), []
    policy = load_model(args, trained, args.seed + len(done))   # continued, it must not repeat its samples
    for name in names:
        try:
            run_suite(name, args, policy, sampling_of(args, trained, name), out, done)
        except problems.Missing as missing:
            skipped.append(f"{name} {missing}")
        except TemplateError as error:
            skipped.append(f"{name} cannot be played: the chat template says: {error}")
            while policy.engine.busy():   # what was asked before is no reply to the next suite
                policy.engine.collect()
        except Unreachable as error:
            raise SystemExit(f"{error}. The same command goes on from here.") from None
    show(read_results(out))
    print(f"\nThe samples are in {out}.", *(f"Skipped: {line}" for line in skipped), sep="\n")
    if skipped:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
