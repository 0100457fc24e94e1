"""Ranks: this program started once per GPU by `torchrun`, all copies working as one.

A file of its own because every other file needs these few functions and none of them is about ranks.

What it teaches: data parallelism for self-play. Every rank designs and plays its share of the environments;
what must be seen whole (a baseline, a denominator, a metric) is gathered; the learner's samples are dealt out
by length; and FSDP2 keeps 1/world of the float32 weights, gradients and Adam moments on each rank. In a
single process every function here is the identity.

What it leaves out: pipeline and expert parallelism, ranks that come and go.

    torchrun --nproc_per_node 8 train.py --model Qwen3-4B
    torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint HOST:29500 train.py ...
"""
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

PATIENCE = timedelta(days=1)   # ranks wait for each other's plays and checkpoints; the default is half an hour


def start() -> torch.device:
    """Joins the process group when `torchrun` started us; returns this rank's device."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if dist.is_initialized():
        return device
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PATIENCE)
    elif cuda:  # FSDP2 on one GPU too: it brings bfloat16 compute on float32 weights, and CPU offload
        dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    return device


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(items: list) -> list:
    """The items of all ranks, rank after rank."""
    if world_size() == 1:
        return items
    parts = [None] * world_size()
    dist.all_gather_object(parts, items)
    return [item for part in parts for item in part]


def total(values: list[float]) -> list[float]:
    """Each value summed over all ranks."""
    return [sum(column) for column in zip(*gather([values]))]


def share(items: list, tensor_parallel: int = 1) -> list:
    """This rank's part of what is designed and played. Ranks that hold one sampler between them play as one:
    the first has the share of all, the others none (see VLLMEngine.done).

    Example: 4 ranks, items "abcdef" -> "ae" "bf" "c" "d";  in pairs (tensor_parallel=2) -> "ace" "" "bdf" "".
    """
    mine = items[rank() // tensor_parallel::world_size() // tensor_parallel]
    return mine if rank() % tensor_parallel == 0 else []


def subgroup(size: int):
    """The group of `size` neighbouring ranks that this one belongs to; None for a group of one."""
    return None if size == 1 else dist.new_subgroups(size, backend="gloo", timeout=PATIENCE)[0]


def broadcast(message, group):
    """The message of the group's first rank."""
    box = [message]
    if group is not None:
        dist.broadcast_object_list(box, group_src=0, group=group)
    return box[0]


def deal(samples: list) -> list:
    """All ranks' samples dealt out again, longest first, so that every rank learns from as many tokens."""
    if world_size() == 1:
        return samples
    return sorted(gather(samples), key=lambda s: -len(s.ids))[rank()::world_size()]


def shard(net: nn.Module, device: torch.device, offload: bool = False) -> None:
    """FSDP2: every rank holds 1/world of the float32 weights; a layer is whole, in bfloat16, as it runs.
    Only rank 0 has real weights before (policy.load_model); it hands everyone's part out, one tensor at a time.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import distribute_tensor
    # detached: the parameters themselves are about to move to the GPU
    whole = {name: p.detach() for name, p in net.named_parameters()} if world_size() > 1 else {}
    options = {"mesh": init_device_mesh(device.type, (world_size(),))}
    if device.type == "cuda":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if offload:
            options["offload_policy"] = CPUOffloadPolicy()
    for layer in net.model.get_decoder().layers:
        fully_shard(layer, **options)
    fully_shard(net, **options)
    with torch.no_grad():
        for name, p in net.named_parameters() if whole else ():
            part = distribute_tensor(whole.pop(name).to(device), p.device_mesh, p.placements)
            p.to_local().copy_(part.to_local())
        for buffer in net.buffers() if world_size() > 1 else ():   # in no checkpoint: rotary frequencies
            dist.broadcast(buffer, 0)
