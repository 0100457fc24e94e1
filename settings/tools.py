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
import re
from contextlib import ExitStack
from functools import partial

from jinja2 import TemplateError

import designer
from machinery.records import Environment, Order
from sandbox import SEEDS, EnvError, SandboxedEnv, Verdict, replies_to, won
from settings.setting import Setting
from settings.tool_prompts import (
    SKILLS,
    agent_messages,
    design_messages,
    hint_messages,
    judge_messages,
    observation_messages,
)
from settings.toolcalls import MOST_CALLS, ToolEnv, parse_action


def judge(policy, designs: list, args) -> None:
    """Refuses what the Designer itself does not call winnable: all but a yes is a no."""
    prompts = [policy.prompt_ids(judge_messages(d.environment)) for d in designs]
    for d, reply in zip(designs, policy.sample(prompts, args.hint_tokens, args.hint_temperature, "verdicts")):
        if not reply.finished or not re.search(r"\byes\W*\Z", reply.text, re.I):
            d.environment, d.reason = None, "judge: does not say yes"


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

def parse_world(reply: str, order: Order) -> Environment:
    return dataclasses.replace(designer.parse_game(reply, order), setting="tools")


def for_run(setting: Setting, args, policy) -> Setting:
    """Of a model whose chat template does not show tools and what they return, nothing could be learnt."""
    try:
        return for_model(setting, policy)
    except NoTools as problem:
        raise SystemExit(str(problem)) from None


def for_model(setting: Setting, policy) -> Setting:
    """The setting for one model; raises NoTools. Its tokenizer may know how its calls are read."""
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
        raise NoTools(f"the chat template of '{policy.name}' does not show tools and what they return: "
                      f"this wants a model made for tools, such as Qwen/Qwen3-4B-Instruct-2507")
    if setting.parse_action is not parse_action:   # a benchmark reads its own way
        return setting
    return dataclasses.replace(setting, parse_action=partial(parse_action, tokenizer=policy.tokenizer))


class NoTools(Exception):
    """The model cannot be shown tools."""


TOOLS = Setting(
    name="tools", skills=SKILLS, design_messages=design_messages, parse_design=parse_world, validate=validate,
    hint_messages=hint_messages, judge=judge,
    open=lambda box, environment: ToolPlay(box, environment.code, checked=True), agent_messages=agent_messages,
    observation_messages=observation_messages, parse_action=parse_action,
    prelude=inspect.getsource(ToolEnv), lessons="laptop.tool_worlds", for_run=for_run)
