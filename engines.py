"""Engines: prompts in, sampled tokens and their log-probabilities out.

What it teaches: a self-play loop needs two calls from a sampler, `submit(key, ids)` and `collect()`, and
with those two an episode can go on as soon as its own turn is done, whoever else is still decoding.
`TransformersEngine` answers everything that waits with `generate`; `VLLMEngine` steps vLLM until some request ends.

What it leaves out: speculative decoding, prefix sharing by hand, asynchronous servers.

Both engines return the log-probability of each sampled token *after* the temperature, because that is the
distribution the token really came from: the learner compares it with its own (see `grpo.policy_loss`).
"""
import random
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList


@dataclass
class Reply:
    """One sampled assistant turn: `ids` with the end-of-turn token, one log-prob per id, the decoded text.

    `finished` is False when the token limit cut the reply; then its last id is an ordinary token.
    """
    ids: list[int]
    logprobs: list[float]
    text: str
    finished: bool


class _RecordLogProbs(LogitsProcessor):
    """Divides the scores by the temperature and keeps the log-prob of each token once it is known.

    `generate(output_scores=True)` would keep (steps, B, V) scores; this keeps one (B, V) tensor at a time.
    """

    def __init__(self, temperature: float):
        self.temperature = temperature
        self.previous = None  # (B, V) log-probs of the step whose token has not been seen yet
        self.steps = []       # each (B,)

    def take(self, tokens: torch.Tensor) -> None:
        if self.previous is not None:
            self.steps.append(self.previous.gather(1, tokens[:, None])[:, 0])

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.take(input_ids[:, -1])
        scores = scores.float() / self.temperature
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
        # Every field is set: what is left unset would be filled in from the checkpoint's own preferences.
        self.config = dict(do_sample=True, temperature=1.0, top_p=top_p, top_k=top_k, repetition_penalty=1.0,
                           eos_token_id=eos_ids, pad_token_id=self.pad_id, use_cache=True)
        self.waiting = []

    def submit(self, key, ids: list[int], max_new_tokens: int, temperature: float) -> None:
        self.waiting.append((key, ids, max_new_tokens, temperature))

    def busy(self) -> bool:
        return bool(self.waiting)

    def collect(self) -> list[tuple[object, Reply]]:
        """Answers all that waits, in the order it was submitted."""
        order = sorted(range(len(self.waiting)), key=lambda i: (self.waiting[i][3], len(self.waiting[i][1])))
        requests, self.waiting = self.waiting, []
        replies = {}
        while order:
            first = requests[order[0]]
            batch = [i for i in order if requests[i][3] == first[3]]
            longest = [len(requests[i][1]) + max(requests[j][2] for j in batch[:n + 1])
                       for n, i in enumerate(batch)]
            batch = [i for n, i in enumerate(batch) if n == 0 or (n + 1) * longest[n] <= self.tokens_per_batch]
            order = [i for i in order if i not in set(batch)]
            for i, reply in zip(batch, self._generate([requests[i] for i in batch])):
                replies[i] = (requests[i][0], reply)
        return [replies[i] for i in sorted(replies)]

    @torch.no_grad()
    def _generate(self, requests) -> list[Reply]:
        width = max(len(ids) for _, ids, _, _ in requests)
        device = self.model.device
        rows = [[self.pad_id] * (width - len(ids)) + ids for _, ids, _, _ in requests]
        seen = [[0] * (width - len(ids)) + [1] * len(ids) for _, ids, _, _ in requests]
        record = _RecordLogProbs(temperature=requests[0][3])
        config = GenerationConfig(max_new_tokens=max(limit for _, _, limit, _ in requests), **self.config)
        self.model.eval()
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.rng.getrandbits(62))
            out = self.model.generate(torch.tensor(rows, device=device),
                                      attention_mask=torch.tensor(seen, device=device),
                                      generation_config=config, logits_processor=LogitsProcessorList([record]))
        record.take(out[:, -1])
        sampled = out[:, width:].tolist()                       # (B, T)
        logprobs = torch.stack(record.steps, dim=1).tolist()    # (B, T)
        return [self._reply(ids, lp, limit) for ids, lp, (_, _, limit, _) in zip(sampled, logprobs, requests)]

    def _reply(self, ids: list[int], logprobs: list[float], limit: int) -> Reply:
        end = next((i + 1 for i, token in enumerate(ids[:limit]) if token in self.eos_ids), None)
        length = end or min(limit, len(ids))
        ids, text_ids = ids[:length], ids[:length - 1] if end else ids[:length]
        text = self.tokenizer.decode(text_ids, skip_special_tokens=False)
        return Reply(ids, logprobs[:length], text, finished=end is not None)

    def sync(self, weights) -> None:
        """Copies (name, tensor) pairs into the sampler where it is a copy of its own (sharded training)."""
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in weights:
                if own[name] is not tensor:
                    own[name].copy_(tensor)


def vllm_engine(name: str, context: int, seed: int, top_p: float, top_k: int, tensor_parallel: int,
                sleep: bool, required: bool):
    """A VLLMEngine, or None where vllm is not installed and was not asked for by name."""
    try:
        import vllm  # noqa: F401
    except ImportError:
        if required:
            raise SystemExit("--engine vllm needs vllm: pip install -r requirements.txt vllm")
        return None
    raise NotImplementedError
