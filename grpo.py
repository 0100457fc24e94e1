"""GRPO: group advantages, the clipped loss, one optimiser step. Both roles learn through this file.

What it teaches: the policy-gradient step that updates the one shared model, written out by hand.
    A_i  = r_i - mean(group)            [/ std(group)]                      GRPO, arXiv 2402.03300 Eq. 3
    l_it = -min(rho A, clip(rho, 1-0.2, 1+0.28) A) * w  +  beta * k3        DAPO's asymmetric clip, 2503.14476
    rho  = pi_theta / pi_old,  w = min(pi_old / pi_sampler, 2)  (truncated importance sampling)
    L    = sum_i c_i sum_t l_it         where c_i is fixed before the batch is cut into micro-batches
A: advantage of sample i. rho: how much likelier its token became since the batch was sampled. w: the sampler's numbers
differ a little from the learner's. k3: an estimate of the KL to the starting weights.

What it leaves out: critics, GAE, entropy bonuses.

**Why is the loss about 0?** With one step per batch pi_old is pi_theta itself, so rho = 1 (and the clip never binds: it
is there for whoever takes more, `update(steps=2)`), and the mean of centred advantages is 0. The *gradient* is not:
d rho / d theta = d log pi / d theta. Watch the returns, the gradient norm and the entropy. `python grpo.py` is a worked
example.
"""
import math
from collections import defaultdict
from dataclasses import dataclass

import torch

from machinery import progress, ranks

PADDING = 0.05   # the most of a micro-batch that may be padding


@dataclass
class Sample:
    """What the learner sees, the same for both roles.

    `ids` and `mask` have one entry per token of prompt, replies and observations; mask[i] = 1 exactly on the
    tokens that the model sampled. `logprobs` has one entry per masked token: the sampler's own. `group` is
    the key of the baseline, never shared between roles. `advantage` is one number for all tokens. `share` is 1 for a
    whole play or program; of a play that became several samples, this one's part of its sampled tokens.
    """
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    role: str
    group: str
    reward: float
    advantage: float = 0.0
    share: float = 1.0


def group_advantages(rewards: list[float], groups: list, scale_by_std: bool) -> list[float]:
    """r - mean(group); with `scale_by_std` divided by its population std + 1e-8 (Dr.GRPO leaves that out).

    Example: rewards [1, 0, 0, 1], groups "aabb" -> [.5, -.5, -.5, .5], or [1, -1, -1, 1] scaled by std.
    A group of one, or without spread, gets exactly 0.
    """
    members = defaultdict(list)
    for reward, group in zip(rewards, groups):
        members[group].append(reward)
    mean, std = {}, {}
    for group, earned in members.items():
        mean[group] = sum(earned) / len(earned)
        variance = sum((reward - mean[group]) ** 2 for reward in earned) / len(earned)
        std[group] = variance ** 0.5
    advantages = []
    for reward, group in zip(rewards, groups):
        advantage = reward - mean[group]
        if scale_by_std:
            advantage /= std[group] + 1e-8
        all_equal = len(set(members[group])) == 1   # a rounded mean would leave a trace of a difference
        advantages.append(0.0 if all_equal else advantage)
    return advantages


def sample_weights(lengths: list[int], shares: list[float], reduction: str, n_whole: float, n_tokens: int,
                   longest: int) -> list[float]:
    """c_i of L = sum_i c_i sum_t l_it for samples with `lengths` trained tokens.

    sample:   share_i / (N |o_i|)   every play and every program weighs the same   (SPADE, GRPO)
    token:    1 / sum |o_j|         every token weighs the same                    (DAPO)
    constant: 1 / (N L_max)         no dependence on any length            (Dr.GRPO, arXiv 2503.20783; SPICE)
    N = sum share_j and sum |o_j| are over the samples of all ranks and all micro-batches, so cutting the batch changes
    nothing. Nor does cutting a play into samples: with |o_i| = share_i |o| its tokens weigh what they did in one.
    """
    if reduction == "token":
        return [1 / n_tokens for _ in lengths]
    if reduction == "constant":
        return [1 / (n_whole * longest) for _ in lengths]
    if reduction != "sample":
        raise ValueError(f"unknown reduction '{reduction}': choose sample, token or constant")
    return [share / (n_whole * max(n, 1)) for share, n in zip(shares, lengths)]


