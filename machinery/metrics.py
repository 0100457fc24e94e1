"""What a rollout showed, as numbers and as text: the lines of metrics.jsonl, the terminal, the table at the end.

A file of its own because what is measured changes more often than how it is kept. A metric of your own is one line in
`measure`; an entry in CHARTS of study/report.py draws it.

What it leaves out: dashboards. TensorBoard and W&B are three lines of your own, see README, Forking.
"""
from collections import Counter
from statistics import fmean

from tqdm import tqdm

import regret
from machinery import ranks, source
from machinery.state import State


def measure(state: State, hinted: list, plays: list, opened: bool) -> dict:
    """The metrics of one rollout over all ranks; `opened`: it began with a new set. Both arms, always: their difference
    alone hides two diseases.
    """
    designs = ranks.gather(state.designs)
    episodes = ranks.gather([light(e) for e in hinted + plays])
    sound = [d for d in designs if d.environment]
    held = [d for d in designs if d.environment or d.copy]   # copies count as valid here, and not as different
    at_once = [d for d in held if d.order.attempt == 1]
    places = max(len([d for d in designs if d.order.attempt == 1]), 1)
    shares = [regret.solved_share(d.window.by_rollout[-1]) for d in sound]
    learnable = [share for share in shares if 0.2 <= share <= 0.8]
    programs = {source.normalised(d.code) for d in held}
    facts = {"agent/return": regret.mean(returns(episodes, False)),
             "designer/valid": len(at_once) / places,
             "designer/filled": len(sound) / places,
             "designer/attempts": len(designs) / places,
             "designer/learnable_share": len(learnable) / places,
             "designer/unique": len(programs) / places,
             "designer/crashed_plays": sum(sum(d.window.crashed) for d in sound),
             "agent/turns": regret.mean([float(e["turns"]) for e in episodes]),
             "tokens/sampled": float(sum(e["sampled"] for e in episodes))}
    if with_hint := returns(episodes, True):
        facts["agent/return_hinted"] = regret.mean(with_hint)
    if opened:
        facts |= measure_new_set(state, designs)
    rungs = [source.rung(d.code) for d in sound]
    if declared := [float(rung) for rung in rungs if rung is not None]:
        facts["designer/rung"] = regret.mean(declared)
    for outcome, count in Counter(e["outcome"] for e in episodes).items():
        facts[f"outcome/{outcome}"] = count / len(episodes)
    return facts


def light(episode) -> dict:
    """What is measured of an episode; its tokens need not travel between ranks."""
    return {"hinted": episode.hinted, "return": episode.ret, "outcome": episode.outcome,
            "sampled": len(episode.logprobs), "turns": sum(role == "assistant" for role, _ in episode.turns)}


def returns(episodes: list[dict], hinted: bool) -> list[float]:
    """Of one arm. What a program broke is no return of the Agent's."""
    return [e["return"] for e in episodes if e["hinted"] == hinted and e["outcome"] != "env_error"]


def measure_new_set(state: State, designs: list) -> dict:
    """What is known once, when a set has just been designed and played for the first time."""
    sound = [d for d in designs if d.environment]
    gaps = [regret.hint_regret(d.window.hinted, d.window.first) for d in sound if d.window.hinted]
    remembered = {source.normalised(r.code) for r in state.memory.records if r.rollout != state.rollout}
    repeats = [d for d in sound if source.normalised(d.code) in remembered]
    refused = Counter(d.reason.split(":")[0] for d in designs if d.reason and not d.environment)
    without_hint = [d for d in sound if d.reason]   # where a program that holds has a reason, its hint was refused
    return {"designer/regret": regret.mean(gaps), "designer/repeats": len(repeats),
            "designer/no_hint": len(without_hint),
            **{f"refused/{reason}": count for reason, count in refused.items()}}


def pay(written: list, parts: list[dict]) -> dict:
    """What the Designer earned: the parts of the reward over the programs that were played, and the mean over all that
    it wrote. Nothing where it wrote nothing: the figures would be about nobody's doing.
    """
    if not written:
        return {}
    names = [name for name in (parts[0] if parts else ()) if name != "regret"]   # that is measured when the set is new
    facts = {f"designer/{name}": regret.mean([part[name] for part in parts]) for name in names}
    return facts | {"designer/reward_all": regret.mean([d.reward for d in written])}


def one_play_each(state: State, episodes: list) -> list[dict]:
    """The first play of each environment and arm, for people to read."""
    first = {}
    for e in episodes:
        first.setdefault((e.environment.name, e.hinted), e)
    return [{"rollout": state.rollout, "environment": e.environment.name, "hinted": e.hinted, "seed": e.seed,
             "return": e.ret, "outcome": e.outcome, "error": e.error, "turns": e.turns} for e in first.values()]


