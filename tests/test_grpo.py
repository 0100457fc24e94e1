"""grpo.py: the formulas against numbers worked out by hand, and what the gradient may not depend on."""
import math

import pytest
import torch

import grpo
import tests.tiny_model as tiny_model
from grpo import Sample, group_advantages, micro_batches, policy_loss, sample_weights
from machinery.engines import TransformersEngine

torch.set_num_threads(1)


# --- advantages ---

def test_group_advantages():
    assert group_advantages([1, 0, 0, 1], list("aabb"), False) == [.5, -.5, -.5, .5]
    assert group_advantages([1, 0, 0, 1], list("aabb"), True) == pytest.approx([1, -1, -1, 1])
    assert group_advantages([1, 0, 0, 0, 2], list("aaaab"), False) == [.75, -.25, -.25, -.25, 0]
    # (1, 0, 0, 0): mean 1/4, population variance 3/16, so 0.75 / 0.4330 = 1.732
    assert group_advantages([1, 0, 0, 0], list("aaaa"), True) == pytest.approx([3**.5, *[-3**-.5] * 3])
    assert group_advantages([0.1] * 3, list("aaa"), True) == [0, 0, 0]        # exactly 0, not rounding / 1e-8
    assert group_advantages([], [], True) == []


# --- the loss of a token ---

def test_ratio_one_gives_minus_the_advantage():
    logp = torch.tensor([-1.0, -2.0])
    loss, facts = policy_loss(logp, logp, logp, torch.tensor([0.5, -0.5]))
    assert loss.tolist() == [-0.5, 0.5]
    assert facts["clipped"].tolist() == facts["mismatch"].tolist() == facts["nonfinite"].tolist() == [0, 0]


@pytest.mark.parametrize("ratio, advantage, loss, clipped", [
    (1.1, 1.0, -1.1, 0),      # inside the clip
    (1.5, 1.0, -1.28, 1),     # good enough already: capped at 1 + 0.28
    (1.5, -1.0, 1.5, 0),      # gone the wrong way: the full push back
    (0.7, 1.0, -0.7, 0),
    (0.7, -1.0, 0.8, 1),      # bad and already rarer: capped at 1 - 0.2
])
def test_the_asymmetric_clip(ratio, advantage, loss, clipped):
    old = torch.tensor([-2.0])
    got, facts = policy_loss(old + math.log(ratio), old, old, torch.tensor([advantage]))
    assert got.item() == pytest.approx(loss, abs=1e-6) and facts["clipped"].item() == clipped


def test_truncated_importance_sampling():
    """To the sampler the tokens were 3 times, 1.5 times, 1/4 as likely as to the learner: 1/3, 2/3, 4 capped at 2."""
    old = torch.log(torch.tensor([0.1, 0.2, 0.4])).requires_grad_()
    sampler = torch.log(torch.tensor([0.3, 0.3, 0.1]))
    loss, facts = policy_loss(old, old.detach(), sampler, torch.ones(3))
    assert loss.tolist() == pytest.approx([-1 / 3, -2 / 3, -2])
    assert facts["mismatch"].tolist() == pytest.approx([math.log(3), math.log(1.5), math.log(4)])
    loss.sum().backward()
    assert old.grad.tolist() == pytest.approx([-1 / 3, -2 / 3, -2])   # the weight itself is not differentiated


def test_k3():
    """d = log(0.2 / 0.1): e^d - d - 1 = 2 - ln 2 - 1; its gradient 1 - e^d = -1 raises the too rare token."""
    logp = torch.tensor([math.log(0.1)], requires_grad=True)
    old = logp.detach()
    loss, facts = policy_loss(logp, old, old, torch.zeros(1), reference=torch.tensor([math.log(0.2)]), kl=0.5)
    assert facts["kl"].item() == pytest.approx(1 - math.log(2))
    assert loss.item() == pytest.approx(0.5 * (1 - math.log(2)))
    loss.sum().backward()
    assert logp.grad.item() == pytest.approx(-0.5)


@pytest.mark.parametrize("broken", [-math.inf, math.nan, math.inf])
def test_log_probs_that_are_not_finite_weigh_nothing_and_are_counted(broken):
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss, facts = policy_loss(logp, logp.detach(), torch.tensor([broken, -2.0]), torch.ones(2),
                              reference=torch.zeros(2), kl=0.1)
    loss.sum().backward()
    assert loss[0].item() == 0 and logp.grad[0].item() == 0 and logp.grad[1].item() != 0
    assert facts["nonfinite"].tolist() == [1, 0] and facts["mismatch"].tolist() == [0, 0]


# --- the loss of a batch ---

