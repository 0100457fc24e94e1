"""The tool-use setting, `--setting tools`: the Designer writes worlds with tools, the Agent serves a user.

What it teaches: how function calling becomes an environment. A program subclasses `ToolEnv` (toolcalls.py): a
hidden state, tools with schemas, and instructions of a user, shown one at a time, each with a predicate over
the state. Reward 1 when all were met, in order, and the Agent then answers "done" (SPADE, arXiv 2608.19197).
It is played only if its own solution wins, and neither silence nor "done" at once nor blind calls do.

What it leaves out: users who talk back, partial credit.

Try it:  python train.py --setting tools
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
from designer import Environment, Setting, Slot
from sandbox import SEEDS, EnvError, SandboxedEnv, Verdict, replies_to, won
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


def design_messages(slot: Slot, brief: bool) -> list[dict]:
    """The order for one world. Domain and variant are drawn by the slot's name and document."""
    if brief:
        return designer.design_messages(slot, brief)
    rng = random.Random(f"{slot.name} {slot.document}")
    domain = rng.choice(DOMAINS)
    [variant] = rng.choices(list(VARIANTS), VARIANTS.values())
    text = f"Details may come from this text, which is not the subject:\n<text>\n{slot.document}\n</text>"
    parts = ["You write worlds of tools that train assistants, in Python.",
             f"Design a world of tools that trains {slot.skill.lower()}: {SKILLS[slot.skill]}. It is about a "
             f"{domain}. {variant}", text if slot.document else "", RULES, designer.memory_block(slot)]
    return [{"role": "user", "content": "\n\n".join(part for part in parts if part)}]


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


def agent_messages(observation: str, info: dict, hint: str, brief: bool) -> tuple[list[dict], list[dict]]:
    """The opening is the user's first instruction as it is; the chat template shows the tools."""
    opening = observation
    if hint:
        opening += f"\nhint: {hint}" if brief else f"\n\nHINT: {hint}"
    return [{"role": "user", "content": opening}], info["tools"]


def observation_messages(observation: str, info: dict) -> list[dict]:
    """One message of role tool for each call; without any call the user speaks."""
    if not info["results"]:
        return [{"role": "user", "content": observation}]
    return [{"role": "tool", "content": result} for result in info["results"]]


# --- what comes out of the sandbox is hostile: anything but tools and results ends the play ---

def shallow(value, depth: int = 12) -> bool:
    """Is it nested at most `depth` deep? More could exhaust the stack of a chat template."""
    if depth == 0:
        return False
    if isinstance(value, dict):
        return all(shallow(item, depth - 1) for item in value.values())
    if isinstance(value, list):
        return all(shallow(item, depth - 1) for item in value)
    return True


def is_function(tool) -> bool:
    """Is it {type: function, function: {name, description, parameters: {type: object, properties}}}?"""
    match tool:
        case {"type": "function", "function": {"name": str(name), "description": str(), "parameters": {
                "type": "object", "properties": dict(properties)}}}:
            schemas_are_sound = all(type(schema) is dict and type(schema.get("enum", [])) is list
                                    for schema in properties.values())
            return schemas_are_sound and re.fullmatch(r"[A-Za-z_]\w{0,63}", name) is not None
    return False


def fault_of(info: dict) -> str:
    """Why a world that says this of itself is none, or "". Its own fault comes first."""
    fault, tools, count = info.get("fault"), info.get("tools"), info.get("instructions")
    if type(fault) is not str or type(tools) is not list or type(count) is not int:
        return "class: it does not subclass ToolEnv"
    if fault:
        return fault
    if not 3 <= len(tools) <= 8 or not 3 <= count <= 5:
        return f"count: {len(tools)} tools (3 to 8), {count} instructions (3 to 5)"
    if not shallow(tools) or len(json.dumps(tools)) >= 20_000 or not all(is_function(tool) for tool in tools):
        return "tools: no list of function schemas, or a very long one"
    return ""


class ToolPlay(SandboxedEnv):
    """One episode's world."""

    def reset(self, seed):
        observation, info = super().reset(seed)
        fault = fault_of(info)
        if fault:
            raise EnvError("rejected", fault)
        return observation, info

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        results = info.get("results")
        are_texts = type(results) is list and all(type(result) is str for result in results)
        if not are_texts or len(results) > MOST_CALLS + 1 or type(info.get("met")) is not int:
            raise EnvError("protocol", "protocol: step gives no list of results")
        return observation, reward, terminated, truncated, info


# --- is it a sound world? ---

MOST_STEPS = 24   # of a solution
DONE = json.dumps([{"answer": "done"}])
SOME = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}   # JSON type: any value of it


def blind(tools: list[dict]) -> list[str]:
    """A call of each tool with the first value of every enum, and something of the right type elsewhere."""
    calls = []
    for tool in tools:
        arguments = {}
        for key, schema in tool["function"]["parameters"]["properties"].items():
            if schema.get("enum"):
                arguments[key] = schema["enum"][0]
            else:
                arguments[key] = SOME.get(str(schema.get("type")), "a")
        calls.append(json.dumps([{"name": tool["function"]["name"], "arguments": arguments}]))
    return calls


