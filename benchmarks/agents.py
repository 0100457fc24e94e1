r"""Held-out conversations with tools: BFCL multi-turn, ACEBench-Agent, tau2-bench.

What it teaches: a benchmark of agents is a world like any other. A suite is a function that returns items, a
`Setting`, a prelude for the sandbox and a limit of turns; `agent.play()` does the rest. BFCL and ACEBench
`eval` the calls of a model, so they do it in sealed workers.
What it leaves out: prompts for models without function calling, process scores. A conversation only grows at
its end, as in training: a function that BFCL releases late is described by the user, and ACEBench's history
is made of messages.

Try it:  pip install --no-deps bfcl-eval mpmath
         python evaluate.py --model Qwen3-4B-Instruct-2507 --suites bfcl-multi-turn --limit 20
"""
import importlib.util
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from agent import acted
from benchmarks import rules
from benchmarks.problems import Missing, item, need, prelude, read, sealed
from machinery.endpoint import Endpoint, Unreachable
from machinery.records import Environment
from sandbox import EnvError, SandboxedEnv
from settings import toolcalls, tools

# --- BFCL v4 multi-turn: calls change hidden states, which the package's checker compares turn by turn ---

BFCL = '''
import importlib, json, pathlib, bfcl_eval
from bfcl_eval.constants import executable_backend_config as backend
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

def schema(value):   # JSON Schema from the package's own dialect
    if not isinstance(value, dict):
        return value
    return {key: GORILLA_TO_OPENAPI.get(item, item) if (key, type(item)) == ("type", str) else schema(item)
            for key, item in value.items()}

def typed(text):
    try:
        return json.loads({"True": "true", "False": "false"}.get(text, text))
    except ValueError:
        return text

DOCS = {}   # class -> its functions, read now because a sealed worker opens no file
for name, file in backend.MULTI_TURN_FUNC_DOC_FILE_MAPPING.items():
    if not name.startswith(("Memory", "Web")):
        importlib.import_module(backend.CLASS_FILE_PATH_MAPPING[name])
        text = (pathlib.Path(bfcl_eval.__file__).parent / "data" / "multi_turn_func_doc" / file).read_text()
        DOCS[name] = [schema(json.loads(line)) for line in text.splitlines()]
        for doc in DOCS[name]:
            del doc["response"]   # no part of a function's schema

class Bfcl:   # a subclass has a `task` and its ground `truth`
    def reset(self, seed):
        self.tools = {doc["name"]: {"type": "function", "function": doc}
                      for name in self.task["involved_classes"] for doc in DOCS[name]}
        self.made, self.held = [], self.task.get("missed_function", {})   # turn -> functions that it releases
        held = sum(self.held.values(), [])
        return self.next_turn(), {"tools": [tool for name, tool in self.tools.items() if name not in held]}

    def next_turn(self):
        names = self.held.get(str(len(self.made)), [])
        released = [json.dumps(self.tools[name]["function"]) for name in names]
        said = [message["content"] for message in self.task["question"][len(self.made)]]
        self.made.append([])
        return "\\n".join(said or [*released, "I have added the functions above. Can you do it now?"])

    def call(self, name, arguments, untyped=False):
        """Python source, as the package wants it: a known name and the repr of JSON, nothing else."""
        if name not in self.tools:
            return "there_is_no_such_function()"
        kinds = self.tools[name]["function"]["parameters"]["properties"]
        arguments = {key: typed(value) if untyped and kinds.get(key, {}).get("type") != "string" else value
                     for key, value in arguments.items()}   # all of an XML call is text
        return f"{name}(**{arguments!r})"

    def step(self, action):
        items = [item for item in json.loads(action) if "answer" not in item]
        calls = [self.call(**item) for item in items if "name" in item]
        if calls:
            self.made[-1].append(calls)
            made = iter(execute_multi_turn_func_call(
                calls, self.task["initial_config"], self.task["involved_classes"], "play", self.task["id"],
                long_context="long_context" in self.task["id"])[0])
            results = [next(made) if "name" in item else item["error"] for item in items]
            return "", 0.0, len(self.made[-1]) > 20, False, {"results": results}   # the package's limit
        if len(self.made) < len(self.truth):
            return self.next_turn(), 0.0, False, False, {"results": []}
        verdict = multi_turn_checker(self.made, self.truth, self.task, "", "play")
        return verdict.get("error_message", "right"), float(verdict["valid"]), True, False, {"results": []}
'''


def bfcl(args):
    need("bfcl_eval mpmath", "--no-deps bfcl-eval mpmath   (the rest that it declares is for its own clients)")
    folder, items = Path(importlib.util.find_spec("bfcl_eval").origin).parent / "data", []
    for category in ("base", "miss_func", "miss_param", "long_context"):
        name = f"BFCL_v4_multi_turn_{category}.json"   # JSON lines all the same
        for task, answer in zip(read(folder / name), read(folder / "possible_answer" / name)):
            items.append(item("Bfcl", category, task["id"], task=task, truth=answer["ground_truth"]))
    return items, sealed(tools.TOOLS), prelude(BFCL), 200