# --- for people ---

def line(number: int, facts: dict) -> str:
    """A rollout in one line. What did not happen has no figure: without plays no return, without a step no gradient."""
    parts = [f"{number:4d}"]
    arms = f"return {facts['agent/return']:+.2f}"
    if "agent/return_hinted" in facts:
        arms += f"  hinted {facts['agent/return_hinted']:+.2f}"
    designer = f"valid {facts['designer/valid']:.2f}  learnable {facts['designer/learnable_share']:.2f}"
    if "designer/rung" in facts:
        designer += f"  rung {facts['designer/rung']:.2f}"
    if "designer/reward_all" in facts:
        designer += f"  reward {facts['designer/reward_all']:+.3f}"
    if "designer/weight" in facts:
        designer += f" x {facts['designer/weight']:.3g}"
    learner = "nothing to learn from"
    if "loss/entropy" in facts:
        learner = f"grad {facts['loss/grad_norm']:.2f}  entropy {facts['loss/entropy']:.2f}"
    return " | ".join([*parts, arms, designer, learner, f"{facts['time/total']:.1f} s"])


def show(args, state: State, facts: dict, episodes: list) -> None:
    """One line per rollout; now and then an environment and a play in full."""
    tqdm.write(line(state.rollout, facts))
    # among them may be the Designer's samples, which are older than the weights: then a difference is no sign
    old = args.k > 1 and not args.freeze_designer and "designer/reward_all" in facts
    if facts.get("loss/engine_mismatch", 0) > 0.1 and not old:
        tqdm.write("     learner and sampler disagree by more than 0.1 per token: stale weights in the sampler?")
    warn(args, state, facts)
    if args.show_every and state.rollout % args.show_every == 0 and episodes:
        e = episodes[0]
        arm = "with" if e.hinted else "without"
        said = [f"[{role}] {text}" for role, text in e.turns]
        text = "\n".join([f"\n--- {e.environment.name}: {e.environment.skill} ---", e.environment.code,
                          f"hint: {e.environment.hint}", f"--- a play {arm} hint ---", *said,
                          f"return {e.ret}: {e.outcome}\n"])
        # What a model wrote must not move the cursor of somebody's terminal.
        tqdm.write("".join(c if c.isprintable() or c == "\n" else "?" for c in text))


def warn(args, state: State, facts: dict) -> None:
    """What a person would want to know at once."""
    if "designer/no_hint" not in facts:   # no new set
        return
    sound = [d for d in state.designs if d.environment]
    if not sound:
        counts = {key.removeprefix("refused/"): n for key, n in facts.items() if key.startswith("refused/")}
        most_first = sorted(counts, key=counts.get, reverse=True)
        reasons = ", ".join(f"{counts[reason]} {reason}" for reason in most_first)
        tqdm.write(f"     this set is empty, nothing is played. Refused: {reasons}. The programs are in "
                   f"environments/rejected; more --attempts, more --design-tokens or a larger model may help")
    elif facts["designer/no_hint"] > 0.1 * len(sound) and args.hint_plays:
        tqdm.write(f"     {facts['designer/no_hint']} environments have no hint, so no hinted arm: more --hint-tokens?")
    if facts["designer/attempts"] > 1:
        at_once, filled = f"{facts['designer/valid']:.0%}", f"{facts['designer/filled']:.0%}"
        programs = f"{facts['designer/attempts']:.1f} programs for each place"
        tqdm.write(f"     {at_once} valid at once; after {programs} {filled} of the places are filled")


def summary(args, lines: list[dict], start: dict, end: dict) -> None:
    """A table of the first and the last tenth of the run, and of what was measured before and after."""
    two_sets = 2 * args.k   # half of the skills are in each
    tenth = min(max(len(lines) // 10, two_sets), len(lines))
    print(f"\n{'':34s}{'first':>8s}{'last':>8s}   (means over {tenth} rollouts)")
    for key in ("agent/return", "agent/return_hinted", "designer/valid", "designer/learnable_share",
                "designer/unique", "designer/rung"):
        first = [row[key] for row in lines[:tenth] if key in row]
        last = [row[key] for row in lines[-tenth:] if key in row]
        if first and last:
            print(f"{key:34s}{fmean(first):8.3f}{fmean(last):8.3f}")
    for key in end:
        if key in start:   # of an arm that programs broke there is no figure
            print(f"{key:34s}{start[key]:8.3f}{end[key]:8.3f}   (before and after training)")
    if not any(row["loss/grad_norm"] for row in lines):
        print("nothing was learnt: no group of samples had different rewards")