def met_after(replies: list[tuple]) -> list[int]:
    """How many instructions were met after each call of an episode; first, after none, 0."""
    return [0] + [info["met"] for _, _, _, _, info in replies[1:]]


def fault_of_solution(env: ToolPlay, seed: int, calls: list[str], wanted: int, replies: list[tuple]) -> str:
    """Why a world with this solution is unsound on a seed, or "". `replies` are those to the solution and "done"."""
    idle = ["[]"] * MOST_STEPS
    if won(replies_to(env, seed, [DONE])) or won(replies_to(env, seed, [*idle, DONE])):
        return f"done wins: on seed {seed}, without any call"
    if not 0 < len(calls) <= MOST_STEPS:
        return f"solution: {len(calls)} calls on seed {seed} (1 to {MOST_STEPS})"
    met = met_after(replies)
    if any(after - before > 1 for before, after in zip(met, met[1:])):
        return f"order: one call meets two instructions on seed {seed}"
    if met[-1] != wanted or not won(replies):
        return f"solution: meets {met[-1]} of {wanted} on seed {seed}"
    calls_until_all_met = met.index(wanted)
    before_last = calls[:calls_until_all_met - 1]
    if won(replies_to(env, seed, [*before_last, DONE])):
        return f"done wins: on seed {seed}, before the last instruction is met"
    return ""


def validate(box, environment: Environment, timeout: float = 5.0) -> Verdict:
    """Is it a sound world? Three workers, one a seed, and a fourth that must repeat the first, twice each."""
    seeds = [*SEEDS, SEEDS[0]]
    try:
        with ExitStack() as stack:
            envs = []
            for checked in (False, True, True, True):   # one check of the text will do
                envs.append(stack.enter_context(ToolPlay(box, environment.code, timeout, checked, timeout)))
            openings = [env.reset(seed) for env, seed in zip(envs, seeds)]
            infos = [info for _, info in openings]
            solutions = [env.solution() or [] for env in envs]
            first = [replies_to(env, seed, [*calls, DONE]) for env, seed, calls in zip(envs, seeds, solutions)]
            second = [replies_to(env, seed, [*calls, DONE]) for env, seed, calls in zip(envs, seeds, solutions)]
            if first[0] != first[-1]:
                return Verdict(False, "determinism: the same seed and calls, but other replies")
            if first != second:
                return Verdict(False, "state: a second episode in one process is not like the first")
            for env, seed, calls, info, replies in zip(envs, seeds, solutions, infos, first):
                fault = fault_of_solution(env, seed, calls, info["instructions"], replies)
                if fault:
                    return Verdict(False, fault)
            junk = [[*blind(info["tools"]) * 3, DONE] for info in infos]
            if all(won(replies_to(env, seed, actions)) for env, seed, actions in zip(envs, seeds, junk)):
                return Verdict(False, "junk wins: blind calls, on every seed")
    except EnvError as error:
        return Verdict(False, str(error))
    return Verdict(True, solutions=tuple(given_away(actions) for actions in solutions[:len(SEEDS)]))


def given_away(actions: list[str]) -> list[str]:
    """What a hint must not say of a solution: the names and values of its calls, in this order."""
    return [re.sub('"(name|arguments)":', "", action) for action in actions]


# --- the setting ---

def parse_world(reply: str, slot: Slot) -> Environment:
    return dataclasses.replace(designer.parse_game(reply, slot), setting="tools")


TOOLS = Setting(
    name="tools", skills=SKILLS, design_messages=design_messages, parse_design=parse_world, validate=validate,
    hint_messages=hint_messages, open=lambda box, environment: ToolPlay(box, environment.code, checked=True),
    agent_messages=agent_messages, observation_messages=observation_messages, parse_action=parse_action,
    prelude=inspect.getsource(ToolEnv))


def for_model(policy, setting: Setting = TOOLS, judge: bool = False) -> Setting:
    """The setting for one model. Its chat template must show tools and results, or nothing can be learnt."""
    tool = {"type": "function", "function": {
        "name": "some_tool", "description": "", "parameters": {"type": "object", "properties": {}}}}
    try:
        opening = policy.prompt_ids([{"role": "user", "content": "?"}], [tool])
        turn = policy.turn_ids([{"role": "tool", "content": "some-result"}])
    except (ValueError, TemplateError):
        opening, turn = [], []
    shows_tools = "some_tool" in policy.tokenizer.decode(opening)
    shows_results = "some-result" in policy.tokenizer.decode(turn)
    if not shows_tools or not shows_results:
        raise SystemExit(f"the chat template of '{policy.name}' does not show tools and what they return: "
                         f"this wants a model made for tools, such as Qwen/Qwen3-4B-Instruct-2507")
    if setting.parse_action is parse_action:
        setting = dataclasses.replace(setting, parse_action=partial(parse_action, tokenizer=policy.tokenizer))
    return dataclasses.replace(setting, judge_messages=judge_messages if judge else None)
