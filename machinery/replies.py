"""What a sealed worker may answer. Its replies are hostile data: exact types, limits, and text that breaks no log.

A file of its own because the trainer's safety hangs on it: a program that took its worker over can send what it likes.
"""
import json

MAX_TEXT = 100_000  # characters of an action or observation
TYPES = {"observation": [str], "reward": [float, int], "terminated": [bool], "truncated": [bool], "info": [dict]}
SHAPES = {"reset": ["observation", "info"], "step": list(TYPES)}


class EnvError(Exception):
    """The program failed, not we. kind: rejected (before it ran), exception, timeout, crash or protocol."""
    def __init__(self, kind, message):
        line = " ".join(message[:1000].split())
        super().__init__(printable(line)[:300])  # no escapes in our logs
        self.kind = kind


def printable(text, also=""):
    """The text with a question mark for each character that a terminal may act on, but for those in `also`."""
    return "".join(c if c.isprintable() or c in also else "?" for c in text)


def plain(text):
    return text.encode("utf-8", "replace").decode()  # a lone surrogate would break any log and tokenizer


def well_formed(method, reply):
    """The values in a worker's reply, or EnvError. Nothing that a worker sends is believed."""
    kind, result = "", None
    if type(reply) is dict and len(reply) == 1:
        [(kind, result)] = reply.items()
    if kind in ("rejected", "exception"):
        raise EnvError(kind, str(result))
    if kind != "ok":
        raise EnvError("protocol", f"protocol: {method} sent something else than a reply")
    if method not in SHAPES:
        return well_formed_actions(method, result)
    if method == "reset" and type(result) is str:
        result = [result, {}]
    names = SHAPES[method]
    if type(result) is not list or len(result) != len(names):
        raise EnvError("protocol", f"{method}: does not return {', '.join(names)}")
    values = dict(zip(names, result))
    for name, value in values.items():
        if type(value) not in TYPES[name]:
            raise EnvError("protocol", f"{method}: {name} is of type {type(value).__name__}")
        if name == "observation" and len(value) > MAX_TEXT:
            raise EnvError("protocol", f"{method}: an observation of {len(value)} characters")
        if name == "reward" and not abs(value) <= 10:  # nor is NaN
            raise EnvError("protocol", f"reward: {value} is not in [-10, 10]")
    observation = plain(values["observation"])
    info = json.loads(plain(json.dumps(values["info"], ensure_ascii=False))) if values["info"] else {}
    if method == "reset":
        return observation, info
    return observation, float(values["reward"]), values["terminated"], values["truncated"], info


def well_formed_actions(method, result):
    """Of solution: None, or a list of actions, where the program may have given a single one. Of load: None."""
    if result is None:
        return None
    actions = [result] if type(result) in (str, int, float) else result
    if type(actions) is not list or not all(type(action) in (str, int, float) for action in actions):
        raise EnvError("protocol", f"{method}: not a list of strings")
    return [plain(str(action)) for action in actions]
