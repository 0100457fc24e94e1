"""SPADE's Algorithm 1: one model designs environments, plays them with and without a hint, and learns both roles.

    every k rollouts:  the Designer writes n_envs environments and a hint for each; the Agent plays them with the hint
    every rollout:     the Agent plays them without it; one GRPO step on these plays, and at the end of the k rollouts
                       on the programs too; then the sampler gets the new weights
    advantage of a play     the return, minus the mean of its environment [/ std: --agent-advantage]
    advantage of a program  its reward over the k rollouts, less its skill's mean, times a weight (--designer-weight)

What it leaves out: asynchronous rollouts, learned rewards. How a run is saved, resumed and stopped is machinery/run.py.

Try it:  python train.py                       the laptop model, a few minutes on two cores
         python train.py --model Qwen3-4B      the same code on a GPU
         python train.py --recipes             the papers' other rows
"""
from functools import partial

import agent
import designer
import evaluate
import grpo
import regret
from laptop import tiny
from laptop.texts import texts_for
from machinery import flags, metrics, ranks, start
from machinery.flags import Args
from machinery.records import refuse_copies
from machinery.run import Run, timed
from machinery.seeds import seed_of
from machinery.state import State
from settings import pools, rlve, spice, tools
from study import report

SETTINGS = {"games": agent.GAMES, "tools": tools.TOOLS, "corpus": spice.CORPUS, "rlve": rlve.RLVE}
parse = partial(flags.parse, settings=SETTINGS)


def train(args: Args, run: Run, policy, author, box, setting, state: State) -> None:
    """Algorithm 1. `author` is who designs: the policy itself, unless --designer-model names another."""
    for rollout in run.rollouts(args, policy, state):
        # 1. Every k rollouts the Designer writes new environments, and the Agent plays them with the hint.
        hinted = []
        if rollout.opens:
            state.designs = new_set(args, run, policy, author, box, setting, state)
            hinted = play_arm(args, policy, box, setting, state, hinted=True)
        # 2. Every rollout the Agent plays them without it; the first time on the instances of the hinted arm.
        plays = play_arm(args, policy, box, setting, state, hinted=False)
        if setting.after_plays:
            setting.after_plays(args, state, plays)
        state.note_returns(hinted, plays)
        # 3. The Agent is paid for these plays; after k rollouts the Designer for each program, and memory keeps those.
        batch, facts = agent_samples(args, setting, state, plays), {}
        if rollout.closes:
            batch += designer_samples(args, state, batch, facts)
            run.write_environments(state)
        # 4. One GRPO step on both roles; the sampler gets the new weights.
        facts |= learn(args, policy, batch)
        run.log(args, state, rollout, facts, hinted, plays)


@timed("design")
def new_set(args: Args, run: Run, policy, author, box, setting, state: State) -> list[designer.Design]:
    """The next set. An attempt orders a program, on a fresh document, for each place of the set that has none yet."""
    if args.pool or setting.given:
        return pools.given_set(args, box, setting, state)
    if author is not policy:
        author.rng.seed(seed_of(args.seed, state.rollout, ranks.rank()))   # so that it needs no saving
    before = run.snapshot(args, policy, state)
    designs, missing = [], list(range(args.n_envs))
    for attempt in range(1, args.attempts + 1):
        orders = designer.orders(args, setting, state, missing, attempt)
        designs += run.ask_or_stop(policy, state, before, designer.design, author, box, setting, orders, args)
        if args.copies == "refuse":   # design() knows of one rank and one attempt only
            refuse_copies(designs, ranks.gather)
        filled = {d.order.place for d in ranks.gather(designs) if d.environment}
        missing = [place for place in range(args.n_envs) if place not in filled]
    return designs


@timed("play")
def play_arm(args: Args, policy, box, setting, state: State, hinted: bool) -> list[agent.Episode]:
    """All plays of one arm. A seed follows from rollout, environment and number of the play: play i of both arms meets
    the same instance. An environment that hung is not played again; one without a hint has no hinted arm."""
    n_plays = args.hint_plays if hinted else args.plays
    arm = ("hinted",) if hinted and not args.paired_seeds else ()   # a part of the seed only for instances of its own
    playable = [d.environment for d in state.designs if d.environment and not d.window.hung]
    if hinted:
        playable = [environment for environment in playable if environment.hint]
    jobs = [agent.Job(environment, seed_of(args.seed, state.rollout, environment.name, i, *arm), hinted)
            for environment in playable for i in range(n_plays)]
    return agent.play_shown("plays with hint" if hinted else "plays", policy, box, setting, jobs, args)


