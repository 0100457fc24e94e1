"""The policy: one causal language model that plays both roles. Tokens in, tokens and log-probs out.

What it teaches: how a chat model becomes a policy pi_theta(token | context) that can be sampled, scored and
saved: chat template to ids, weights to the sampler, checkpoints that load with `AutoModelForCausalLM`.

What it leaves out: LoRA, quantisation, value heads (GRPO needs none). Many GPUs: ranks.py; log-probs: logprobs.py.
"""
import random
import sys
from functools import partial
from pathlib import Path

import torch
from jinja2 import TemplateError
from torch.distributed.checkpoint import state_dict as whole_or_sharded
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoTokenizer
from transformers.core_model_loading import revert_weight_conversion

from machinery import memory, progress, ranks
from machinery.engines import Reply, TransformersEngine, VLLMEngine
from machinery.loading import check_weights, count_parameters, load, load_model, preferences, resolve, use_vllm
from machinery.logprobs import TokenLogProbs

EMPTY_THOUGHT = "<think>\n\n</think>\n\n"  # what hybrid Qwen3 templates put where thinking is switched off
TURN_ENDS = "<|im_end|> <|eot_id|> <end_of_turn>".split()   # base models declare only the token that ends a text
# what some families do to logits behind the head (Granite, Cohere, Gemma 2, Falcon-H1); TokenLogProbs does not
BEHIND_THE_HEAD = "logits_scaling logit_scale final_logit_softcapping lm_head_multiplier".split()


