"""Engines: prompts in, sampled tokens and their log-probabilities out.

What it teaches: a self-play loop needs two calls from a sampler, `submit(key, ids)` and `collect()`, and
with those two an episode can go on as soon as its own turn is done, whoever else is still decoding.
`TransformersEngine` answers all that waits with `generate`; `VLLMEngine` makes one step of vLLM at a time.
Both have the same face: submit, busy, collect, done (nothing more is asked for in this phase), sync, sleep; and
`sampled`, the tokens sampled so far, those of unfinished replies too: what a progress bar shows.
Both return the log-probability of each sampled token *after* the temperature, because that is the
distribution the token really came from: the learner compares it with its own (see `grpo.policy_loss`).

What it leaves out: speculative decoding, prefix sharing by hand, asynchronous servers.

Try it:  python train.py --engine vllm      (or transformers; the default is vllm on a GPU)
"""
import os
import random
from dataclasses import dataclass
from itertools import count

import numpy
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from machinery import memory, ranks

VLLM_KNOWN = ("0.32", "0.33")   # versions of vLLM for which tests/test_vllm_contract.py holds


@dataclass
class Reply:
    """One sampled assistant turn: `ids` with the end-of-turn token, one log-prob per id, the decoded text.

    `finished` is False when the token limit cut the reply; then its last id is an ordinary token.
    """
    ids: list[int]
    logprobs: list[float]
    text: str
    finished: bool


def make_reply(tokenizer, eos_ids: list[int], ids: list[int], logprobs: list[float]) -> Reply:
    """What was sampled up to the first end-of-turn token, if there is one."""
    end = next((i for i, token in enumerate(ids) if token in eos_ids), len(ids))
    text = tokenizer.decode(ids[:end], skip_special_tokens=False)
    return Reply(ids[:end + 1], logprobs[:end + 1], text, finished=end < len(ids))


class _RecordLogProbs(LogitsProcessor):
    """Temperature, then top-k and top-p where asked for; keeps the log-prob of each token once it is known.

    `generate(output_scores=True)` would keep (steps, B, V) scores; this keeps one (B, V) tensor at a time.
    """

    def __init__(self, temperature: torch.Tensor, eos_ids: list[int], note, top_p: float, top_k: int):
        self.temperature = temperature  # (B, 1)
        self.eos_ids = torch.tensor(eos_ids, device=temperature.device)
        self.note = note                # called after each step with the number of tokens it added
        self.going = torch.ones_like(temperature[:, 0], dtype=torch.bool)   # (B,) False behind an end token
        self.cuts = [TopKLogitsWarper(top_k)] if top_k > 0 else []
        self.cuts += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        self.previous = None            # (B, V) log-probs of the step whose token has not been seen yet
        self.steps = []                 # each (B,)

    def take(self, tokens: torch.Tensor) -> None:
        if self.previous is not None:
            self.steps.append(self.previous.gather(1, tokens[:, None])[:, 0])
            self.note(int(self.going.sum()))
            self.going &= ~torch.isin(tokens, self.eos_ids)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.take(input_ids[:, -1])
        scores = scores.float() / self.temperature
        for cut in self.cuts:
            scores = cut(input_ids, scores)
        self.previous = scores.log_softmax(-1)  # (B, V)
        return scores