def test_reductions():
    whole = [1.0, 1.0]
    assert sample_weights([2, 4], whole, "sample", 2, 6, 8) == [1 / 4, 1 / 8]
    assert sample_weights([2, 4], whole, "token", 2, 6, 8) == [1 / 6, 1 / 6]
    assert sample_weights([2, 4], whole, "constant", 2, 6, 8) == [1 / 16, 1 / 16]
    with pytest.raises(ValueError, match="choose sample, token or constant"):
        sample_weights([1], [1.0], "mean", 1, 1, 1)


def test_a_play_weighs_the_same_in_one_sample_and_in_several():
    """Plays of 8 and of 4 tokens, the first one as samples of 2 and of 6: N is 2, and each play's tokens sum to 1/2."""
    weights = sample_weights([2, 6, 4], [0.25, 0.75, 1.0], "sample", 2, 12, 10)
    assert weights == [1 / 16, 1 / 16, 1 / 8] and 2 / 16 + 6 / 16 == 4 / 8 == 1 / 2
    assert weights[1:] == sample_weights([8, 4], [1.0, 1.0], "sample", 2, 12, 10)
    assert sample_weights([2, 6, 4], [0.25, 0.75, 1.0], "constant", 2, 12, 10) == [1 / 20] * 3


def samples(n=12, seed=0):
    """Two roles, prompts and replies of many lengths, several turns, off-policy sampler log-probs."""
    generator = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))
    made = []
    for i in range(n):
        mask = []
        for _ in range(number(1, 4)):
            mask += [0] * number(1, 12) + [1] * number(1, 20)
        logprobs = (-6 + torch.randn(sum(mask), generator=generator)).tolist()
        made.append(Sample([number(0, 250) for _ in mask], mask, logprobs, "agent" if i % 3 else "designer",
                           f"g{i % 4}", 0.0, advantage=float(torch.randn(1, generator=generator))))
    return made


def gradients(policy, batch, **options):
    """The gradient of one update, the metrics, and how many forward passes it took; the policy stays as it is."""
    caught, passes = {}, []
    policy.optimizer.step = lambda: caught.update({n: p.grad.clone() for n, p in policy.net.named_parameters()})
    hook = policy.net.register_forward_hook(lambda *_: passes.append(1))
    try:
        metrics = grpo.update(policy, batch, max_grad_norm=1e9, **options)
    finally:
        hook.remove()
        del policy.optimizer.step
    return caught, metrics, len(passes)


def assert_same(a, b):
    for name in a:
        scale = a[name].abs().max().item()
        assert (a[name] - b[name]).abs().max().item() <= 1e-5 * max(scale, 1), name


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_model.policy(tiny_model.build(tmp_path_factory.mktemp("grpo") / "m"), kl=0.1)


@pytest.mark.parametrize("reduction", ["sample", "token", "constant"])
def test_the_gradient_does_not_depend_on_micro_batches_or_padding(policy, reduction, monkeypatch):
    monkeypatch.setattr(grpo, "PADDING", 1)
    batch = samples()
    whole, facts, passes = gradients(policy, batch, reduction=reduction, tokens_per_microbatch=10**6, kl=0.1)
    assert passes == 1
    longest = max(len(s.ids) for s in batch)
    two, facts2, passes = gradients(policy, batch, reduction=reduction, tokens_per_microbatch=6 * longest, kl=0.1)
    assert passes == 2
    single, facts12, passes = gradients(policy, batch[::-1], reduction=reduction, tokens_per_microbatch=1, kl=0.1)
    assert passes == len(batch)
    for other, its in ((two, facts2), (single, facts12)):
        assert_same(whole, other)
        assert its == pytest.approx(facts, rel=1e-4)


def test_the_gradient_is_that_of_the_formula_written_down_plainly(policy):
    batch = samples(5, seed=1)
    got, metrics, _ = gradients(policy, batch, temperature=0.7, tokens_per_microbatch=60)
    policy.net.zero_grad()
    loss = 0
    for s in batch:
        logits = policy.net.model(torch.tensor([s.ids])).logits[0, :-1] / 0.7
        logp = logits.log_softmax(-1).gather(1, torch.tensor(s.ids[1:])[:, None])[:, 0][torch.tensor(s.mask[1:]).bool()]
        weight = (logp.detach() - torch.tensor(s.logprobs)).exp().clamp(max=2)
        loss = loss - ((logp - logp.detach()).exp() * s.advantage * weight).mean() / len(batch)
    loss.backward()
    assert_same(got, {n: p.grad for n, p in policy.net.named_parameters()})
    assert metrics["loss/policy"] == pytest.approx(loss.item(), abs=1e-5)
    policy.net.zero_grad()


