"""From a name to a model: a folder, a hub id, or a short name. What is no model ends in one clear line.

A file of its own because here, before gigabytes are read and vLLM is started, is told whether they can be: whether
the configuration names a model that writes text, how many parameters it has, and whether its files are whole.
"""
import importlib.util
import os
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from machinery import ranks


def resolve(name: str) -> str:
    """`Qwen3-4B` -> `Qwen/Qwen3-4B`; a path or a full hub id is taken as it is."""
    return name if os.path.exists(name) or "/" in name else f"Qwen/{name}"


def refusal(name: str, reason) -> SystemExit:
    first = str(reason).strip().splitlines()[0][:200]
    return SystemExit(f"cannot load the model '{name}' ({first}). Give a folder with config.json and "
                      f"*.safetensors, a hub id such as Qwen/Qwen3-4B, or `--model tiny`, which is built here.")


def load(name: str, what=AutoModelForCausalLM, **options):
    """`from_pretrained` whose failure is one line that says what to do."""
    try:
        return what.from_pretrained(resolve(name), **options)
    except (OSError, ValueError, SafetensorError) as error:
        raise refusal(name, error) from error


def load_model(name: str):
    """The model in float32 on rank 0. The other ranks get its shape alone, since one whole copy per process can
    exceed a machine's memory: pages that nobody writes take none, and ranks.shard() fills in rank 0's weights.
    """
    if ranks.rank() == 0:
        return load(name, dtype=torch.float32)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(load(name, AutoConfig), dtype=torch.float32)
    model.to_empty(device="cpu").tie_weights()
    return model.eval()


def preferences(name: str, config) -> GenerationConfig:
    """How the checkpoint wants to be sampled, of which its end tokens are of interest here."""
    try:
        return GenerationConfig.from_pretrained(resolve(name))
    except OSError:   # it has no generation_config.json
        return GenerationConfig.from_model_config(config)


def count_parameters(name: str, config) -> int:
    """How many parameters a model of this configuration has; tied ones count once. Nothing is read or allocated."""
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config).num_parameters()
    except ValueError as error:   # a configuration of something else
        raise refusal(name, error) from error


def check_weights(name: str) -> None:
    """Of a folder: are there weights, and is each file whole? The first bytes of a file tell how long it must be."""
    folder = Path(resolve(name))
    try:
        if folder.is_dir() and not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
            raise refusal(name, "it holds no weights")
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt"):
                pass
    except SafetensorError as error:
        raise refusal(name, error) from error


def use_vllm(asked: str, cuda: bool) -> bool:
    there = importlib.util.find_spec("vllm") is not None
    if asked == "vllm" and not there:
        sys.exit("--engine vllm needs vllm: pip install -r requirements.txt vllm")
    if asked == "auto" and cuda and not there:
        print("vllm is not installed, so transformers samples, many times slower: pip install vllm")
    return there and (asked == "vllm" or asked == "auto" and cuda)
