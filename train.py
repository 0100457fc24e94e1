"""SPADE's Algorithm 1: one model designs environments, plays them with and without a hint, and learns both roles.

    every k rollouts:  the Designer writes n_envs environments and a hint for each; the Agent plays them with the hint
    every rollout:     the Agent plays them without it; one GRPO step on these plays, and at the end of the k rollouts
                       on the programs too; then the sampler gets the new weights
    advantage of a play     the return, minus the mean of its environment [/ std: --agent-advantage]
    advantage of a program  its reward over the k rollouts, minus the mean of its skill, times --designer-weight

What it leaves out: asynchronous rollouts, training a second model, learned rewards.

Try it:  python train.py                       the laptop model, a few minutes on two cores
         python train.py --model Qwen3-4B      the same code on a GPU
         python train.py --recipes             the papers' other rows
"""
import signal
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

import agent
import evaluate
import grpo
import regret
import sandbox
from curriculum import frozen_designer, new_environments, seed_of
from laptop import quizzes as tiny_spice
from laptop import tiny
from laptop import tool_worlds as tiny_tools
from machinery import ranks
from machinery.policy import Policy
from machinery.recipes import Args, parse
from machinery.run import Run, State, measure, one_play_each
from settings import rlve, spice, tools

LESSONS = {"tools": tiny_tools, "corpus": tiny_spice}   # what the laptop model is shown instead of games
SETTINGS = {"games": agent.GAMES, "tools": tools.TOOLS, "corpus": spice.CORPUS, "rlve": rlve.RLVE}


def jobs_for(args: Args, state: State, plays: int, hinted: bool) -> list[agent.Job]:
    """`plays` jobs per environment. The seed names the instance, not the arm: both arms meet the same ones.
    An environment that hung is not asked again.
    """
    arm = ("hinted",) if hinted and not args.paired_seeds else ()
    return [agent.Job(d.environment, seed_of(args.seed, state.rollout, d.environment.name, i, *arm), hinted)
            for d in state.designs for i in range(plays)
            if d.environment and d.slot.name not in state.hung and (d.environment.hint or not hinted)]


def designer_samples(args: Args, state: State, metrics: dict) -> list[grpo.Sample]:
    """The closed window's designs as samples: rewarded by what all plays showed, centred per skill over all ranks.

    Also what the memory keeps. Invalid designs stay in with their low reward: what is dropped is never unlearnt.
    """
    everyone = ranks.gather([(d.slot, d.code, d.environment, state.windows.get(d.slot.name), d.slot.name in state.hung)
                             for d in state.designs])
    # Without a single play that came to an end nothing is known of a program: it is paid like a refused one.
    played = [row for row in everyone if row[3] is not None and row[3].unhinted and not row[4]]
    rewards = regret.designer_rewards(args.designer_reward, [row[3] for row in played], state.learning_potential)
    paid = {row[0].name: regret.HUNG if row[4] else args.invalid_reward for row in everyone}
    paid |= {row[0].name: parts["reward"] for row, parts in zip(played, rewards)}
    designed = not args.pool and args.setting != "rlve"   # else these figures would be about nobody's doing
    for key in set(rewards[0] if rewards and designed else ()) - {"regret"}:   # measured when the window opens
        metrics[f"designer/{key}"] = regret.mean([parts[key] for parts in rewards])
    groups = [row[0].group for row in everyone]
    advantages = dict(zip(paid, grpo.group_advantages(list(paid.values()), groups, scale_by_std=False)))
    if designed:
        metrics["designer/reward_all"] = regret.mean(list(paid.values()))
    state.memory.add([{"name": slot.name, "skill": slot.skill, "code": code, "hint": environment.hint,
                       "win_rate": regret.solved_share(window.unhinted), "reward": paid[slot.name],
                       "regret": regret.hint_regret(window.hinted, window.first), "rollout": state.rollout}
                      for slot, code, environment, window, _ in played])
    for d in state.designs:
        d.reward = paid[d.slot.name]
    return [grpo.Sample(d.prompt + d.reply.ids, [0] * len(d.prompt) + [1] * len(d.reply.ids), d.reply.logprobs,
                        "designer", d.slot.group, d.reward, advantages[d.slot.name])
            for d in state.designs if d.reply is not None]