class TransformersEngine:
    """Samples with `model.generate`, in batches of similar prompt length; on a CPU it is exactly repeatable.

    `rng` is the run's own random.Random: every batch draws a seed from it and the global torch state is
    put back afterwards, so a resumed run samples what the uninterrupted one would have.
    """

    streams = False  # collect() leaves nothing waiting

    def __init__(self, model, tokenizer, eos_ids: list[int], rng: random.Random,
                 top_p: float = 1.0, top_k: int = 0, tokens_per_batch: int = 65536):
        self.model, self.tokenizer, self.rng = model, tokenizer, rng
        self.eos_ids, self.tokens_per_batch = eos_ids, tokens_per_batch
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos_ids[0]
        self.fixed = dict(top_p=top_p, top_k=top_k)
        self.config = dict(do_sample=True, temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0,
                           eos_token_id=eos_ids, pad_token_id=self.pad_id, use_cache=True)
        self.waiting, self.sampled = [], 0

    def submit(self, key, ids: list[int], max_new_tokens: int, temperature: float) -> None:
        self.waiting.append((key, ids, max_new_tokens, temperature))

    def busy(self) -> bool:
        return bool(self.waiting)

    def _note(self, tokens: int) -> None:
        self.sampled += tokens

    def collect(self) -> list[tuple[object, Reply]]:
        """Answers all that waits, in the order it was submitted."""
        requests, self.waiting = self.waiting, []
        batches, replies, most = [], {}, 0   # `most`: tokens that every row of the last batch may grow by
        for i in sorted(range(len(requests)), key=lambda i: len(requests[i][1])):
            _, ids, limit, _ = requests[i]
            most = max(most, limit)
            if batches and (len(batches[-1]) + 1) * (len(ids) + most) <= self.tokens_per_batch:
                batches[-1].append(i)
            else:
                batches.append([i])
                most = limit
        for batch in batches:
            replies |= zip(batch, self._generate([requests[i] for i in batch]))
        return [(key, replies[i]) for i, (key, *_) in enumerate(requests)]

    @torch.no_grad()
    def _generate(self, requests) -> list[Reply]:
        width = max(len(ids) for _, ids, _, _ in requests)
        device = self.model.device
        rows = [[self.pad_id] * (width - len(ids)) + ids for _, ids, _, _ in requests]
        seen = [[0] * (width - len(ids)) + [1] * len(ids) for _, ids, _, _ in requests]
        record = _RecordLogProbs(torch.tensor([[t] for *_, t in requests], device=device), self.eos_ids, self._note,
                                 **self.fixed)
        config = GenerationConfig(max_new_tokens=max(limit for _, _, limit, _ in requests), **self.config)
        # generate() would fill in what `config` leaves unset from the checkpoint's own preferences
        preferred, self.model.generation_config = self.model.generation_config, config
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.rng.getrandbits(62))
            out = self.model.generate(
                torch.tensor(rows, device=device), attention_mask=torch.tensor(seen, device=device),
                generation_config=config, logits_processor=LogitsProcessorList([record]))
        self.model.generation_config = preferred
        record.take(out[:, -1])
        sampled = out[:, width:].tolist()                       # (B, T)
        logprobs = torch.stack(record.steps, dim=1).tolist()    # (B, T)
        return [make_reply(self.tokenizer, self.eos_ids, ids[:limit], lp[:limit])
                for ids, lp, (_, _, limit, _) in zip(sampled, logprobs, requests)]

    def done(self) -> None:
        """Nothing is shared with other ranks."""

    def sleep(self) -> None:
        """Nothing to give back."""

    def sync(self, weights) -> None:
        """Copies (name, tensor) pairs into the sampler where it is a copy of its own (sharded training)."""
        own = self.model.state_dict()
        for name, tensor in weights:
            own[name].copy_(tensor)


def _pack_again(model) -> None:
    """CPU kernels keep the head and the experts in an order of their own, which a reload does not renew."""
    model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
    for layer in model.modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        if kernel is not None:
            kernel.fused_experts.process_weights_after_loading(layer)