# --- ACEBench-Agent: a phone, a travel agency; right is whoever leaves them in the expected state ---

ACE = '''
import importlib, types
sys.modules["openai"] = types.SimpleNamespace(OpenAI=None)   # the prompts lie beside a client
def load(name):
    return importlib.import_module("model_inference." + name)

ROLES = {"step": load("multi_step.execution_role_step").EXECUTION_STEP,
         "turn": load("multi_turn.execution_role").EXECUTION}
PROMPTS = {kind: load(f"multi_{kind}.APIModel_agent") for kind in ROLES}
USER = load("multi_turn.APIModel_user")
for kind in ROLES:
    for module in load(f"multi_{kind}.multi_{kind}_utils").CLASS_FILE_PATH_MAPPING_EN.values():
        importlib.import_module(module)
SAVED = {"BaseApi": "wifi logged_in", "MessageApi": "inbox", "ReminderApi": "reminder_list",
         "FoodPlatform": "users logged_in_users orders", "Travel": "users reservations"}   # what is compared

class Ace:   # a subclass has a `task`, its `kind` and the `truth`: how things should be at the end
    instances = {}

    def reset(self, seed):
        self.role = ROLES[self.kind]("play", self.task["initial_config"], self.task["involved_classes"],
                                     self.task["id"].rpartition("_")[2], "en")
        prompts, part = PROMPTS[self.kind], "TRAVEL" if "Travel" in self.task["involved_classes"] else "BASE"
        rules = prompts.MULTI_TURN_AGENT_PROMPT_SYSTEM_EN
        rules += getattr(prompts, part + "_PROMPT_EN") if self.kind == "turn" else ""
        user = getattr(USER, f"SYSTEM_PROMPT_{part}_EN").format(instruction=self.task["question"])
        return prompts.MULTI_TURN_AGENT_PROMPT_USER_EN.format(functions=self.task["function"], history=""), {
            "rules": rules, "user": user, "question": self.task["question"], "kind": self.kind}

    def step(self, action):
        try:
            if self.kind == "turn":   # multi_step has its own reply to what is no call
                self.role.decode_function_list(action if "[" in action else "no call")
            message, instances = self.role.respond([{"message": action}])
        except Exception as error:   # of the package's decoder: no call, so it is said to the user
            return f"execution result: {error}", self.right(), False, False, {"user": self.kind == "turn"}
        if isinstance(instances, dict) and instances:   # after an error it is something else
            self.instances = instances
        return f"execution result: {message['message']}", self.right(), False, False, {"user": False}

    def right(self):
        """End-to-end accuracy: the same classes, saved attributes as expected (dictionaries: the entries)."""
        wanted = {name: values for part in self.truth for name, values in part.items()}
        state = {name: {key: json.loads(json.dumps(value)) for key, value in vars(instance).items()
                        if key in SAVED[name].split()} for name, instance in self.instances.items()}
        def same(value, expected):
            both = type(value) is type(expected) is dict
            return all(value.get(key) == expected[key] for key in expected) if both else value == expected

        return float(state.keys() == wanted.keys() and all(
            key in wanted[name] and same(value, wanted[name][key])
            for name, values in state.items() for key, value in values.items()))
'''


class AcePlay(SandboxedEnv):
    """The agent's side of a conversation: functions run in the sandbox, the user is a server."""

    def __init__(self, box, environment: Environment, user: Endpoint | None):
        super().__init__(box, environment.code, timeout=60, checked=True)
        self.user, self.messages = user, 1

    def reset(self, seed):
        opening, info = super().reset(seed)
        self.said, first = [{"role": "system", "content": info["user"]}], info["question"]
        if info["kind"] == "turn":
            first = self.user_says("Is there anything you need help with today?")
        return f"{opening}user: {first}", info

    def user_says(self, text: str) -> str:
        self.said.append({"role": "user", "content": text})
        try:
            answer = self.user.answer([{}, *self.said], 1000, 0.001).text
        except Unreachable as error:
            raise EnvError("infrastructure", str(error)) from None
        self.said.append({"role": "assistant", "content": answer})
        return answer

    def step(self, reply):
        text, self.messages = acted(reply).strip(), self.messages + 2
        observation, right, _, _, info = super().step(text)
        over = "finish conversation" in text and self.messages > 3
        if info["user"] and not over:
            said = self.user_says(text)
            observation, over = f"user: {said}", "finish conversation" in said
        return observation, right, over or self.messages >= 40, False, info   # 40 messages, as officially