def agent_samples(args: Args, episodes: list[agent.Episode]) -> list[grpo.Sample]:
    """Unhinted episodes, advantages per environment. What the environment broke is not the Agent's doing."""
    played = [e for e in episodes if e.outcome != "env_error" and e.logprobs]
    advantages = grpo.group_advantages([e.ret for e in played], [e.environment.name for e in played],
                                       scale_by_std=args.agent_advantage == "zscore")
    samples = []
    for e, advantage in zip(played, advantages):
        sampled = len(e.logprobs)
        for piece in e.pieces:
            samples.append(grpo.Sample(piece.ids, piece.mask, piece.logprobs, "agent", e.environment.name, e.ret,
                                       advantage, share=len(piece.logprobs) / sampled))
    return samples


def taught(args: Args, state: State, plays: list[agent.Episode]) -> list[agent.Episode]:
    """What the Agent learns from: every play; of questions those of one valid one per document (SPICE, step 5)."""
    if args.setting != "corpus" or args.pool:
        return plays
    valid = defaultdict(list)
    for group, name in ranks.gather([(d.slot.group, d.slot.name) for d in state.designs if d.environment]):
        valid[group].append(name)
    chosen = {names[seed_of(args.seed, state.rollout, group) % len(names)] for group, names in valid.items()}
    return [e for e in plays if e.environment.name in chosen]


def zero_variance_groups(batch: list[grpo.Sample]) -> int:
    """Groups of all ranks whose members all earned the same: they teach nothing; many mean a dying curriculum."""
    seen = set(ranks.gather(list({(s.role, s.group, s.advantage != 0) for s in batch})))
    return len({(role, group) for role, group, _ in seen}) - sum(taught for *_, taught in seen)


def main(args: Args) -> Run:
    ranks.start()
    folder = args.resume or args.run_dir or f"runs/{args.recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    if not args.resume and (Path(folder) / "args.json").exists():
        raise SystemExit(f"{folder} already holds a run: choose another --run-dir" + (
            f", or go on with --resume {folder}" if (Path(folder) / "checkpoint").exists() else ", or remove it"))
    run = Run(ranks.gather([folder])[0])
    weights, saved = run.load() if args.resume else (None, None)
    state = State(args)
    folder_of = {"tiny": tiny.build(tiny.sample_texts(), lessons=LESSONS.get(args.setting))
                 } if args.model == "tiny" else {}
    sampling = dict(engine=args.engine, context=args.context, top_p=args.top_p, top_k=args.top_k,
                    thinking=args.thinking, tensor_parallel=args.tensor_parallel)
    # before the policy: what cannot be is said at once
    designer = args.designer_model and frozen_designer(folder_of.get(args.designer_model, args.designer_model),
                                                       **sampling)
    policy = Policy(folder_of.get(args.model, args.model), weights, seed=args.seed, lr=args.lr, kl=args.kl,
                    weight_decay=args.weight_decay, gradient_checkpointing=args.gradient_checkpointing,
                    offload=args.offload, sleep=args.sleep, **sampling)
    designer = designer or policy
    setting = tools.for_model(policy, judge=args.judge) if args.setting == "tools" else SETTINGS[args.setting]
    if args.setting == "games":   # a program that takes more turns than there are is not sound
        setting = replace(setting, validate=lambda box, e: sandbox.validate(box, e.code, args.max_turns))
    with open_sandbox(args, setting) as box:
        if saved:
            policy.load_optimizer(weights)
            state.restore(saved, policy)
            run.forget_after(state.rollout)
            run.write_args(args)   # --rollouts may have been raised
        else:
            run.write_args(args)
            state.start = evaluate.heldout(args, policy, box)
        loop(args, run, policy, designer, box, setting, state)
        run.summary(args, state, evaluate.heldout(args, policy, box))
    return run


def open_sandbox(args: Args, setting) -> sandbox.Sandbox:
    if args.unsafe_sandbox:
        tqdm.write("--unsafe-sandbox: generated programs run in processes that may not be sealed")
    try:
        return sandbox.Sandbox(strict=not args.unsafe_sandbox, prelude=setting.prelude)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error


