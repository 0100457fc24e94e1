"""An OpenAI-compatible server in the place of a Policy, for measuring.

A file of its own because it answers a question of its own: what does `play()` need of a model? `prompt_ids`
and `turn_ids`, whose results can be appended to each other, and an engine with `submit` and `collect`. Where
a Policy has token ids, this has whole messages: an episode's "ids" are its conversation.
What it leaves out: log-probabilities; nothing can be trained on such an episode.

Try it:  vllm serve Qwen/Qwen3-4B --port 8000
         python evaluate.py --model http://127.0.0.1:8000/v1#Qwen/Qwen3-4B --suites reasoning-gym --limit 20
"""
import json
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from engines import Reply
from frozen_designer import RemoteDesigner


class Endpoint(RemoteDesigner):
    """`fixed` are sampling settings that go with every request, such as top_p."""

    streams = True

    def __init__(self, where: str):
        url, _, name = where.partition("#")
        if not name:
            raise SystemExit(f"{where}: name the server's model too, as in {url}#NAME")
        super().__init__(url, name)
        self.engine, self.fixed, self.open, self.pool = self, {}, {}, ThreadPoolExecutor(32)

    def prompt_ids(self, messages: list[dict], tools: list | None = None) -> list[dict]:
        return [{"tools": tools}, *messages]

    def turn_ids(self, messages: list[dict]) -> list[dict]:
        return messages

    def submit(self, key, ids: list[dict], max_new_tokens: int, temperature: float) -> None:
        self.open[self.pool.submit(self.answer, ids, max_new_tokens, temperature)] = key

    def busy(self) -> bool:
        return bool(self.open)

    def collect(self) -> list[tuple[object, Reply]]:
        ready, _ = wait(self.open, return_when=FIRST_COMPLETED)
        return [(self.open.pop(future), future.result()) for future in ready]

    def done(self) -> None:
        pass

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
            calls = [call["id"] for call in message.get("tool_calls") or ()] or calls
            if message["role"] == "tool":   # results come in the order of the calls; what had none is told
                message = message | ({"tool_call_id": calls.pop(0)} if calls else {"role": "user"})
            order["messages"].append(message)
        choice = self.post(order)["choices"][0]
        said = {key: value for key, value in choice["message"].items()
                if key in ("role", "content", "tool_calls")}   # some servers refuse their own other keys
        functions = [json.dumps(call["function"]) for call in said.get("tool_calls") or ()]
        text = "".join([said["content"] or "", *(f"<tool_call>{call}</tool_call>" for call in functions)])
        return Reply([said], [0.0], text, choice["finish_reason"] != "length")
