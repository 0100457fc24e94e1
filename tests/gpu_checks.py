"""The checks of tests/gpu.py, in the order they run. Each yields rows (what, ok or None for skipped, number, facts).

They run the product's own code, policy.Policy, grpo.update, the engines, train.py, on the models of gpu_models.py.
This file is also the program of two processes that learn together (the check `two`).
"""
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import grpo  # noqa: E402
import machinery.policy as policies  # noqa: E402
from machinery import ranks  # noqa: E402
from tests.gpu_models import (  # noqa: E402
    CUDA,
    DEVICE,
    WORKSPACE,
    card_flops,
    folder_of,
    model_flops,
    peak_gb,
    random_policy,
    reset_peak,
    samples_of,
    timed,
)

# --- the learner ---

def learner(shape: str, flags: str, toy: bool, **options):
    """A second step of 65,536 tokens: speed, share of the card's limit, and memory against the README's formula."""
    policy = random_policy(shape, toy, **options)
    count, length = (4, 64) if toy else (32, 2048)
    batch = samples_of(512 if toy else 151936, count, length)
    step = partial(grpo.update, policy, batch, kl=options.get("kl", 0.0))
    first = step()
    reset_peak()
    metrics, seconds = timed(step)
    parameters = sum(p.numel() for p in policy.net.parameters())
    each = 2 + (0 if options.get("offload") else 16 + 4 * bool(options.get("kl")))   # 2: the sampler's copy
    peak, limit = peak_gb(), each * parameters / 1e9 + WORKSPACE
    tokens = sum(len(s.ids) for s in batch)
    number = f"{tokens / seconds:,.0f} tokens/s, peak {peak:.1f} GB of {limit:.1f} GB computed"
    if card_flops():
        number += f", {model_flops(policy.net.model, batch) / seconds / card_flops():.0%} of the card's limit"
    ok = peak <= limit and 0 < metrics["loss/grad_norm"] < float("inf")
    if options.get("kl"):   # nothing has moved before the first step
        ok = ok and first["loss/kl"] < 1e-3 and metrics["loss/kl"] > 0
        number += f", KL {first['loss/kl']:.1e} and {metrics['loss/kl']:.1e}"
    facts = {"parameters": parameters, "tokens": tokens, "seconds": seconds, "peak_gb": peak, "limit_gb": limit}
    yield f"learner, {shape}{flags}", ok, number, facts


def log_probs(toy: bool):
    """Log-probs, entropy and their backward: what a micro-batch costs behind the last layer."""
    vocabulary, width, dtype = (2048, 64, torch.float32) if toy else (151936, 2560, torch.bfloat16)
    head = torch.nn.Linear(width, vocabulary, bias=False, device=DEVICE, dtype=dtype)
    for tokens in (64, 256, 512) if toy else (4096, 16384, 32768):
        hidden = torch.randn(1, tokens, width, device=DEVICE, dtype=dtype, requires_grad=True)
        ids = torch.randint(0, vocabulary, (1, tokens), device=DEVICE)
        mask = torch.ones_like(ids).bool()
        mask[:, 0] = False
        model = torch.nn.Module()
        model.config = mock.Mock(vocab_size=vocabulary)
        model.get_output_embeddings = lambda: head
        model.get_decoder = lambda hidden=hidden: lambda **_: mock.Mock(last_hidden_state=hidden)
        net = policies.TokenLogProbs(model)
        net(ids, None, mask, 0.6)[0].sum().backward()
        reset_peak()
        before = torch.cuda.memory_allocated() / 1e9 if CUDA else peak_gb()
        _, seconds = timed(lambda: net(ids, None, mask, 0.6)[0].sum().backward())   # noqa: B023
        extra, plain = peak_gb() - before, 4 * tokens * vocabulary / 1e9
        yield (f"log-probs of {tokens:,} tokens, V = {vocabulary:,}", extra < 4,
               f"{seconds * 1e3:.0f} ms, {extra:.2f} GB more (one float32 copy of the logits: {plain:.1f} GB)",
               {"seconds": seconds, "extra_gb": extra})


def gradients(policy, samples) -> dict[str, torch.Tensor]:
    """What one step would apply, on the CPU; nothing is applied."""
    kept = {}

    def keep():
        for name, p in policy.net.named_parameters():
            whole = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
            kept[name] = whole.float().cpu()
    with mock.patch.object(policy.optimizer, "step", keep):
        grpo.update(policy, samples, max_grad_norm=1e9, tokens_per_microbatch=512)
    return kept