def policy_loss(logprobs, old, sampler, advantages, clip_low: float = 0.2, clip_high: float = 0.28,
                tis_cap: float = 2.0, reference=None, kl: float = 0.0):
    """The loss of each token, and what is worth knowing about it.

    All tensors are (N,), one entry per sampled token: log-probs of the model being trained, of the same model
    when the batch began (`old`), of the sampler, and of the frozen reference. Only `logprobs` carries a
    gradient. Tokens whose sampler log-prob is not finite (entropy collapse) weigh nothing and are counted.

    Returns (loss (N,), dict of (N,) tensors: clipped, mismatch |old - sampler|, kl, nonfinite).
    """
    finite = sampler.isfinite()
    sampler = torch.where(finite, sampler, old)
    ratio = (logprobs - old).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    # Truncated importance sampling: the sampler is not quite the model we differentiate (other kernels, and
    # for the Designer's samples weights that are k rollouts older). Capped, so that no token rules the step.
    loss = loss * (old - sampler).exp().clamp(max=tis_cap)
    facts = {"clipped": (clipped * advantages < ratio * advantages).float(),
             "mismatch": (old - sampler).abs() * finite, "nonfinite": (~finite).float(),
             "kl": torch.zeros_like(old)}
    if kl:
        difference = (reference - logprobs).clamp(-40, 40)
        k3 = difference.expm1() - difference   # >= 0, and unbiased (joschu.net/blog/kl-approx.html)
        facts["kl"] = k3.detach()
        loss = loss + kl * k3
    return loss * finite, facts


def micro_batches(samples: list[Sample], budget: int) -> list[list[Sample]]:
    """Neighbours in length share a micro-batch of at most `budget` tokens, of which few are padding."""
    batches = []
    for sample in sorted(samples, key=lambda s: len(s.ids)):
        batch = [*batches[-1], sample] if batches else []
        padded = len(batch) * len(sample.ids)
        if batch and padded <= budget and sum(len(s.ids) for s in batch) >= (1 - PADDING) * padded:
            batches[-1] = batch
        else:
            batches.append([sample])
    return batches


def collate(samples: list[Sample], device):
    """Pads on the right. Returns ids, attention, mask (B, T) and sampler log-probs, advantages (N,).

    Example: ids [5, 6, 7] with mask [0, 1, 1] and ids [8, 9] with mask [0, 1] ->
        ids [[5, 6, 7], [8, 9, 0]], attention [[1, 1, 1], [1, 1, 0]], mask [[0, 1, 1], [0, 1, 0]], N = 3.
    Padding has attention 0 and mask 0: nothing depends on which id fills it.
    """
    width = max(len(s.ids) for s in samples)

    def pad(rows):
        return torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
    sampler = torch.tensor([lp for s in samples for lp in s.logprobs], device=device)
    advantages = torch.tensor([s.advantage for s in samples for _ in s.logprobs], device=device)
    return (pad([s.ids for s in samples]), pad([[1] * len(s.ids) for s in samples]),
            pad([s.mask for s in samples]).bool(), sampler, advantages)


def zero_variance_groups(samples: list[Sample]) -> int:
    """Groups of all ranks whose members all earned the same: they teach nothing; many mean a dying curriculum."""
    differs = defaultdict(bool)
    for role, group, advantage in ranks.gather([(s.role, s.group, s.advantage) for s in samples]):
        differs[role, group] |= advantage != 0
    return list(differs.values()).count(False)


IDLE = Sample([0, 0], [0, 0], [], "", "", 0.0)   # for a rank that only keeps step with the others