def agent_samples(args: Args, setting, state: State, plays: list[agent.Episode]) -> list[grpo.Sample]:
    """Unhinted episodes, advantages per environment; not those that a program broke, or that sampled nothing."""
    played = [e for e in setting.learnt_from(args, state, plays) if e.outcome != "env_error" and e.logprobs]
    advantages = grpo.group_advantages([e.ret for e in played], [e.environment.name for e in played],
                                       scale_by_std=args.agent_advantage == "zscore")
    samples = []
    for e, advantage in zip(played, advantages):
        left_out = args.compact_filter and e.outcome != "terminated"   # it counts in its group, and teaches nothing
        for piece in e.pieces:
            mask, logprobs = ([0] * len(piece.ids), []) if left_out else (piece.mask, piece.logprobs)
            samples.append(grpo.Sample(piece.ids, mask, logprobs, "agent", e.environment.name, e.ret, advantage,
                                       share=len(piece.logprobs) / len(e.logprobs)))
    return samples


def designer_samples(args: Args, state: State, agent_batch: list[grpo.Sample], facts: dict) -> list[grpo.Sample]:
    """The set's programs as samples: rewarded by what all its plays showed, centred per skill over all ranks. Refused
    ones stay in: what is dropped is never unlearnt. Memory gets the played ones, `facts` what the Designer earned."""
    mine, everyone = {d.name for d in state.designs}, ranks.gather(state.designs)
    played = [d for d in everyone if d.played]
    parts = regret.designer_rewards(args.designer_reward, [d.window for d in played], state.learning_potential,
                                    flags.band_of(args))
    for d in everyone:   # a program that broke in every play is as bad as a refused one
        d.reward = regret.HUNG if d.window.hung else regret.refusal(args.invalid_reward, d.reason)
    for d, part in zip(played, parts):
        d.reward = part["reward"]
    advantages = grpo.group_advantages([d.reward for d in everyone], [d.order.group for d in everyone], False)
    state.memory.add([d.remembered(state.rollout) for d in played])
    state.designs = [d for d in everyone if d.name in mine]   # on several ranks what is gathered is a copy
    written = [(d, advantage) for d, advantage in zip(everyone, advantages) if d.reply is not None]
    facts |= metrics.pay([d for d, _ in written], parts)
    if not written or args.freeze_designer:
        return []
    # A program stands alone against k rollouts of plays; the weight makes up for that, up to 50, unless one is given.
    n_plays, = ranks.total([sum(sample.share for sample in agent_batch)])
    plays_per_program = max(n_plays, 1) / len(written) * args.k
    facts["designer/weight"] = args.designer_weight or min(plays_per_program, 50)
    return [grpo.Sample(d.prompt + d.reply.ids, [0] * len(d.prompt) + [1] * len(d.reply.ids), d.reply.logprobs,
                        "designer", d.order.group, d.reward, facts["designer/weight"] * advantage)
            for d, advantage in written if d.name in mine]


@timed("learn")
def learn(args: Args, policy, batch: list[grpo.Sample]) -> dict:
    policy.engine.sleep()
    longest_episode = min(args.context, args.max_tokens * args.max_turns)
    facts = grpo.update(policy, batch, temperature=args.temperature, reduction=args.loss_reduction,
                        longest=max(args.design_tokens, longest_episode), clip_low=args.clip_low,
                        clip_high=args.clip_high, tis_cap=args.tis_cap, kl=args.kl, max_grad_norm=args.max_grad_norm,
                        tokens_per_microbatch=args.tokens_per_microbatch)
    policy.sync()
    return facts


def main(args: Args) -> Run:
    ranks.start()
    run, setting, state = Run.open(args), SETTINGS[args.setting], State(args)
    made_here = {"tiny": tiny.build(texts_for(state), lessons=setting.lessons)} if args.model == "tiny" else {}
    with start.opened(run, args, setting, state, made_here) as (setting, policy, author, box):
        state.heldout_before = state.heldout_before or evaluate.heldout_rates(args, policy, box, setting)
        train(args, run, policy, author, box, setting, state)
        run.summary(args, state, evaluate.heldout_rates(args, policy, box, setting))
    report.write_after(run.folder)
    return run


if __name__ == "__main__":
    main(parse())
