"""Memory: what the learner, the sampler and its cache will take, reckoned from the model's shape.

A file of its own because it is arithmetic that is done before anything is loaded: what cannot fit is refused in one
line, instead of being killed by the system after an hour.

    the learner    16 bytes a parameter: float32 weights, gradients, Adam's two moments; 4 more for the KL's reference
    the sampler    2 or 4 bytes a parameter where it is a copy of its own, and its cache of keys and values
    workspace      activations, one chunk of logits, layers that are whole for a moment

On a GPU, vLLM gets a share of the memory: what the learner leaves. On a CPU it gets a cache of a fixed size, since a
share of everything would count what this process already uses.
"""
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from machinery import ranks

SMALL = 100_000_000   # parameters; below nothing is planned on a CPU
GPU_WORKSPACE = 16e9  # bytes on each GPU
CPU_WORKSPACE = 4e9   # bytes, of a learner's activations or, in turn, of generate()'s batch
CPU_CACHE = 2e9       # bytes of keys and values in vLLM: 80,000 tokens of a model of 0.5 billion parameters
CPU_BASE = 2e9        # bytes: Python, torch, vLLM, a chunk of logits
BATCH = 65536         # tokens of one generate(), where memory allows
STEP = 512            # prompt tokens that vLLM reads per step on a CPU: some seconds, then it samples on


@dataclass
class Room:
    """What a sampler may take: the `dtype` of its weights; vLLM's `share` of a GPU's memory, or on a CPU the bytes of
    its `cache` and the tokens of one `step` (None: as vLLM likes); the tokens of a `batch` for generate().
    """
    dtype: torch.dtype
    share: float = 0.9
    cache: int | None = None
    step: int | None = None
    batch: int = BATCH


def plan(config, size: int, device: torch.device, context: int, *, learns: bool, vllm: bool, tensor_parallel: int = 1,
         offload: bool = False, sleep: bool = False, kl: float = 0.0) -> Room:
    """The room of the sampler of a model with `size` parameters, for episodes of up to `context` tokens.

    Ends the program in one line where the sampler, and the learner if there is one, do not fit.
    """
    if device.type == "cuda":
        return Room(torch.bfloat16, sampler_share(size, device, tensor_parallel, offload, sleep, kl, learns))
    return on_cpu(config.get_text_config(), size, context, learns, vllm, tensor_parallel, kl)


def on_cpu(text, size: int, context: int, learns: bool, vllm: bool, tensor_parallel: int, kl: float) -> Room:
    """The room of a sampler beside a learner on a CPU; `text` is the configuration of the language model."""
    own = vllm or not learns or ranks.world_size() > 1   # else generate() runs on the learner's very weights
    # Beside a learner float32: measured with 0.5 billion parameters and avx512_bf16, bfloat16 writes a fifth faster but
    # reads prompts a quarter slower, and the log-probs of learner and sampler differ by 0.016 instead of 0.000004.
    alone = not learns and size >= SMALL
    dtype = torch.bfloat16 if alone and has_bfloat16() else torch.float32
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    token = 2 * text.num_hidden_layers * heads * width * dtype.itemsize    # bytes of its keys and values
    episode = (context + 256) * token          # the longest, and rounded up to whole blocks
    cache = min(256 * episode, CPU_CACHE)      # more than 256 at once vLLM does not sample
    room = Room(dtype, cache=int(max(cache, episode)))
    if size < SMALL:
        return room
    room.step = STEP
    reading = token + 3 * getattr(text, "intermediate_size", 4 * text.hidden_size) * dtype.itemsize
    room.batch = min(BATCH, int(CPU_WORKSPACE / reading))
    learner = (16 + 4 * bool(kl)) * size / ranks.world_size() if learns else 0
    sampler = dtype.itemsize * size / tensor_parallel if own else 0
    sampler += room.cache if vllm else 0
    rest = CPU_BASE + (CPU_WORKSPACE if learns or not vllm else 0)
    free = free_bytes() / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    need = learner + sampler + rest
    if need > free:
        sys.exit(f"{size / 1e9:.2f}B parameters need {need / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free: "
                 f"the learner takes {learner / 1e9:.1f} GB, the sampler {sampler / 1e9:.1f} GB, activations and the "
                 f"program itself {rest / 1e9:.0f} GB. Take a smaller model, or close other programs.")
    return room


def has_bfloat16() -> bool:
    """Does this CPU multiply bfloat16 numbers by itself? Linux tells; elsewhere the answer is no."""
    path = Path("/proc/cpuinfo")
    flags = path.read_text().split() if path.exists() else []
    wanted = {"bf16"} if platform.machine() == "aarch64" else {"avx512_bf16", "amx_bf16"}
    return not wanted.isdisjoint(flags)


def free_bytes() -> float:
    """Memory that programs may still take: of the machine, or of the container where that is less."""
    free = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))   # without Linux: all there is
    path = Path("/proc/meminfo")
    if path.exists():
        facts = dict(line.split(":") for line in path.read_text().splitlines())
        free = 1024.0 * int(facts["MemAvailable"].split()[0])
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and limit.read_text().strip() != "max":
        free = min(free, float(limit.read_text()) - float(used.read_text()))
    return free


def sampler_share(size: int, device: torch.device, tensor_parallel: int, offload: bool, sleep: bool,
                  kl: float = 0.0, learns: bool = True) -> float:
    """The share of each GPU's memory that vLLM may take: what a learner of `size` parameters leaves, if there is one.

    The learner's 16 bytes per parameter are divided among the ranks; 12 while vLLM is awake if it sleeps else; 4 more
    for the KL's reference; none with offload. GPU_WORKSPACE comes on top.

    Example: 4e9 parameters, one GPU of 141e9 bytes -> (141 - 64 - 16) / 141 = 0.43.
    """
    memory = torch.cuda.get_device_properties(device).total_memory
    bytes_each = 0 if offload else 16 + 4 * bool(kl)
    peak = GPU_WORKSPACE + bytes_each * size / ranks.world_size() if learns else 0.0
    learner = peak - (4 * size / ranks.world_size() if sleep and learns and not offload else 0)   # no gradients then
    sampler = 2 * size / tensor_parallel + 2e9   # bfloat16 weights, a little room for keys and values
    if learner + sampler > memory or peak > memory:
        sys.exit(f"{size / 1e9:.1f}B parameters do not fit on {ranks.world_size()} GPUs of "
                 f"{memory / 1e9:.0f} GB: of each the learner takes {peak / 1e9:.0f} GB, and the sampler "
                 f"needs {sampler / 1e9:.0f} GB. Try --sleep, --offload, --tensor-parallel, or more GPUs.")
    return min(0.9, 1 - learner / memory)
