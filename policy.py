"""The policy: one causal language model that plays both roles. Tokens in, tokens and log-probs out.

What it teaches: how a chat model becomes a policy pi_theta(token | context) that can be sampled, scored, sharded
and saved: chat template to ids, ids to log-probs without ever holding all the logits, FSDP2 sharding,
weights to the sampler, checkpoints that load with `AutoModelForCausalLM`.

What it leaves out: LoRA, quantisation, pipeline parallelism, value heads (GRPO needs none).
"""
import os
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

from engines import TransformersEngine, vllm_engine

EMPTY_THOUGHT = "<think>\n\n</think>\n\n"  # what hybrid Qwen3 templates put where thinking is switched off


# --- ranks: every function here is the identity in a single process -------------------------------------------

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


def start_ranks() -> torch.device:
    """Joins the process group when started by `torchrun`; returns this rank's device."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    elif cuda and not dist.is_initialized():  # FSDP2 on one GPU brings mixed precision and CPU offload
        dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    return device


# --- the model ------------------------------------------------------------------------------------------------

class TokenLogProbs(nn.Module):
    """A causal language model whose forward gives log-probs instead of logits.

    Logits are the largest tensor of the whole run: 4,096 tokens x 151,936 entries in float32 are 2.5 GB, and
    log_softmax with its gradient needs three such. So the head is applied to `chunk` tokens at a time, only where
    `mask` asks for it, and recomputed in backward.
    """

    def __init__(self, model: nn.Module, chunk: int = 1024):
        super().__init__()
        self.model, self.chunk = model, chunk

    def _score(self, hidden, targets, temperature):
        logits = self.model.get_output_embeddings()(hidden).float() / temperature   # (n, V)
        normaliser = logits.logsumexp(-1)                                            # (n,)
        logprobs = logits.gather(1, targets[:, None])[:, 0] - normaliser             # (n,)
        with torch.no_grad():
            entropy = normaliser - (logits.softmax(-1) * logits).sum(-1)             # (n,)
        return logprobs, entropy

    def forward(self, ids, attention_mask, mask, temperature: float = 1.0):
        """Log-probs and entropies of the tokens where `mask` is True.

        ids, attention_mask, mask: (B, T). mask[:, 0] must be False: nothing predicts the first token.
        Returns two (N,) tensors, N = mask.sum(), in row-major order; the entropy carries no gradient.

        Example: ids [[5, 6, 7]], mask [[0, 1, 1]] -> [log p(6 | 5), log p(7 | 5, 6)].
        """
        hidden = self.model.get_decoder()(input_ids=ids, attention_mask=attention_mask).last_hidden_state
        hidden = hidden[:, :-1][mask[:, 1:]]   # (N, H): position t predicts token t + 1
        targets = ids[:, 1:][mask[:, 1:]]      # (N,)
        parts = [checkpoint(self._score, h, y, temperature, use_reentrant=False)
                 for h, y in zip(hidden.split(self.chunk), targets.split(self.chunk))]
        if not parts:                          # a rank that only keeps step with the others
            return hidden.sum(-1), hidden.detach().sum(-1)
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def resolve(name: str) -> str:
    """`Qwen3-4B` -> `Qwen/Qwen3-4B`; a path or a full hub id is taken as it is."""
    return name if os.path.exists(name) or "/" in name else f"Qwen/{name}"


def load_model(name: str, what=AutoModelForCausalLM, **options):
    """`from_pretrained` whose failure is one line that says what to do."""
    try:
        return what.from_pretrained(resolve(name), **options)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        sys.exit(f"cannot load the model '{name}' ({reason}). Give a folder with config.json and *.safetensors, "
                 f"a hub id such as Qwen/Qwen3-4B, or `--model tiny`, which is built here.")


def shard(net: TokenLogProbs, device: torch.device, offload: bool = False) -> None:
    """FSDP2: every rank holds 1/world of the float32 weights and gathers one layer at a time in bfloat16."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    cuda = device.type == "cuda"
    options = dict(mesh=init_device_mesh(device.type, (world_size(),)),
                   offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy())
    if cuda:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in net.model.get_decoder().layers:
        fully_shard(layer, **options)
    fully_shard(net, **options)