def test_the_gradient_is_not_zero_though_the_printed_loss_is(policy):
    logprobs = [-5.0] * 4
    pair = [Sample([1, 2, 3, 4, 5], [0, 1, 1, 1, 1], logprobs, "agent", "g", r, a) for r, a in ((1, .5), (0, -.5))]
    pair[1].ids = [1, 9, 8, 7, 6]
    for s in pair:   # on-policy: the sampler's log-probs are the model's
        with torch.no_grad():
            ids = torch.tensor([s.ids])
            s.logprobs = policy.net(ids, torch.ones_like(ids), torch.tensor([s.mask]).bool())[0].tolist()
    _, metrics, _ = gradients(policy, pair)
    assert abs(metrics["loss/policy"]) < 1e-6 and metrics["loss/engine_mismatch"] < 1e-6
    assert metrics["loss/grad_norm"] > 0.1 and metrics["loss/clip_fraction"] == 0


def test_advantage_zero_costs_no_forward_pass_but_counts(policy):
    batch = samples(4)
    for s in batch[2:]:
        s.advantage = 0.0
    with_them, metrics, passes = gradients(policy, batch, tokens_per_microbatch=1)
    without, _, _ = gradients(policy, batch[:2], tokens_per_microbatch=1)
    assert passes == 2 and metrics["loss/zero_advantage_samples"] == 2
    assert_same({n: g * 2 for n, g in with_them.items()}, without)            # N is 4, not 2
    nothing, metrics, passes = gradients(policy, batch[2:])
    assert nothing == {} and passes == 0 and metrics["loss/grad_norm"] == 0


def test_micro_batches_keep_to_the_budget_and_waste_little():
    batch = samples(400, seed=2)
    cut = micro_batches(batch, 400)
    assert sorted(id(s) for b in cut for s in b) == sorted(id(s) for s in batch)
    assert all(len(b) * max(len(s.ids) for s in b) <= 400 for b in cut)
    padded = sum(len(b) * max(len(s.ids) for s in b) for b in cut)
    assert sum(len(s.ids) for s in batch) >= 0.95 * padded and len(cut) < 60
    assert [len(b) for b in micro_batches(batch[:2], 1)] == [1, 1]            # longer than the budget: alone


def test_collate_is_the_example_of_its_docstring():
    a = Sample([5, 6, 7], [0, 1, 1], [-.1, -.2], "agent", "g", 1.0, 0.5)
    b = Sample([8, 9], [0, 1], [-.3], "agent", "g", 0.0, -0.5)
    ids, attention, mask, sampler, advantages = grpo.collate([a, b], "cpu")
    assert ids.tolist() == [[5, 6, 7], [8, 9, 0]] and attention.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert mask.tolist() == [[False, True, True], [False, True, False]]
    assert sampler.tolist() == pytest.approx([-.1, -.2, -.3]) and advantages.tolist() == [.5, .5, -.5]


# --- a step ---

def test_a_step_makes_the_rewarded_reply_likelier_and_the_other_rarer(tmp_path):
    policy = tiny_model.policy(tiny_model.build(tmp_path / "m"), lr=1e-3)
    prompt = policy.prompt_ids([{"role": "user", "content": "?"}])
    replies = policy.sample([prompt, prompt], 12, 1.0)

    def logprob(reply):
        ids = torch.tensor([prompt + reply.ids])
        mask = torch.tensor([[0] * len(prompt) + [1] * len(reply.ids)]).bool()
        return policy.net(ids, torch.ones_like(ids), mask)[0].sum().item()
    before = [logprob(r) for r in replies]
    metrics = grpo.update(policy, [Sample(prompt + r.ids, [0] * len(prompt) + [1] * len(r.ids), r.logprobs, "agent",
                                          "g", a, a) for r, a in zip(replies, (1.0, -1.0))])
    assert logprob(replies[0]) > before[0] + 0.1 and logprob(replies[1]) < before[1] - 0.1
    assert metrics["tokens/trained"] == sum(len(r.ids) for r in replies)


# --- several steps on one batch ---

def two_steps(folder, **options):
    """The weights before, between and after two steps of plain SGD, the gradient of each, the metrics."""
    policy = tiny_model.policy(folder)
    policy.optimizer = torch.optim.SGD(policy.net.parameters(), lr=0.3)
    named, step = dict(policy.net.named_parameters()), policy.optimizer.step
    weights, grads = [{n: p.detach().clone() for n, p in named.items()}], []

    def watched():
        grads.append({n: p.grad.clone() for n, p in named.items()})
        step()
        weights.append({n: p.detach().clone() for n, p in named.items()})
    policy.optimizer.step = watched
    metrics = grpo.update(policy, samples(5, seed=1), max_grad_norm=1e9, **options)
    return policy, weights, grads, metrics


