"""Models of real shapes with random weights, samples to learn from, time and memory: for tests/gpu_checks.py.

Only the reading of weights is replaced: a model gets random ones where it will be used, not gigabytes from a disk.
"""
import random
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import grpo
import machinery.policy as policies
import tests.tiny_model as tiny_model
from machinery import memory

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
WORKSPACE = memory.GPU_WORKSPACE / 1e9      # GB: what the README grants to activations
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "H20": 148e12, "A100": 312e12, "B200": 2250e12, "L40S": 362e12,
              "L4": 121e12, "4090": 165e12}    # dense bfloat16, by a part of the card's name
SHAPES = {   # of Qwen3, as published
    "0.6B": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16),
    "1.7B": dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16),
    "4B": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32),
    "small": dict(hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4),
    "MoE": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=16,
                num_experts=32, num_experts_per_tok=4, moe_intermediate_size=512, norm_topk_prob=True),
}


# --- models and samples ---

def config_of(shape: str, toy: bool, **more):
    sizes = dict(SHAPES[shape], vocab_size=151936, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960)
    if shape == "small":
        sizes |= dict(vocab_size=4096, num_key_value_heads=2, head_dim=64)
    if toy:
        sizes |= dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
                      num_key_value_heads=1, head_dim=32, max_position_embeddings=2048, initializer_range=0.15)
    if toy and shape == "MoE":
        sizes |= dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
    words, sizes = tiny_model.tokenizer(), sizes | more
    return AutoConfig.for_model(
        "qwen3_moe" if shape == "MoE" else "qwen3", **sizes, tie_word_embeddings=shape in ("0.6B", "1.7B", "4B"),
        bos_token_id=None, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id)


def folder_of(shape: str, toy: bool, weights: bool = False, short: bool = False) -> str:
    """A checkpoint's folder: configuration and tokenizer, and on demand random weights in bfloat16. With `short` its
    vocabulary is the tokenizer's, of which a tenth ends a reply: else a random model's replies never end."""
    folder, words = tempfile.mkdtemp(prefix="gpu-check-"), tiny_model.tokenizer()
    words.save_pretrained(folder)
    config_of(shape, toy, **({"vocab_size": len(words)} if short else {})).save_pretrained(folder)
    if weights:
        model = random_weights(folder, dtype=torch.bfloat16)
        if short:
            model.generation_config.eos_token_id = [words.eos_token_id, *range(26)]
        model.save_pretrained(folder)
    return folder


def random_weights(name: str, what=AutoModelForCausalLM, read=policies.load, **options):
    """In the place of policy.load: the tokenizer and the configuration are read, the weights drawn on the device."""
    if what is not AutoModelForCausalLM:
        return read(name, what, **options)
    torch.manual_seed(0)
    with DEVICE:
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(name), dtype=options["dtype"]).eval()


def random_policy(shape: str, toy: bool, **options) -> policies.Policy:
    options = {"engine": "transformers", "context": 2048, "gradient_checkpointing": True, **options}
    with (mock.patch.object(policies, "load", random_weights), mock.patch.object(policies, "check_weights"),
          mock.patch("machinery.loading.load", random_weights)):
        return policies.Policy(folder_of(shape, toy), **options)


def samples_of(vocabulary: int, count: int, length: int) -> list[grpo.Sample]:
    """Random ids; the first quarter of each sample is the prompt. Lengths differ by up to a tenth."""
    rng, samples = random.Random(0), []
    for i in range(count):
        total = length - i % 10 * length // 100
        prompt = total // 4
        ids = [rng.randrange(vocabulary) for _ in range(total)]
        samples.append(grpo.Sample(ids, [0] * prompt + [1] * (total - prompt), [-8.0] * (total - prompt), "agent", "g",
                                   0.0, (-1.0) ** i))
    return samples


# --- measuring ---

def reset_peak() -> None:
    if CUDA:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")   # Linux: the highest memory so far is forgotten


def peak_gb() -> float:
    if CUDA:
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() / 1e9
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e6


def timed(function):
    """Its result and the seconds it took, the GPU's work included."""
    start = time.perf_counter()
    result = function()
    if CUDA:
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def model_flops(model, samples) -> float:
    """Of one forward and backward without recomputation: 6 per weight and token, and causal attention's."""
    config = model.config
    layers = sum(p.numel() for p in model.get_decoder().layers.parameters())
    head = config.vocab_size * config.hidden_size
    attention = 6 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    return sum(6 * layers * len(s.ids) + 6 * head * sum(s.mask) + attention * len(s.ids) ** 2 for s in samples)


def card_flops() -> float | None:
    name = torch.cuda.get_device_name() if CUDA else ""
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
