"""An OpenAI-compatible server in the place of a Policy: another Designer, a model to measure, a user to talk to.

A file of its own because it shows what design() and play() need of a model: `prompt_ids` and `turn_ids`, whose
results can be appended to each other (its `rewrites` is False), and an engine with `submit` and `collect`. Where a
Policy has token ids, this has whole messages: an episode's "ids" are its conversation.
What it leaves out: streaming and log-probabilities; nothing can be trained on such an episode.

Try it:  vllm serve Qwen/Qwen3-32B --port 8000
         python train.py --recipe strong-challenger --model Qwen3-4B \\
             --designer-model http://127.0.0.1:8000/v1#Qwen/Qwen3-32B
         python evaluate.py --model http://127.0.0.1:8000/v1#Qwen/Qwen3-32B --suites reasoning-gym --limit 20
"""
import json
import os
import random
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from http.client import HTTPException
from itertools import count
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from machinery import progress
from machinery.engines import Reply

PAUSES = (1, 2, 4, 8, 16, 32)   # seconds before another attempt, each up to half longer
TIMEOUT, LONGEST = 600, 1000    # seconds for one reply; after which no further attempt is made
AT_ONCE = 16                    # requests under way


def not_done(calls: list[str]) -> list[dict]:
    """Servers want a result for every call, and calls may be left over: those beyond toolcalls.MOST_CALLS."""
    return [{"role": "tool", "tool_call_id": call, "content": "not done"} for call in calls]


class Unreachable(Exception):
    """The server gave no reply in all attempts, or refused the request for good."""


class Endpoint:
    """`where` is URL#NAME. `fixed` are sampling settings that go with every request, such as top_p."""

    streams = True
    rewrites = False
    sampled = None   # not every server tells

    def __init__(self, where: str):
        url, _, self.name = where.partition("#")
        if not self.name:
            raise SystemExit(f"{where}: name the server's model too, as in {url}#NAME")
        self.url, self.rng = url.rstrip("/") + "/chat/completions", random.Random()
        self.engine, self.fixed, self.open, self.pool = self, {}, {}, ThreadPoolExecutor(AT_ONCE)

    def prompt_ids(self, messages: list[dict], tools: list | None = None) -> list[dict]:
        return [{"tools": tools}, *messages]

    def turn_ids(self, messages: list[dict]) -> list[dict]:
        return messages

    def submit(self, key, ids: list[dict], max_new_tokens: int, temperature: float) -> None:
        self.open[self.pool.submit(self.answer, ids, max_new_tokens, temperature)] = key

    def busy(self) -> bool:
        return bool(self.open)

    def collect(self) -> list[tuple[object, Reply]]:
        try:
            ready, _ = wait(self.open, return_when=FIRST_COMPLETED)
            return [(self.open.pop(future), future.result()) for future in ready]
        except BaseException:   # Unreachable, or Ctrl-C
            self.pool.shutdown(wait=False, cancel_futures=True)   # the rest is not even asked
            raise

    def done(self) -> None:
        pass

    def sample(self, prompts: list[list[dict]], max_new_tokens: int, temperature: float,
               what: str = "replies") -> list[Reply]:
        replies = {}
        with progress.shown(what, len(prompts)) as advance:
            for i, ids in enumerate(prompts):
                self.submit(i, ids, max_new_tokens, temperature)
            while self.busy():
                ready = self.collect()
                replies |= ready
                advance(len(ready))
        return [replies[i] for i in range(len(prompts))]

    def answer(self, ids: list[dict], max_new_tokens: int, temperature: float) -> Reply:
        """One request. Native function calls come back as text too, the way toolcalls.py reads them."""
        greedy = self.fixed.get("top_k") == 1
        extra = {key: value for key, value in self.fixed.items() if value and not (greedy and key == "top_k")}
        order = {"model": self.name, "messages": [], "max_completion_tokens": max_new_tokens,
                 "temperature": 0 if greedy else temperature, **extra}
        if ids[0].get("tools"):
            order["tools"] = ids[0]["tools"]
        calls = []
        for message in ids[1:]:
            if message["role"] != "tool":
                order["messages"] += not_done(calls)
                calls = []
            calls = [call["id"] for call in message.get("tool_calls") or ()] or calls
            if message["role"] == "tool":   # results come in the order of the calls; what had none is told
                message = message | ({"tool_call_id": calls.pop(0)} if calls else {"role": "user"})
            order["messages"].append(message)
        order["messages"] += not_done(calls)
        sent = self.post(order)
        try:
            choice = sent["choices"][0]
            said = {key: value for key, value in choice["message"].items()
                    if key in ("role", "content", "tool_calls")}   # some servers refuse their own other keys
            functions = [json.dumps(call["function"]) for call in said.get("tool_calls") or ()]
            text = "".join([said.get("content") or "", *(f"<tool_call>{call}</tool_call>" for call in functions)])
            return Reply([said], [0.0], text, choice["finish_reason"] in ("stop", "tool_calls"))
        except (KeyError, IndexError, TypeError, AttributeError):
            raise Unreachable(f"{self.url} sent no chat completion but {json.dumps(sent)[:200]}") from None

    def post(self, order: dict) -> dict:
        """The server's JSON. Overload, time-outs and lost connections are waited out; a refusal is final."""
        key = os.environ.get("OPENAI_API_KEY", "")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        began = time.monotonic()
        for attempt in count(1):
            try:
                request = Request(self.url, json.dumps(order).encode(), headers)
                return json.loads(urlopen(request, timeout=TIMEOUT).read())
            except HTTPError as error:
                problem = f"{error.code} {error.reason} "
                with suppress(OSError):
                    problem += error.read(500).decode(errors="replace")
                if error.code == 400 and "temperature" in problem and "temperature" in order:
                    del order["temperature"]   # some reasoning models allow their own only
                    continue
                if error.code == 400 and "context" in problem and "max_completion_tokens" in order:
                    del order["max_completion_tokens"]   # too long with the prompt: then what room there is
                    continue
                if error.code == 400 and "context" in problem:   # no room for a reply: cut at its first token
                    return {"choices": [{"message": {"content": ""}, "finish_reason": "length"}]}
                if error.code not in (408, 409, 429) and error.code < 500:
                    raise Unreachable(f"{self.url} refuses: {problem}; the key is $OPENAI_API_KEY") from None
            except (OSError, HTTPException, ValueError) as error:   # time-outs are OSErrors
                problem = str(error) or type(error).__name__
            if attempt > len(PAUSES) or time.monotonic() - began > LONGEST:
                raise Unreachable(f"{self.url} gave no answer in {attempt} attempts: {problem}")
            time.sleep(PAUSES[attempt - 1] * (1 + self.rng.random() / 2))
