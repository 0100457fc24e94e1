"""The tool-use setting, `--setting tools`: the Designer writes worlds with tools, the Agent serves a user.

What it teaches: how function calling becomes an environment. A program subclasses `ToolEnv` (toolcalls.py): a
hidden state, tools with schemas, and instructions of a user, shown one at a time, each with a predicate over
the state. Reward 1 when all were met, in order, and the Agent then answers "done" (SPADE, arXiv 2608.19197).
It is played only if its own solution wins, and neither silence nor "done" at once nor blind calls do.

What it leaves out: users who talk back, partial credit. Try it:  python train.py --setting tools
"""
import dataclasses
import inspect
import json
import random
import re
from contextlib import ExitStack
from functools import partial

from jinja2 import TemplateError

import designer
from machinery.records import Environment, Order
from sandbox import EnvError, SandboxedEnv, Verdict, play, won
from settings.setting import Setting
from settings.toolcalls import MOST_CALLS, ToolEnv, parse_action

SKILLS = {
    "API Orchestration": "combining services, where what one returns is what another needs",
    "Data Retrieval": "finding the right record by searching and comparing before acting on it",
    "State Modification": "changing exactly what was asked for, and nothing else",
    "Error Recovery": "reading why a call was refused, mending the cause and trying again",
    "Tool Selection": "choosing among tools that look alike, and knowing when none fits",
    "Multi-Step Workflows": "long procedures whose steps depend on each other",
}
DOMAINS = ("shop's back office|travel agency|telephone company|bank|calendar|file system|shopping cart|"
           "support desk|smart home|project tracker").split("|")
VARIANTS = {  # what the instructions are like: how often
    "Every instruction names all that is needed; the work is in the calls.": 3,
    "Instructions name things by a property (the cheapest, the one of Ms Weber): a reading call must find "
    "out which is meant before it is changed.": 2,
    "One instruction leaves a needed value out; a tool ask_user(about), with an enum of topics, tells it.": 1,
    "One instruction asks for what no tool can do: decline_request(reason) is then the right call, and the "
    "predicate says so. No other instruction may be met by declining.": 1,
}
RULES = '''\
Write ONE Python class. Its base class ToolEnv exists already; do not write or import it.

```python
class GreenhouseEnv(ToolEnv):
    tools = [{"name": "water", "description": "Water a bed.", "parameters": {
                  "type": "object", "required": ["bed", "amount"], "properties": {
                      "bed": {"type": "string"}, "amount": {"type": "string", "enum": ["little", "much"]}}}},
             ...]
    def setup(self, rng):                   # the hidden state; every random choice comes from rng
        self.beds = {f"bed-{i}": {"dry": rng.random(), "watered": None} for i in range(1, 5)}
        self.driest = max(self.beds, key=lambda bed: self.beds[bed]["dry"])
        return [("Water the driest bed well.", lambda: self.beds[self.driest]["watered"] == "much"),
                ...]                        # (what the user says, is it done?)
    def tool_water(self, bed, amount):      # one method for each tool, called tool_ and its name
        if bed not in self.beds:
            return f"There is no bed {bed}."
        self.beds[bed]["watered"] = amount
        return f"{bed} has been watered."   # always a string
    def solution(self):                     # after setup: the calls, in order, that do all instructions
        return [self.call("list_beds"), self.call("water", bed=self.driest, amount="much"), ...]
```
Tools
- Three to eight, at least one with an enum parameter, one or two that no instruction needs. A schema and its
  method name the same parameters; one without a default is required. No clock, no changes to the class.
- A wrong call gets a helpful text. Reading tools show what instructions and other tools refer to.
Instructions
- Three to five, short and natural: no names of tools, no recipe, no word about later ones. The next is shown
  when the predicate of the current one has become true. Each takes two to five calls, all of them at most 24.
Solvable, and only by doing it
- Every predicate is False after setup, and still False when its own instruction is shown.
- A predicate compares values of equal types and is true exactly when its instruction is done, in any way.
- Each value that a call needs is in an instruction, a schema or a tool's result; each such call can succeed.
- Before you answer, run the solution in your head and see the predicates become true one after the other.
- Only the standard library; no files, network or print(); the same seed gives the same world.'''


