"""Another model in the Designer's place, frozen: SPICE's "strong challenger", SPADE's "fixed designer".

A file of its own because these baselines ask one thing: must the Designer be the model that learns? For
design() a policy is `prompt_ids` and `sample`. Here another local model gives them, or an OpenAI-compatible
server, for which a prompt is the list of messages. Left out: streaming, log-probabilities, anything but text.

Try it:  vllm serve Qwen/Qwen3-32B --port 8000
         python train.py --recipe strong-challenger --designer-model http://127.0.0.1:8000/v1#Qwen/Qwen3-32B
"""
import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch

from engines import Reply
from policy import Policy, resolve

PAUSES = (1, 2, 4, 8, 16, 32)   # seconds before another attempt, each up to half longer
TIMEOUT, AT_ONCE = 600, 16      # seconds for one reply; requests under way


class Unreachable(Exception):
    """The server gave no reply in all attempts, or refused the request for good."""


class RemoteDesigner:
    def __init__(self, url: str, name: str):
        self.url, self.name, self.rng = url.rstrip("/") + "/chat/completions", name, random.Random()

    def prompt_ids(self, messages: list[dict]) -> list[dict]:
        return messages

    def sample(self, prompts: list, max_new_tokens: int, temperature: float) -> list[Reply]:
        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            return list(pool.map(lambda messages: self.reply(messages, max_new_tokens, temperature), prompts))
        finally:
            pool.shutdown(cancel_futures=True)   # after a failure the rest is not even asked

    def reply(self, messages: list[dict], max_new_tokens: int, temperature: float) -> Reply:
        answer = self.post({"model": self.name, "messages": messages, "temperature": temperature,
                            "max_completion_tokens": max_new_tokens})
        try:
            choice = answer["choices"][0]
            return Reply([], [], choice["message"]["content"] or "", choice["finish_reason"] == "stop")
        except (KeyError, IndexError, TypeError):
            raise Unreachable(f"{self.url} sent no chat completion but {json.dumps(answer)[:200]}") from None

    def post(self, order: dict) -> dict:
        """The server's JSON. Overload, time-outs and lost connections are waited out; a refusal is final."""
        key = os.environ.get("OPENAI_API_KEY", "")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        for pause in (*PAUSES, 0):
            try:
                request = Request(self.url, json.dumps(order).encode(), headers)
                return json.loads(urlopen(request, timeout=TIMEOUT).read())
            except HTTPError as error:
                problem = f"{error.code} {error.reason} "
                with suppress(OSError):
                    problem += error.read(500).decode(errors="replace")
                if error.code == 400 and "temperature" in problem and order.pop("temperature", None):
                    continue   # some reasoning models allow their own temperature only
                if error.code not in (408, 409, 429) and error.code < 500:
                    raise Unreachable(f"{self.url} refuses: {problem}; the key is $OPENAI_API_KEY") from None
            except (OSError, HTTPException, ValueError) as error:   # time-outs are OSErrors
                problem = str(error) or type(error).__name__
            time.sleep(pause * (1 + self.rng.random() / 2))
        raise Unreachable(f"{self.url} gave no answer in {len(PAUSES) + 1} attempts: {problem}")


def frozen_designer(where: str, **options) -> RemoteDesigner | Policy:
    """URL#NAME is a server; anything else a model that is loaded here, of which only the sampler is kept."""
    if torch.cuda.is_available() and options["engine"] != "transformers" and "#" not in where:
        raise SystemExit(f"a GPU that learns has no room for a second vLLM: `vllm serve {resolve(where)}` "
                         f"elsewhere and give --designer-model http://HOST:8000/v1#{resolve(where)}")
    if where.startswith(("http://", "https://")):
        url, _, name = where.partition("#")
        if not name:
            raise SystemExit(f"--designer-model {where}: name the server's model too, as in {url}#NAME")
        return RemoteDesigner(url, name)
    other = Policy(where, **options)
    other.net = other.optimizer = None
    return other