def gradient(toy: bool):
    """The device's gradient (FSDP2, bfloat16) against the CPU's in float32, of the same weights."""
    policy, samples = random_policy("small", toy), samples_of(512, 8, 96)
    found = gradients(policy, samples)
    whole = {name: (p.full_tensor() if policy.sharded else p).detach().float().cpu()
             for name, p in policy.net.named_parameters()}
    model = AutoModelForCausalLM.from_config(policy.net.model.config, dtype=torch.float32).eval()
    net = policies.TokenLogProbs(model)
    for name, p in net.named_parameters():
        p.data.copy_(whole[name])
    plain = mock.Mock(net=net, device=torch.device("cpu"), optimizer=torch.optim.AdamW(net.parameters()))
    expected = gradients(plain, samples)
    a, b = (torch.cat([g[name].flatten() for name in expected]) for g in (found, expected))
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=0).item()
    length = (a.norm() / b.norm()).item()
    yield ("gradient against the CPU's in float32", cosine > 0.99 and abs(length - 1) < 0.03,
           f"cosine {cosine:.5f}, length {length:.4f} times", {"cosine": cosine, "length": length})


# --- the samplers ---

def replies_of(policy, count: int, tokens: int):
    rng = random.Random(1)
    prompts = [[rng.randrange(250) for _ in range(20 + 5 * i % 60)] for i in range(count)]
    return prompts, policy.sample(prompts, tokens, 1.0)


def mismatch(policy, toy: bool) -> float:
    """Mean |difference| of the sampler's and the learner's log-probs; then a step is taken."""
    prompts, replies = replies_of(policy, 8 if toy else 32, 16 if toy else 128)
    batch = [grpo.Sample(p + r.ids, [0] * len(p) + [1] * len(r.ids), r.logprobs, "agent", "g", 0.0, (-1.0) ** i)
             for i, (p, r) in enumerate(zip(prompts, replies)) if r.ids]
    return grpo.update(policy, batch)["loss/engine_mismatch"]


def agreement(policy, label: str, toy: bool):
    """Sampler and learner agree, disagree once the learner has moved on, and agree again after a sync."""
    policy.sync()
    fresh, stale = mismatch(policy, toy), mismatch(policy, toy)
    policy.sync()
    synced = mismatch(policy, toy)
    policy.sync()
    limit = 0.05 if CUDA else 1e-3      # bfloat16 on both sides, or float32
    copies = policy.sharded or not isinstance(policy.engine, policies.TransformersEngine)   # else it is the learner
    ok = max(fresh, synced) < limit and (not copies or stale > 3 * max(fresh, synced))
    yield (f"{label}: |log-prob difference|", ok,
           f"{fresh:.1e}; after an update {stale:.1e}; after the sync {synced:.1e}",
           {"fresh": fresh, "stale": stale, "synced": synced})


def speed(policy, toy: bool) -> tuple[int, float]:
    (_, replies), seconds = timed(lambda: replies_of(policy, 8 if toy else 64, 16 if toy else 256))
    return sum(len(reply.ids) for reply in replies), seconds


def transformers_sampler(toy: bool):
    policy = random_policy("0.6B", toy, lr=1e-3)
    yield from agreement(policy, "transformers", toy)
    tokens, seconds = speed(policy, toy)
    yield "transformers' generate, 0.6B", tokens > 0, f"{tokens / seconds:,.0f} tokens/s", {"tokens": tokens}


def without_vllm(label: str):
    there = importlib.util.find_spec("vllm") is not None
    return [] if there else [(label, None, "vllm is not installed", {})]


def vllm(toy: bool):
    """Its numbers against the learner's through updates and sleep, and its speed through our two calls."""
    if missing := without_vllm("vllm"):
        yield from missing
        return
    policy = policies.Policy(folder_of("0.6B", toy, weights=True), engine="vllm", context=2048, lr=1e-3, sleep=CUDA,
                             gradient_checkpointing=True)
    yield from agreement(policy, "vllm, 0.6B", toy)
    replies_of(policy, 8, 16)
    tokens, seconds = speed(policy, toy)
    prompts, _ = replies_of(policy, 8 if toy else 64, 1)
    from vllm import SamplingParams
    params = SamplingParams(temperature=1.0, max_tokens=16 if toy else 256, ignore_eos=True, logprobs=0,
                            detokenize=False)
    asked = [{"prompt_token_ids": ids} for ids in prompts]
    outputs, alone = timed(lambda: policy.engine.llm.generate(asked, params, use_tqdm=False))
    theirs = sum(len(output.outputs[0].token_ids) for output in outputs)
    ratio = tokens / seconds / (theirs / alone)
    yield ("vllm through submit and collect, 0.6B", toy or ratio > 0.8,
           f"{tokens / seconds:,.0f} tokens/s, {ratio:.2f} of its own generate's {theirs / alone:,.0f}",
           {"ours": tokens / seconds, "alone": theirs / alone})
    if not CUDA:
        yield "vllm --sleep", None, "a CPU's does not sleep", {}
        return
    for cycle in range(3):
        free = torch.cuda.mem_get_info()[0]
        policy.engine.sleep()
        given = (torch.cuda.mem_get_info()[0] - free) / 1e9
        policy.sync()
        left = (torch.cuda.mem_get_info()[0] - free) / 1e9
        difference = mismatch(policy, toy)
        policy.sync()
        yield (f"vllm --sleep, cycle {cycle + 1}", given > 1 and abs(left) < 1 and difference < 0.05,
               f"{given:.1f} GB given back, {left:+.1f} GB after waking, |log-prob difference| {difference:.1e}",
               {"given_gb": given, "left_gb": left})