class Policy:
    """pi_theta with its tokenizer, its sampler and its optimiser.

    Attributes: `net` (TokenLogProbs over the Hugging Face model), `tokenizer`, `engine`, `optimizer`,
    `reference` (a frozen TokenLogProbs when KL is asked for, else None), `rng` (the sampler's own randomness).
    `name` is where the run starts; `weights` a checkpoint to go on from (the KL reference stays at `name`).
    """

    def __init__(self, name: str, weights: str | Path | None = None, seed: int = 0, engine: str = "auto", lr: float = 1e-6, betas=(0.9, 0.98),
                 weight_decay: float = 0.1, kl: float = 0.0, context: int = 32768, top_p: float = 1.0,
                 top_k: int = 0, thinking: bool = False, gradient_checkpointing: bool = False,
                 offload: bool = False, tensor_parallel: int = 1, sleep: bool = False):
        self.device = start_ranks()
        self.name, self.thinking = name, thinking
        weights = str(weights or name)
        self.rng = random.Random(f"{seed} sampler {rank()}")
        self.tokenizer = load_model(name, AutoTokenizer)
        if not self.tokenizer.chat_template:
            sys.exit(f"'{name}' has no chat template: SPADE needs a chat (instruct) model.")
        use_vllm = engine == "vllm" or (engine == "auto" and self.device.type == "cuda")
        sampler = None
        if use_vllm:  # before our own weights: vLLM measures the free memory when it starts
            sampler = vllm_engine(resolve(weights), context=context, seed=seed, top_p=top_p, top_k=top_k,
                                  tensor_parallel=tensor_parallel, sleep=sleep, required=engine == "vllm")
        model = load_model(weights, dtype=torch.float32)
        generation = model.generation_config.eos_token_id
        eos = generation if isinstance(generation, list) else [generation]
        self.eos_ids = [i for i in dict.fromkeys([*eos, self.tokenizer.eos_token_id]) if i is not None]
        if gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.config.use_cache = False
        self.net = TokenLogProbs(model)
        self.reference = TokenLogProbs(load_model(name, dtype=torch.float32)).requires_grad_(False) if kl else None
        self.sharded = self.device.type == "cuda" or world_size() > 1
        for net in filter(None, [self.net, self.reference]):
            if self.sharded:
                shard(net, self.device, offload)
        if sampler is None:
            own = load_model(weights, dtype=torch.bfloat16 if self.device.type == "cuda" else torch.float32
                             ).to(self.device) if self.sharded else model
            sampler = TransformersEngine(own, self.tokenizer, self.eos_ids, self.rng, top_p, top_k)
        self.engine = sampler
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=lr, betas=betas, weight_decay=weight_decay)
        self._check_template()

    # --- text and ids ---

    def _defuse(self, value):
        """Breaks up control tokens inside untrusted text, so that an observation cannot end its own turn."""
        if isinstance(value, str):
            for token in self.tokenizer.all_special_tokens:
                value = value.replace(token, token[0] + " " + token[1:])
            return value
        if isinstance(value, dict):
            return {self._defuse(k): self._defuse(v) for k, v in value.items()}
        return [self._defuse(v) for v in value] if isinstance(value, list) else value

    def _template(self, messages: list[dict], tools=None, generate=True) -> str:
        return self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False,
                                                  add_generation_prompt=generate, enable_thinking=self.thinking)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prompt_ids(self, messages: list[dict], tools=None) -> list[int]:
        """The ids of an opening prompt, up to where the assistant begins."""
        return self._encode(self._template(self._defuse(messages), self._defuse(tools)))

    def turn_ids(self, messages: list[dict]) -> list[int]:
        """The ids to append after a sampled reply, so that the next turn can be sampled.

        Taken from a rendering of a dummy conversation, behind the dummy reply's end token: a newline that the
        template puts between turns is kept, and nothing that was sampled is ever tokenised again.
        """
        return self._encode(self._after_reply(self._defuse(messages)))

    def _after_reply(self, messages: list[dict]) -> str:
        dummy = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "dummy-reply"}]
        rest = self._template(dummy + messages).split("dummy-reply", 1)[-1]
        for end in (self.tokenizer.decode([i]) for i in self.eos_ids):
            if rest.startswith(end):
                return rest[len(end):]
        raise ValueError("no end-of-turn token behind the reply")

    def _check_template(self) -> None:
        """Appending turn by turn must give what the template gives for the whole conversation."""
        user, reply = {"role": "user", "content": "question"}, {"role": "assistant", "content": "dummy-reply"}
        problem = "it puts no end-of-sequence token behind a reply"
        try:
            whole = self._template([user, reply, user])
            end = whole.split("dummy-reply", 1)[-1]
            end = next(e for e in (self.tokenizer.decode([i]) for i in self.eos_ids) if end.startswith(e))
            built = self._template([user]) + "dummy-reply" + end + self._after_reply([user])
            problem = "it rewrites earlier turns"
            if built.replace(EMPTY_THOUGHT, "") == whole.replace(EMPTY_THOUGHT, ""):
                return
        except (ValueError, StopIteration):
            pass
        sys.exit(f"the chat template of '{self.name}' cannot be extended turn by turn ({problem}), so the tokens "
                 f"trained on would not be the tokens sampled. Use an instruct model without forced thinking, for "
                 f"example Qwen/Qwen3-4B-Instruct-2507.")

    # --- sampling ---

    def sample(self, prompts: list[list[int]], max_new_tokens: int, temperature: float, progress=None) -> list:
        """One Reply per prompt, in order."""
        replies = [None] * len(prompts)
        for i, ids in enumerate(prompts):
            self.engine.submit(i, ids, max_new_tokens, temperature)
        while self.engine.busy():
            for i, reply in self.engine.collect():
                replies[i] = reply
                if progress is not None:
                    progress.update()
        return replies

    def full_weights(self):
        """(name, tensor) pairs; sharded tensors are gathered one at a time, so at most one is whole."""
        for name, p in self.net.model.named_parameters():
            yield name, p.full_tensor().detach() if hasattr(p, "full_tensor") else p.detach()

    def sync(self) -> None:
        """Gives the learner's weights to the sampler. Every rank takes part: gathering is a collective."""
        if self.sharded or not isinstance(self.engine, TransformersEngine):
            self.engine.sync(self.full_weights())

    # --- checkpoints ---

    def save(self, folder: Path) -> None:
        """Writes a Hugging Face checkpoint, the optimiser and the sampler's random state into `folder`."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
        whole = StateDictOptions(full_state_dict=True, cpu_offload=self.sharded)
        weights = get_model_state_dict(self.net.model, options=whole)
        optimizer = get_optimizer_state_dict(self.net, self.optimizer, options=whole)
        if rank() == 0:
            self.net.model.save_pretrained(folder, state_dict=weights)
            self.tokenizer.save_pretrained(folder)
            torch.save(optimizer, folder / "optimizer.pt")

    def load_optimizer(self, folder: Path) -> None:
        """Puts back what `save` wrote; the weights themselves are read by loading `folder` as the model."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
        state = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
        set_optimizer_state_dict(self.net, self.optimizer, state,
                                 options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=False))