def acebench(args):
    found = sorted(path.parent for path in Path(args.data or ".").rglob("data_agent_multi_step.json")
                   if "en" in path.parent.name and (path.parent / "possible_answer").is_dir())
    if not found:
        raise Missing("needs a copy: git clone https://github.com/ACEBench/ACEBench DIR, and --data DIR")
    user, items = Endpoint(args.user_model) if args.user_model else None, []
    if not user:
        print("acebench-agent: without --user-model URL#NAME only multi_step (ACEBench's user is gpt-4o)")
    for kind in ("step", "turn") if user else ("step",):
        name = f"data_agent_multi_{kind}.json"
        for task, answer in zip(read(found[0] / name), read(found[0] / "possible_answer" / name)):
            truth = answer["ground_truth"]
            items.append(item("Ace", f"multi_{kind}", task["id"], kind=kind, task=task,
                              truth=truth if isinstance(truth, list) else [truth]))
    root = next(parent for parent in found[0].parents if (parent / "model_inference").is_dir())
    return items, sealed(open=lambda box, environment: AcePlay(box, environment, user), parse_action=str,
                         agent_messages=rules.as_system), prelude(ACE, root), 40


# --- tau2-bench: a customer who talks, a policy, a database ---

class TauPlay:
    """One conversation, through the package's own Gym interface."""

    def __init__(self, environment: Environment, user: str):
        from tau2.gym.gym_agent import AgentGymEnv
        from tau2.registry import registry
        domain, name = json.loads(environment.code)
        url, _, model = user.partition("#")
        self.env = AgentGymEnv(domain, name, max_steps=200, user_llm=f"openai/{model}", user_llm_args={
            "api_base": url, "api_key": os.environ.get("OPENAI_API_KEY", "none"), "temperature": 0.0})
        task = next(task for task in registry.get_tasks_loader(domain)() if task.id == name)
        self.env._get_task = lambda: task   # it would parse all tasks again at every step

    def reset(self, seed):
        from tau2.agent.llm_agent import AGENT_INSTRUCTION, SYSTEM_PROMPT
        observation, info = self.env.reset(seed=seed)
        if not observation:
            raise EnvError("infrastructure", "nobody plays the customer; does --user-model answer?")
        tools = [tool.openai_schema for tool in info["tools"] if tool.name != "done"]
        self.schemas = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in tools}
        rules = SYSTEM_PROMPT.format(domain_policy=info["policy"], agent_instruction=AGENT_INSTRUCTION)
        return observation.removeprefix("user: "), {"rules": rules, "tools": tools}

    def action(self, name: str, arguments: dict, untyped: bool = False) -> str:
        for key, value in arguments.items() if untyped else ():   # all of an XML call is text
            if self.schemas.get(name, {}).get(key, {}).get("type") != "string":
                with suppress(ValueError):
                    arguments[key] = json.loads({"True": "true", "False": "false"}.get(value, value))
        return json.dumps({"name": name, "arguments": arguments})

    def step(self, reply):
        from tau2.utils.tools import parse_action_string
        calls = [call for call in json.loads(toolcalls.parse_action(reply)) if "answer" not in call]
        results = []
        if not calls and not acted(reply).strip():
            return "", 0.0, True, False, {"results": []}   # it says nothing; the package would break off
        for call in calls or [{"text": acted(reply).strip()}]:
            action = call.get("text") or call.get("error") or self.action(**call)
            # tau2's calculator is an `eval` in this process, and it unescapes what it is given
            meant = parse_action_string(action).tool_calls or ()
            if any(made.name == "calculate" and "**" in str(made.arguments) for made in meant):
                call = {"error": "Error: no powers"}
            if "error" in call:
                results.append(call["error"])
                continue
            observation, reward, over, _, info = self.env.step(action)
            if over and info["simulation_run"] in ("{}", {}):   # it broke off: not the model's fault
                raise EnvError("infrastructure", "no record of the simulation; does --user-model answer?")
            results.append(observation.removeprefix("tool: ").removeprefix("user: "))
            if over:
                return observation, float(reward), True, False, {"results": []}
        return results[-1], 0.0, False, False, {"results": results if calls else []}

    def close(self):
        pass   # its thread waits for an action that never comes, and ends with us


def tau2(args):
    if (source := Path(args.data or ".") / "src").joinpath("tau2").is_dir():
        sys.path.insert(0, str(source))
    need("tau2", "git+https://github.com/sierra-research/tau2-bench   (or --data DIR, a clone of it)")
    if not args.user_model:
        raise Missing("needs somebody to play the customer: --user-model URL#NAME (in the paper gpt-4.1)")
    from loguru import logger
    logger.remove()   # it narrates every message
    from tau2.registry import registry
    items = [Environment(json.dumps([domain, task.id]), "", domain, "tau2", "", f"{domain} {task.id}")
             for domain in ("retail", "airline", "telecom") for task in registry.get_tasks_loader(domain)()]
    return items, sealed(tools.TOOLS, open=lambda box, environment: TauPlay(environment, args.user_model),
                         parse_action=str, agent_messages=rules.as_system), "", 200