def update(policy, samples: list[Sample], *, temperature: float = 1.0, reduction: str = "sample",
           longest: int = 8192, clip_low: float = 0.2, clip_high: float = 0.28, tis_cap: float = 2.0,
           kl: float = 0.0, max_grad_norm: float = 1.0, tokens_per_microbatch: int = 16384,
           steps: int = 1) -> dict[str, float]:
    """One optimiser step, or several, on the `samples` of all ranks; returns metrics, the same on every rank.

    The gradient does not depend on `tokens_per_microbatch`, the number of ranks, or padding. Samples with
    advantage 0 cost no forward pass (unless there is a KL), though they count in N. A gradient that is not
    finite skips the step.
    `longest` is the constant of the reduction "constant": the most tokens one sample may train on.
    Each of the `steps`, 1 or more, is on the whole batch, and all ratios are to the log-probs before the first. The
    metrics are those of the last step, but for loss/skipped_steps, which counts them all.
    """
    live = [s for s in samples if (s.advantage != 0 or kl) and s.logprobs]
    n_whole, n_live, n_live_tokens, n_tokens, n_zero = ranks.total(
        [sum(s.share for s in samples), len(live), sum(len(s.logprobs) for s in live),
         sum(len(s.logprobs) for s in samples), sum(s.advantage == 0 for s in samples)])
    metrics = {"loss/zero_advantage_samples": n_zero, "loss/zero_variance_groups": zero_variance_groups(samples),
               "tokens/trained": n_live_tokens}
    if n_live == 0:
        return metrics | {"loss/policy": 0.0, "loss/grad_norm": 0.0}
    batches = micro_batches(ranks.deal(live), tokens_per_microbatch)
    # Sharded layers are gathered by all ranks together, so every rank makes the same number of passes.
    batches += [[IDLE]] * (max(ranks.gather([len(batches)])) - len(batches))
    trained = sum(len(s.ids) for batch in batches for s in batch)
    old = [None] * len(batches)
    skipped = 0
    for _ in range(steps):
        policy.optimizer.zero_grad()   # the net stays in eval mode: the samplers knew no dropout
        sums = torch.zeros(6, dtype=torch.float64, device=policy.device)
        with progress.shown("learning", trained, " tokens") as advance:
            for i, batch in enumerate(batches):
                ids, attention, mask, sampler, advantages = collate(batch, policy.device)
                lengths = [len(s.logprobs) for s in batch]
                weights = sample_weights(lengths, [s.share for s in batch], reduction, n_whole, n_tokens, longest)
                weight = torch.tensor([w for w, n in zip(weights, lengths) for _ in range(n)], device=policy.device)
                logprobs, entropy = policy.net(ids, attention, mask, temperature)
                if old[i] is None:   # in the first step: the weights are still those that the batch began with
                    old[i] = logprobs.detach()
                reference = None
                if kl:
                    with torch.no_grad():
                        reference, _ = policy.reference(ids, attention, mask, temperature)
                loss, facts = policy_loss(logprobs, old[i], sampler, advantages,
                                          clip_low, clip_high, tis_cap, reference, kl)
                loss = (loss * weight).sum()
                # FSDP averages gradients over ranks; the denominators already cover all ranks, hence the factor.
                (loss * ranks.world_size()).backward()
                sums += torch.stack([loss.detach(), entropy.sum(), *(fact.sum() for fact in facts.values())])
                advance(sum(len(s.ids) for s in batch))
        norm = torch.nn.utils.clip_grad_norm_(policy.net.parameters(), max_grad_norm)
        norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if math.isfinite(norm):
            policy.optimizer.step()
        else:
            skipped += 1
    policy.optimizer.zero_grad()
    loss, entropy, clipped, mismatch, nonfinite, divergence = ranks.total(sums.tolist())
    means = {"entropy": entropy, "clip_fraction": clipped, "engine_mismatch": mismatch, "kl": divergence}
    return metrics | {f"loss/{name}": value / n_live_tokens for name, value in means.items()} | {
        "loss/policy": loss, "loss/grad_norm": norm, "loss/nonfinite_logprobs": nonfinite,
        "loss/skipped_steps": float(skipped)}


if __name__ == "__main__":
    logits = torch.tensor([0.2, -0.4, 0.1], requires_grad=True)
    print("One token, three choices, a group of two plays: token 0 earned 1, token 2 earned 0.\n")
    print("advantages          ", group_advantages([1.0, 0.0], ["a", "a"], scale_by_std=False))
    logp = logits.log_softmax(-1)[[0, 2]]
    loss, _ = policy_loss(logp, logp.detach(), logp.detach(), torch.tensor([0.5, -0.5]))
    loss.mean().backward()
    print(f"loss                 {loss.mean().item():+.4f}   (always about 0: the ratio is 1)")
    print("d loss / d logits   ", [round(g, 4) for g in logits.grad.tolist()],
          "  (not 0: token 0 goes up, token 2 down)")