def test_a_second_step_on_a_batch_keeps_the_log_probs_of_before_the_first(tmp_path):
    folder = tiny_model.build(tmp_path / "m")
    _, once, first, alone = two_steps(folder)
    policy, weights, grads, metrics = two_steps(folder, steps=2)
    assert len(once) == 2 and len(weights) == 3
    for name in first[0]:   # the first step is bit for bit what it is where it is the only one
        assert torch.equal(first[0][name], grads[0][name]) and torch.equal(once[1][name], weights[1][name])
    assert alone["loss/clip_fraction"] == 0 and metrics["loss/clip_fraction"] > 0.01
    assert alone["tokens/trained"] == metrics["tokens/trained"] and alone["loss/policy"] != metrics["loss/policy"]

    def logprobs(s):
        ids = torch.tensor([s.ids])
        return policy.net(ids, torch.ones_like(ids), torch.tensor([s.mask]).bool())[0]
    batch, loss, ratios = samples(5, seed=1), 0, []
    policy.net.load_state_dict(weights[0], strict=False)
    before = [logprobs(s).detach() for s in batch]
    policy.net.load_state_dict(weights[1], strict=False)
    for s, old in zip(batch, before):   # the formula of the second step, written down plainly
        ratio = (logprobs(s) - old).exp()
        worse = torch.minimum(ratio * s.advantage, ratio.clamp(0.8, 1.28) * s.advantage)
        loss = loss - (worse * (old - torch.tensor(s.logprobs)).exp().clamp(max=2)).mean() / len(batch)
        ratios += ratio.tolist()
    policy.net.zero_grad()
    loss.backward()
    assert_same(grads[1], {n: p.grad for n, p in policy.net.named_parameters()})
    assert metrics["loss/policy"] == pytest.approx(loss.item(), abs=1e-5)
    assert min(ratios) < 0.8 and max(ratios) > 1.28


@pytest.mark.parametrize("reduction", ["sample", "token", "constant"])
def test_several_steps_do_not_depend_on_micro_batches(tmp_path, reduction):
    folder = tiny_model.build(tmp_path / "m")
    _, whole, _, facts = two_steps(folder, steps=2, reduction=reduction, tokens_per_microbatch=10**6)
    _, single, _, its = two_steps(folder, steps=2, reduction=reduction, tokens_per_microbatch=1)
    assert_same(whole[2], single[2])
    assert its == pytest.approx(facts, rel=1e-3)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_skips_the_step_and_is_counted(tmp_path, poison):
    policy = tiny_model.policy(tiny_model.build(tmp_path / "m"), lr=1e-2)
    before = {n: p.clone() for n, p in policy.net.named_parameters()}
    batch = samples(3)
    batch[0].advantage = poison
    assert grpo.update(policy, batch)["loss/skipped_steps"] == 1
    assert grpo.update(policy, batch, steps=3)["loss/skipped_steps"] == 3
    assert all(torch.equal(p, before[n]) for n, p in policy.net.named_parameters())
    assert all(p.grad is None for p in policy.net.parameters())
    assert grpo.update(policy, samples(3))["loss/skipped_steps"] == 0          # and the next one is fine
    assert all(p.isfinite().all() for p in policy.net.parameters())


def test_the_learner_drops_nothing_out(tmp_path):
    """The samplers do not, so with dropout the log-probs would be of another model, and each micro-batch's own."""
    policy = tiny_model.policy(tiny_model.build(tmp_path / "m", attention_dropout=0.5))
    one, _, _ = gradients(policy, samples(6))
    many, _, _ = gradients(policy, samples(6), tokens_per_microbatch=1)
    assert_same(one, many)


def test_stale_weights_in_the_sampler_show_in_the_mismatch(tmp_path):
    """The alarm of run.show: a sampler with weights of its own, once not synced after a step."""
    folder = tiny_model.build(tmp_path / "m")
    policy = tiny_model.policy(folder, lr=3e-3)
    copy = tiny_model.policy(folder).net.model
    policy.engine = TransformersEngine(copy, policy.tokenizer, policy.eos_ids, policy.rng)
    prompt = policy.prompt_ids([{"role": "user", "content": "?"}])

    def mismatch():
        batch = [Sample(prompt + r.ids, [0] * len(prompt) + [1] * len(r.ids), r.logprobs, "agent", "g", 0.0, (-1.0)**i)
                 for i, r in enumerate(policy.sample([prompt] * 8, 20, 0.8))]
        return grpo.update(policy, batch, temperature=0.8)["loss/engine_mismatch"]
    assert mismatch() < 1e-5
    assert mismatch() > 0.1            # one step was taken, the sampler does not know
    policy.engine.sync(policy.net.model.named_parameters())
    assert mismatch() < 1e-5