def design_messages(order: Order, brief: bool) -> list[dict]:
    """The order for one world. Domain and variant are drawn by the slot's name and document."""
    if brief:
        return designer.design_messages(order, brief)
    rng = random.Random(f"{order.name} {order.document}")
    domain, (variant,) = rng.choice(DOMAINS), rng.choices(list(VARIANTS), VARIANTS.values())
    text = f"Details may come from this text, which is not the subject:\n<text>\n{order.document}\n</text>"
    parts = ["You write worlds of tools that train assistants, in Python.",
             f"Design a world of tools that trains {order.skill.lower()}: {SKILLS[order.skill]}. It is about a "
             f"{domain}. {variant}", text if order.document else "", RULES, designer.memory_block(order)]
    return [{"role": "user", "content": "\n\n".join(filter(None, parts))}]


def hint_messages(environment: Environment, brief: bool) -> list[dict]:
    if brief:
        return designer.hint_messages(environment, brief)
    return [{"role": "user", "content":
             f"Here is the program of a world of tools.\n```python\n{environment.code}\n```\n"
             f"An assistant gets its instructions one at a time and sees nothing of the program. Write it a "
             f"hint of two or three sentences, at most 100 words: the plan in phases, what to find out first "
             f"and how, what to watch out for. Placeholders such as <the id found before> stand for every "
             f"value: no ids, names or numbers of this world, no call that could be copied. Remind it to act "
             f"turn by turn and to answer done only at the end. Reply with the hint alone."}]


def judge_messages(environment: Environment) -> list[dict]:
    return [{"role": "user", "content":
             f"Here is the program of a world of tools.\n```python\n{environment.code}\n```\n"
             f"Trace each predicate to the calls that make it true. Can all instructions be done by somebody "
             f"who knows only the schemas, the instructions and what tools return? It may be difficult, if "
             f"each value can be found out and each instruction says what its predicate checks. End with "
             f"yes or no."}]


def judge(policy, designs: list, args) -> None:
    """Refuses what the Designer itself does not call winnable: all but a yes is a no."""
    prompts = [policy.prompt_ids(judge_messages(d.environment)) for d in designs]
    for d, reply in zip(designs, policy.sample(prompts, args.hint_tokens, args.hint_temperature)):
        if not reply.finished or not re.search(r"\byes\W*\Z", reply.text, re.I):
            d.environment, d.reason = None, "judge: does not say yes"


def agent_messages(observation: str, info: dict, hint: str, brief: bool) -> tuple[list[dict], list[dict]]:
    """The opening is the user's first instruction as it is; the chat template shows the tools."""
    mark = "\nhint: " if brief else "\n\nHINT: "
    return [{"role": "user", "content": observation + (mark + hint if hint else "")}], info["tools"]


def observation_messages(observation: str, info: dict) -> list[dict]:
    """One message of role tool for each call; without any call the user speaks."""
    return ([{"role": "tool", "content": result} for result in info["results"]]
            or [{"role": "user", "content": observation}])


# --- what comes out of the sandbox is hostile: anything but tools and results ends the play ---

def shallow(value, depth: int = 12) -> bool:
    """Is it nested at most `depth` deep? More could exhaust the stack of a chat template."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(shallow(item, depth - 1) for item in inner)


def is_function(tool) -> bool:
    match tool:
        case {"type": "function", "function": {"name": str(name), "description": str(), "parameters": {
                "type": "object", "properties": dict(properties)}}}:
            return re.fullmatch(r"[A-Za-z_]\w{0,63}", name) is not None and all(
                type(schema) is dict and type(schema.get("enum", [])) is list
                for schema in properties.values())
    return False


class ToolPlay(SandboxedEnv):
    """One episode's world."""

    def reset(self, seed):
        observation, info = super().reset(seed)
        fault, tools, count = info.get("fault"), info.get("tools"), info.get("instructions")
        if type(fault) is not str or type(tools) is not list or type(count) is not int:
            fault = "class: it does not subclass ToolEnv"
        elif not fault and not (3 <= len(tools) <= 8 and 3 <= count <= 5):
            fault = f"count: {len(tools)} tools (3 to 8), {count} instructions (3 to 5)"
        elif not fault and not (shallow(tools) and len(json.dumps(tools)) < 20_000
                                and all(map(is_function, tools))):
            fault = "tools: no list of function schemas, or a very long one"
        if fault:
            raise EnvError("rejected", fault)
        return observation, info

    def step(self, action):
        reply = super().step(action)
        results, met = reply[-1].get("results"), reply[-1].get("met")
        if (type(results) is not list or {*map(type, results)} - {str}
                or len(results) > MOST_CALLS + 1 or type(met) is not int):
            raise EnvError("protocol", "protocol: step gives no list of results")
        return reply


DONE = json.dumps([{"answer": "done"}])


