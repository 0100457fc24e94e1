"""Held-out measurements."""
from pathlib import Path

import agent
import ranks
import tiny
from memory import Environment, load_environment

HELDOUT_WORDS = ["Harbour", "Meadow", "Lantern", "Orchard"]  # topics of no document


def heldout_environments(args) -> list[Environment]:
    """Environments that no training ever sees: the laptop world's high rungs, or a folder of files."""
    if args.heldout == "tiny":
        return [Environment(code, hint, skill, "games", "", f"heldout_{i:03d}_{rung}")
                for i, (code, hint, skill, rung) in enumerate(tiny.heldout(0, args.heldout_envs, HELDOUT_WORDS))]
    return [load_environment(f) for f in sorted(Path(args.heldout).glob("*.py"))[:args.heldout_envs]]


def heldout(args, policy, box) -> dict[str, float]:
    """Win rates on the held-out environments, without and with the hint; {} where there are none."""
    if not args.heldout:
        return {}
    environments = ranks.share(heldout_environments(args), args.tensor_parallel)
    jobs = [agent.Job(e, seed, hinted) for e in environments for seed in range(args.heldout_plays)
            for hinted in (False, True) if e.hint or not hinted]
    episodes = agent.play(policy, box, agent.GAMES, jobs, brief=args.brief, temperature=args.temperature,
                          max_turns=args.max_turns, max_new_tokens=args.max_tokens, context=args.context)
    rows = ranks.gather([(e.hinted, e.ret > 0) for e in episodes])
    return {f"heldout/win_rate{'_hinted' if arm else ''}":
            sum(won for hinted, won in rows if hinted == arm) / sum(hinted == arm for hinted, _ in rows)
            for arm in (False, True) if any(hinted == arm for hinted, _ in rows)}