def vllm_experts(toy: bool):
    if missing := without_vllm("vllm, experts"):
        yield from missing
        return
    policy = policies.Policy(folder_of("MoE", toy, weights=True), engine="vllm", context=2048, lr=1e-3)
    yield from agreement(policy, "vllm, experts", toy)


# --- the whole ---

COIN = """
class CoinEnv:
    def reset(self, seed=None):
        self.turns = 0
        return "say something", {}

    def step(self, action):
        self.turns += 1
        return "go on", float(sum(map(ord, action)) % 2), self.turns == 2, False, {}
"""


def train(toy: bool):
    """train.py as a user calls it: two rollouts, then two more from the checkpoint. The world pays by chance, so that a
    random model's plays differ in return and there is something to learn from."""
    folder, run = folder_of("0.6B", toy, weights=True, short=True), tempfile.mkdtemp() + "/run"
    pool = Path(tempfile.mkdtemp())
    for name in ("heads", "tails"):
        (pool / f"{name}.py").write_text('# {"hint": "be loud"}\n' + COIN)
    flags = ["--model", folder, "--pool", str(pool), "--k", "2", "--n-envs", "2", "--plays", "4", "--hint-plays", "2",
             "--max-turns", "2", "--max-tokens", "64", "--context", "1024", "--save-every", "2", "--run-dir", run]

    def call(*arguments):
        done = subprocess.run([sys.executable, "train.py", *arguments], cwd=TOP, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or done.stdout).splitlines()[-1])
    _, first = timed(lambda: call(*flags, "--rollouts", "2"))
    _, second = timed(lambda: call("--resume", run, "--rollouts", "4"))
    rows = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    trained = [row["tokens/trained"] for row in rows]
    worst = max(row.get("loss/engine_mismatch", 0.0) for row in rows)
    saved = os.path.exists(run + "/checkpoint/model.safetensors")
    yield ("train.py, 0.6B: 2 rollouts, 2 more by --resume",
           [row["rollout"] for row in rows] == [0, 1, 2, 3] and sum(trained) > 0 and worst < 0.05 and saved,
           f"{first:.0f} s and {second:.0f} s, {sum(trained):,.0f} tokens trained, |log-prob difference| {worst:.1e}",
           {"first_s": first, "second_s": second})


def two(toy: bool):
    """Two processes, on two GPUs where there are two, else on one over gloo, take the step that one process takes."""
    env = {**os.environ, "PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", __file__]
    done = subprocess.run([*command, "toy" if toy else "full"], capture_output=True, text=True, env=env)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        raise RuntimeError(lines[-1] if lines else done.stderr[-300:])
    pair = json.loads(done.stdout.strip().splitlines()[-1])
    alone = grpo.update(random_policy("small", toy), samples_of(512, 8, 96))["loss/grad_norm"]
    how = "nccl" if torch.cuda.device_count() > 1 else "gloo"
    yield (f"two processes over {how}: the gradient of one", abs(pair / alone - 1) < 0.02,
           f"norm {pair:.4f}, of one process {alone:.4f}", {"pair": pair, "alone": alone})


def one_of_two(toy: bool) -> None:
    if torch.cuda.device_count() == 1:   # nccl refuses two ranks on one GPU
        os.environ["LOCAL_RANK"] = "0"
        dist.init_process_group("gloo")
    policy = random_policy("small", toy)
    mine = ranks.share(samples_of(512, 8, 96))
    metrics = grpo.update(policy, mine)
    if ranks.rank() == 0:
        print(json.dumps(metrics["loss/grad_norm"]), flush=True)
    dist.destroy_process_group()


CHECKS = {"learner-0.6B": partial(learner, "0.6B", ""), "learner-1.7B": partial(learner, "1.7B", ""),
          "learner-4B": partial(learner, "4B", ""), "log-probs": log_probs, "gradient": gradient,
          "offload": partial(learner, "4B", " --offload", offload=True),
          "kl": partial(learner, "0.6B", " --kl", kl=0.005),
          "transformers": transformers_sampler, "vllm": vllm, "vllm-experts": vllm_experts, "train": train, "two": two}

if __name__ == "__main__":
    one_of_two(sys.argv[1] == "toy")