def blind(tools: list[dict]) -> list[str]:
    """A call of each tool with the first value of every enum, and something of the right type elsewhere."""
    some = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    return [json.dumps([{"name": tool["function"]["name"], "arguments": {
        key: (schema.get("enum") or [some.get(str(schema.get("type")), "a")])[0]
        for key, schema in tool["function"]["parameters"]["properties"].items()}}]) for tool in tools]


def validate(box, environment: Environment, timeout: float = 5.0) -> Verdict:
    """Is it a sound world? Three workers, one a seed, and a fourth that must repeat the first, twice each."""
    try:
        with ExitStack() as stack:
            envs = [(stack.enter_context(ToolPlay(box, environment.code, timeout, checked, timeout)), seed)
                    for seed, checked in ((0, False), (1, True), (2, True), (0, True))]
            openings = [env.reset(seed) for env, seed in envs]
            solutions = [env.solution() or [] for env, _ in envs]
            first, second = ([play(env, seed, [*calls, DONE]) for (env, seed), calls in zip(envs, solutions)]
                             for _ in range(2))
            if first[0] != first[3]:
                return Verdict(False, "determinism: the same seed and calls, but other replies")
            if first != second:
                return Verdict(False, "state: a second episode in one process is not like the first")
            for (env, seed), calls, (_, info), replies in zip(envs, solutions, openings, first):
                met, wanted = [0] + [reply[-1]["met"] for reply in replies[1:]], info["instructions"]
                if won(play(env, seed, [DONE])) or won(play(env, seed, ["[]"] * 24 + [DONE])):
                    return Verdict(False, f"done wins: on seed {seed}, without any call")
                if not 0 < len(calls) <= 24:
                    return Verdict(False, f"solution: {len(calls)} calls on seed {seed} (1 to 24)")
                if max(after - before for before, after in zip(met, met[1:])) > 1:
                    return Verdict(False, f"order: one call meets two instructions on seed {seed}")
                if met[-1] != wanted or not won(replies):
                    return Verdict(False, f"solution: meets {met[-1]} of {wanted} on seed {seed}")
                if won(play(env, seed, [*calls[:met.index(met[-1]) - 1], DONE])):
                    return Verdict(False, f"done wins: on seed {seed}, before the last instruction is met")
            if all(won(play(env, seed, [*blind(info["tools"]) * 3, DONE]))
                   for (env, seed), (_, info) in zip(envs, openings)):
                return Verdict(False, "junk wins: blind calls, on every seed")
    except EnvError as error:
        return Verdict(False, str(error))
    return Verdict(True, solutions=tuple(   # what a hint must not give away: names and values, in this order
        [re.sub('"(name|arguments)":', "", action) for action in actions] for actions in solutions[:-1]))


def for_run(setting: Setting, args, policy) -> Setting:
    """Of a model whose chat template does not show tools and what they return, nothing could be learnt."""
    try:
        return for_model(setting, policy)
    except NoTools as problem:
        raise SystemExit(str(problem)) from None


def for_model(setting: Setting, policy) -> Setting:
    """The setting for one model; raises NoTools. Its tokenizer may know how its calls are read."""
    try:
        opening = policy.prompt_ids([{"role": "user", "content": "?"}], [{"type": "function", "function": {
            "name": "some_tool", "description": "", "parameters": {"type": "object", "properties": {}}}}])
        turn = policy.turn_ids([{"role": "tool", "content": "some-result"}])
    except (ValueError, TemplateError):
        opening, turn = [], []
    shown = [policy.tokenizer.decode(ids) for ids in (opening, turn)]
    if "some_tool" not in shown[0] or "some-result" not in shown[1]:
        raise NoTools(f"the chat template of '{policy.name}' does not show tools and what they return: "
                      f"this wants a model made for tools, such as Qwen/Qwen3-4B-Instruct-2507")
    if setting.parse_action is not parse_action:   # a benchmark reads its own way
        return setting
    return dataclasses.replace(setting, parse_action=partial(parse_action, tokenizer=policy.tokenizer))


class NoTools(Exception):
    """The model cannot be shown tools."""


TOOLS = Setting(
    name="tools", skills=SKILLS, design_messages=design_messages,
    parse_design=lambda reply, order: dataclasses.replace(designer.parse_game(reply, order), setting="tools"),
    validate=validate, hint_messages=hint_messages, judge=judge,
    open=lambda box, environment: ToolPlay(box, environment.code, checked=True),
    agent_messages=agent_messages, observation_messages=observation_messages, parse_action=parse_action,
    prelude=inspect.getsource(ToolEnv), lessons="laptop.tool_worlds", for_run=for_run)