class VLLMEngine:
    """Samples with vLLM inside this very process: it takes weights as tensors, and we decide when it steps.

    vLLM draws from the global generators of torch and numpy and resets them when it starts. So nothing else
    here uses those, and whenever the engine has been idle they are seeded again from `rng`, the run's own.

    With tensor parallelism all engines of a group must take the same steps. Only the group's first rank plays
    (ranks.share); it broadcasts what it submits before each step, and the others follow inside `done()`.
    """

    streams = True  # collect() may leave requests open

    def __init__(self, tokenizer, eos_ids: list[int], rng: random.Random, top_p: float, top_k: int, name: str,
                 context: int, tensor_parallel: int, can_sleep: bool, room: memory.Room):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"    # before the import: no process of its own
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        threads, set_threads = torch.get_num_threads(), torch.set_num_threads
        from vllm import LLM, SamplingParams, __version__
        from vllm.sampling_params import RequestOutputKind
        if not __version__.startswith(VLLM_KNOWN) and ranks.rank() == 0:
            print(f"vllm {__version__} was never tried; if it refuses something, pip install vllm=={VLLM_KNOWN[-1]}.*")
        torchrun = "WORLD_SIZE" in os.environ
        self.tokenizer, self.eos_ids, self.rng, self.cuda = tokenizer, eos_ids, rng, torch.cuda.is_available()
        self.params, self.can_sleep, self.group = SamplingParams, can_sleep, ranks.subgroup(tensor_parallel)
        self.fixed = dict(top_p=top_p, top_k=top_k, stop_token_ids=eos_ids, ignore_eos=True, logprobs=0,
                          detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
        self.llm = LLM(name, dtype=room.dtype, enforce_eager=not self.cuda, max_model_len=context,
                       gpu_memory_utilization=room.share, kv_cache_memory_bytes=room.cache,
                       max_num_batched_tokens=room.step, enable_sleep_mode=can_sleep,
                       logprobs_mode="processed_logprobs",    # after the temperature; the default is before
                       async_scheduling=False,                # a step hands over what ended with it
                       tensor_parallel_size=tensor_parallel,
                       distributed_executor_backend="external_launcher" if torchrun else None)
        # vLLM leaves one thread, and on a CPU a function in this place that does nothing; the learner wants all
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        self.waiting, self.open, self.names = [], {}, count()   # `open`: name of a request -> key
        self.sampled, self.handed_over = 0, 0    # tokens: all, and those of replies that are over

    def submit(self, key, ids: list[int], max_new_tokens: int, temperature: float) -> None:
        self.waiting.append((key, ids, max_new_tokens, temperature))

    def busy(self) -> bool:
        return bool(self.waiting or self.open)

    def collect(self) -> list[tuple[object, Reply]]:
        """One step, and the replies that ended with it: often none."""
        seed = None if self.open else self.rng.getrandbits(32)
        return self._step(ranks.broadcast((seed, self.waiting), self.group))

    def done(self) -> None:
        """Ends a phase: the first rank of a group says so, and the others take its steps until then."""
        while orders := ranks.broadcast(None, self.group):
            self._step(orders)

    def _step(self, orders) -> list[tuple[object, Reply]]:
        """One step of vLLM, after adding the new requests: one token for every open request."""
        seed, requests = orders
        self.waiting = []
        if seed is not None:
            torch.manual_seed(seed)
            numpy.random.seed(seed)
        for key, ids, limit, temperature in requests:
            name = str(next(self.names))
            self.open[name] = key
            params = self.params(max_tokens=limit, temperature=temperature, **self.fixed)
            self.llm.llm_engine.add_request(name, {"type": "token", "prompt_token_ids": ids}, params)
        replies = []
        for request in filter(lambda request: request.finished, self.llm.llm_engine.step()):
            ids, rows = list(request.outputs[0].token_ids), request.outputs[0].logprobs
            logprobs = [row[token].logprob for token, row in zip(ids, rows)]
            key = self.open.pop(request.request_id)
            replies.append((key, make_reply(self.tokenizer, self.eos_ids, ids, logprobs)))
            self.handed_over += len(ids)
        unfinished = self.llm.llm_engine.output_processor.request_states   # id of a request -> its state
        self.sampled = self.handed_over + sum(s.detokenizer.num_output_tokens() for s in unfinished.values())
        return replies

    def sleep(self) -> None:
        """Lends vLLM's GPU memory to the learner, until `sync`."""
        if self.can_sleep:
            self.llm.sleep(level=1)    # 1 keeps the weights in CPU memory; 2 would lose them

    def sync(self, weights) -> None:
        """Loads (name, tensor) pairs in place and drops cached keys and values: they are the old weights'."""
        if self.can_sleep:
            torch.cuda.empty_cache()
            self.llm.wake_up(tags=["weights"])
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self.cuda:
            self.llm.apply_model(_pack_again)
        if self.can_sleep:
            self.llm.wake_up(tags=["kv_cache"])
        self.llm.reset_prefix_cache()