class Policy:
    """pi_theta with its tokenizer, its sampler and its optimiser.

    `name` is where the run starts; `weights` a checkpoint to go on from (the KL reference stays at `name`).
    Attributes: `net` (TokenLogProbs over the Hugging Face model), `tokenizer`, `engine`, `optimizer`, `rng`
    (the sampler's own randomness), `reference` (a frozen TokenLogProbs when KL is asked for, else None), `rewrites`
    (does the chat template change earlier turns?). Without `learns` there are only tokenizer and engine.
    """

    def __init__(self, name: str, weights: str | Path | None = None, *, seed: int = 0, engine: str = "auto",
                 lr: float = 1e-6, betas=(0.9, 0.98), weight_decay: float = 0.1, kl: float = 0.0,
                 context: int = 32768, top_p: float = 1.0, top_k: int = 0, thinking: bool = False,
                 gradient_checkpointing: bool = False, offload: bool = False, tensor_parallel: int = 1,
                 sleep: bool = False, learns: bool = True):
        self.device = ranks.start()
        self.name, self.thinking, self.context = name, thinking, context
        self.rng = random.Random(f"{seed} sampler {ranks.rank() // tensor_parallel}")
        source, cuda = str(weights or name), self.device.type == "cuda"
        vllm = use_vllm(engine, cuda)
        if ranks.world_size() % tensor_parallel or tensor_parallel > 1 and not vllm:
            sys.exit(f"--tensor-parallel {tensor_parallel} needs vLLM, and torchrun with a multiple of as "
                     f"many processes; here are {ranks.world_size()}")
        self.tokenizer = load(source, AutoTokenizer)
        config = load(source, AutoConfig)
        ends = preferences(source, config).eos_token_id
        ends = (ends if isinstance(ends, list) else [ends]) + [self.tokenizer.eos_token_id]
        # not tokenizer.all_special_tokens, which lacks those without a role of their own, such as Llama's headers
        self.controls = [t.content for t in self.tokenizer.added_tokens_decoder.values() if t.special]
        ends += [self.tokenizer.convert_tokens_to_ids(token) for token in self.controls
                 if token in TURN_ENDS and token in (self.tokenizer.chat_template or "")]
        self.eos_ids = ranks.gather([[i for i in dict.fromkeys(ends) if i is not None]])[0]
        self._check_template()
        longest = getattr(config, "max_position_embeddings", context)
        if context > longest:
            sys.exit(f"--context {context} is more than the {longest} tokens that '{name}' can read")
        for key in BEHIND_THE_HEAD if learns else ():
            if getattr(config.get_text_config(), key, None) not in (None, 1):
                sys.exit(f"'{name}' changes its logits behind the head ({key}), which the learner does not: its "
                         f"log-probs would be wrong. Take a model of another family, such as Qwen3 or Llama.")
        room = memory.plan(config, count_parameters(source, config), self.device, context, learns=learns, vllm=vllm,
                           tensor_parallel=tensor_parallel, offload=offload, sleep=sleep, kl=kl)
        check_weights(source)
        common = self.tokenizer, self.eos_ids, self.rng, top_p, top_k
        self.net = self.optimizer = self.reference = None
        if vllm:  # before the learner takes its part of the GPU
            with progress.shown("starting vLLM"):
                self.engine = VLLMEngine(*common, resolve(source), context, tensor_parallel, sleep, room)
        if not learns:
            if not vllm:
                self.engine = TransformersEngine(load(source, dtype=room.dtype).to(self.device), *common, room.batch)
            return
        model = load_model(source)
        if gradient_checkpointing:  # keep what goes into each layer, and compute the rest again in backward
            for layer in model.get_decoder().layers:
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        self.net = TokenLogProbs(model)
        if kl:
            self.reference = TokenLogProbs(load_model(name)).requires_grad_(False)
        self.sharded = cuda or ranks.world_size() > 1
        for net in filter(None, [self.net, self.reference] if self.sharded else []):
            ranks.shard(net, self.device, offload)
        if not vllm:
            if self.sharded:  # what is in pieces cannot generate: a copy that sync() keeps up to date
                model = load(source, dtype=room.dtype).to(self.device)
            self.engine = TransformersEngine(model, *common, room.batch)
        # foreach would need 4 more bytes per parameter for a moment
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr, betas, weight_decay=weight_decay, foreach=False)

    # --- text and ids ---

    def _defuse(self, value):
        """Breaks up control tokens inside untrusted text, so that an observation cannot end its own turn."""
        if isinstance(value, str):
            for token in self.controls:
                value = value.replace(token, token[0] + " " + token[1:])
            return value
        if isinstance(value, dict):
            return {self._defuse(k): self._defuse(v) for k, v in value.items()}
        return [self._defuse(v) for v in value] if isinstance(value, list) else value

    def _template(self, messages: list[dict], tools=None) -> str:
        return self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False,
                                                  add_generation_prompt=True, enable_thinking=self.thinking)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prompt_ids(self, messages: list[dict], tools=None) -> list[int]:
        """The ids of an opening prompt, or of a whole conversation, up to where the assistant begins.

        The assistant's own earlier turns stay as it wrote them, as they do where turns are appended.
        """
        safe = [m if m["role"] == "assistant" else self._defuse(m) for m in messages]
        return self._encode(self._template(safe, self._defuse(tools)))

    def turn_ids(self, messages: list[dict]) -> list[int]:
        """The ids to append after a sampled reply, so that the next turn can be sampled.

        They are what the template writes behind the end token of a dummy reply: a newline between turns is
        kept, and nothing that was sampled is ever tokenised again. The end token is encoded with them and cut off:
        some tokenizers (Llama 2's) put a space before whatever a text begins with.
        """
        _, end, behind = self._around_reply("dummy-reply", self._defuse(messages))
        ids = self._encode(end + behind)
        if ids[0] not in self.eos_ids:
            raise ValueError(f"its tokenizer does not keep {end} whole")
        return ids[1:]

    def _around_reply(self, reply: str, messages: list[dict]) -> tuple[str, str, str]:
        """A dummy conversation up to the assistant's `reply`, its end token, and what comes behind that."""
        dummy = [{"role": "user", "content": "question"}, {"role": "assistant", "content": reply}]
        before, _, behind = self._template(dummy + messages).partition("dummy-reply")
        ends = [self.tokenizer.decode([i]) for i in self.eos_ids]
        end = next((end for end in ends if behind.startswith(end)), None)
        if end is None:
            raise ValueError("it puts no end-of-sequence token behind a reply")
        return before + "dummy-reply", end, behind[len(end):]

    def _check_template(self) -> None:
        """Does appending turn by turn give what the template gives for the whole conversation? Else it `rewrites`
        earlier turns, as thinking models do that cut their thoughts, and agent.play() renders each turn anew.

        One difference is no rewriting: hybrid Qwen3 templates with thinking off open a reply with an empty thought
        and leave that out of earlier turns. Ours keep it, as the model saw it when it sampled.
        """
        problem = "there is none"
        if self.tokenizer.chat_template:
            user = [{"role": "user", "content": "question"}]
            reply = "<think>\nwhy\n</think>\n\ndummy-reply" if self.thinking else "dummy-reply"
            try:
                built = self._template(user) + reply
                shown, end, behind = self._around_reply(reply, user)
                appends = shown.replace(EMPTY_THOUGHT, "").startswith(built.replace(EMPTY_THOUGHT, ""))
                if appends:   # in text; and in ids?
                    appended, whole = self.turn_ids(user), self._encode(shown + end + behind)
                    appends = whole[-len(appended):] == appended and whole[-len(appended) - 1] in self.eos_ids
                self.rewrites = not appends
                return
            except (ValueError, TemplateError) as error:
                problem = str(error)
        sys.exit(f"the chat template of '{self.name}' cannot hold a conversation: {problem}. Use a chat (instruct) "
                 f"model, for example Qwen/Qwen3-4B-Instruct-2507.")

    # --- sampling ---

    def sample(self, prompts: list[list[int]], max_new_tokens: int, temperature: float,
               what: str = "replies") -> list[Reply]:
        """One Reply per prompt, in order; an empty unfinished one where the context leaves no room. `what` they are
        is written before the progress bar.
        """
        replies = [Reply([], [], "", False) for _ in prompts]
        with progress.shown(what, len(prompts), engine=self.engine) as advance:
            for i, ids in enumerate(prompts):
                if len(ids) < self.context:
                    self.engine.submit(i, ids, min(max_new_tokens, self.context - len(ids)), temperature)
            while self.engine.busy():
                for i, reply in self.engine.collect():
                    replies[i] = reply
                    advance()
        self.engine.done()
        return replies

    def sync(self) -> None:
        """Gives the learner's weights to the sampler. Every rank takes part: gathering is a collective."""
        model = self.net.model
        # One tensor at a time is whole. vLLM wants the names of checkpoint files (experts one by one).
        weights = ((name, p.full_tensor().detach() if self.sharded else p.detach())
                   for name, p in model.named_parameters())
        if isinstance(self.engine, VLLMEngine):
            with progress.shown("weights to vLLM"):
                self.engine.sync(pair for name, whole in weights
                                 for pair in revert_weight_conversion(model, {name: whole}).items())
        elif self.sharded:
            self.engine.sync(weights)

    # --- checkpoints ---

    def state(self) -> tuple[dict, dict]:
        """Weights and optimiser state, whole on rank 0. Every rank takes part."""
        options = whole_or_sharded.StateDictOptions(full_state_dict=True, cpu_offload=self.sharded)
        weights = whole_or_sharded.get_model_state_dict(self.net.model, options=options)
        once = dict(self.net.model.named_parameters())   # a tied head has two names, and sharded two tensors
        for name, _ in self.net.model.named_parameters(remove_duplicate=False):
            if name not in once:
                weights.pop(name, None)
        if not self.optimizer.state:  # no step yet; asking for its state would make one
            return weights, {}
        return weights, whole_or_sharded.get_optimizer_state_dict(self.net, self.optimizer, options=options)

    def write(self, folder: Path, state: tuple[dict, dict]) -> None:
        """Writes a Hugging Face checkpoint and the optimiser's state."""
        with progress.shown("saving"):
            self.net.model.save_pretrained(folder, state_dict=state[0])
            self.tokenizer.save_pretrained(folder)
            torch.save(state[1], folder / "optimizer.pt")

    def load_optimizer(self, folder: Path) -> None:
        """Puts back what `write` wrote; the weights are read by loading `folder` as the model."""
        state = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True, mmap=True)
        if state:
            options = whole_or_sharded.StateDictOptions(full_state_dict=True)
            whole_or_sharded.set_optimizer_state_dict(self.net, self.optimizer, state, options=options)