def loop(args: Args, run: Run, policy: Policy, designer, box, setting, state: State) -> None:
    limits = dict(brief=args.brief, temperature=args.temperature, max_turns=args.max_turns,
                  max_new_tokens=args.max_tokens, context=args.context)
    stop, saved, interrupts = False, True, []
    before = signal.signal(signal.SIGINT, lambda *_: interrupt(run, interrupts))
    bar = tqdm(total=args.rollouts, initial=state.rollout, desc="rollouts", disable=ranks.rank() > 0)
    while state.rollout < args.rollouts and not stop:
        began, metrics, times = time.time(), {}, {}
        hinted, new = [], state.rollout % args.k == 0 or state.closed
        if new:                                                           # a new curriculum every k rollouts
            state.windows, state.hung, state.closed = {}, set(), False
            state.designs = new_environments(args, run, policy, designer, box, setting, state)
            times["design"] = time.time() - began
            hinted = agent.play_shown("plays with hint", policy, box, setting,
                                      jobs_for(args, state, args.hint_plays, True), **limits)
        plays = agent.play_shown("plays", policy, box, setting, jobs_for(args, state, args.plays, False), **limits)
        times["play"] = time.time() - began - times.get("design", 0)
        if args.setting == "corpus" and args.no_corpus and args.designer_reward == "r-zero":
            spice.majority_labels(plays)
        if args.setting == "rlve":
            rlve.note(state.levels, ranks.gather([(e.environment.code, e.ret) for e in plays]))
        note_returns(state, hinted, plays)
        batch = agent_samples(args, taught(args, state, plays))
        last = state.rollout == args.rollouts - 1                         # flush the last window, complete or not
        if state.rollout % args.k == args.k - 1 or last:
            state.closed = True
            designers = designer_samples(args, state, metrics)
            run.write_environments(state)
            # One program stands against k rollouts of plays: the factor gives both roles about the same weight.
            n_agent, n_designer = ranks.total([sum(sample.share for sample in batch), len(designers)])
            weight = args.designer_weight or min(max(n_agent, 1) / max(n_designer, 1) * args.k, 50)
            for sample in designers:
                sample.advantage *= weight
            if not args.freeze_designer:
                batch += designers
        metrics["loss/zero_variance_groups"] = zero_variance_groups(batch)
        learning = time.time()
        policy.engine.sleep()
        metrics |= grpo.update(policy, batch, temperature=args.temperature, reduction=args.loss_reduction,
                               longest=max(args.design_tokens, min(args.context, args.max_tokens * args.max_turns)),
                               clip_low=args.clip_low, clip_high=args.clip_high, tis_cap=args.tis_cap, kl=args.kl,
                               max_grad_norm=args.max_grad_norm, tokens_per_microbatch=args.tokens_per_microbatch)
        policy.sync()
        times |= {"learn": time.time() - learning, "total": time.time() - began}
        metrics |= measure(state, hinted, plays, new) | {f"time/{k}": v for k, v in times.items()}
        run.append("metrics.jsonl", [{"rollout": state.rollout} | metrics])
        run.append("plays.jsonl", ranks.gather(one_play_each(state, hinted + plays)))
        run.show(args, bar, state, metrics, hinted + plays)
        state.rollout += 1
        stop = any(ranks.gather(interrupts))                              # of any rank: all leave together
        if args.save_every and state.rollout % args.save_every == 0 or state.rollout == args.rollouts or stop:
            saved = run.save(policy, state.as_json(policy), state.rollout)
    bar.close()
    signal.signal(signal.SIGINT, before)
    if stop or not saved:
        raise SystemExit(f"stopped after {state.rollout} rollouts. " + (
            "" if saved else "The last checkpoint is older: saving failed. ") +
            f"Go on with: python train.py --resume {run.folder}")


def interrupt(run: Run, interrupts: list) -> None:
    if interrupts:
        saved = (run.folder / "checkpoint").exists()
        raise SystemExit("stopped at once. " + (f"Go on from the last checkpoint: python train.py --resume {run.folder}"
                                                if saved else "There was no checkpoint yet."))
    interrupts.append(True)
    tqdm.write("Ctrl-C: this rollout is finished and saved first; press again to stop at once" if
               ranks.world_size() == 1 else "Ctrl-C: torchrun waits 30 s; after that the last checkpoint is what stays")


def note_returns(state: State, hinted: list, plays: list) -> None:
    """Adds this rollout's returns to the open window."""
    returns = defaultdict(list)
    for e in hinted + plays:
        if e.outcome != "env_error":
            returns[e.environment.name, e.hinted].append(e.ret)
    for d in state.designs:
        if d.environment:
            window = state.windows.setdefault(d.slot.name, regret.Window(d.slot.skill, [], []))
            window.hinted += returns[d.slot.name, True]
            window.by_rollout.append(returns[d.slot.name, False])
    state.hung |= {e.environment.name for e in hinted + plays if e.error.startswith("timeout")}


if __name__ == "__main__":
    main(parse())
