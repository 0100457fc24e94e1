"""evaluate_agents.py: conversations with scripted agents and users. What needs a package skips where it is missing."""
import argparse
import ast
import json
import os
import pathlib
import random
import re
import textwrap

import pytest
from test_evaluate import score, server  # noqa: F401  (fixtures)

import agent
import sandbox
from benchmarks import agents
from machinery.endpoint import Endpoint
from machinery.engines import Reply


def play(suite, script, **options):
    """The episodes of a suite's items, played by script(item name, messages) -> reply."""
    items, setting, source, max_turns = suite

    class Script(Endpoint):
        def submit(self, key, ids, max_new_tokens, temperature):
            self.open[self.pool.submit(self.say, items[key].name, ids)] = key

        def say(self, name, ids):
            text = script(name, ids[1:])
            return Reply([{"role": "assistant", "content": text}], [0.0], text, True)
    with sandbox.Sandbox(prelude=source) as box:
        return agent.play(Script("http://nowhere#script"), box, setting, [agent.Job(item, 0, False) for item in items],
                          brief=False, temperature=1.0, max_turns=max_turns, context=10**6)


def tool_calls(calls):
    return "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


# --- BFCL: all 800 tasks with SPADE_ALL=1, else a sample ---

@pytest.fixture(scope="module")
def bfcl():
    """(suite, task name -> ground truth as lists of {name, arguments})"""
    package = pytest.importorskip("bfcl_eval", reason="pip install --no-deps bfcl-eval mpmath")
    folder = pathlib.Path(package.__file__).parent / "data" / "multi_turn_func_doc"
    parameters = {}
    for doc in (json.loads(line) for file in folder.glob("*.json") for line in file.read_text().splitlines()):
        parameters.setdefault(doc["name"], []).append(list(doc["parameters"]["properties"]))

    def as_json(source):   # f(1, y='2') -> {"name": "f", "arguments": {"x": 1, "y": "2"}}
        call = ast.parse(source, mode="eval").body
        names = next(p for p in parameters[call.func.id] if {k.arg for k in call.keywords} <= set(p))
        given = [*zip(names, call.args), *((k.arg, k.value) for k in call.keywords)]
        return {"name": call.func.id, "arguments": {name: ast.literal_eval(value) for name, value in given}}
    items, *rest = agents.bfcl(argparse.Namespace())
    assert len(items) == 800 and len({item.name for item in items}) == 800
    if "SPADE_ALL" not in os.environ:
        items = random.Random(0).sample(items, 120)
    truth = {item.name: [[as_json(call) for call in turn] for turn in ast.literal_eval(
        re.search(r"^    truth = (.*)$", item.code, re.M)[1])] for item in items}
    return (items, *rest), truth


def turn_of(messages):
    return sum(m["role"] == "user" for m in messages) - 1


def test_bfcl_ground_truth(bfcl):
    suite, truth = bfcl

    def knows(name, messages):   # ten calls a reply; a turn ends with words
        asked = max(i for i, m in enumerate(messages) if m["role"] == "user")
        made = sum(m["role"] == "tool" for m in messages[asked:])
        return tool_calls(truth[name][turn_of(messages)][made:made + 10]) or "Done."
    episodes = play(suite, knows)
    wrong = [(e.environment.name, e.outcome, e.error, e.turns[-1]) for e in episodes if e.ret != 1]
    print(f"ground truth: {sum(e.ret == 1 for e in episodes)} of {len(episodes)}")
    assert not wrong


def test_bfcl_empty_answers(bfcl):
    suite, _ = bfcl
    episodes = play(suite, lambda name, messages: "")
    print(f"empty: {sum(e.ret for e in episodes)} of {len(episodes)}")
    assert not any(e.ret for e in episodes) and {e.outcome for e in episodes} == {"terminated"}


def test_bfcl_wrong_and_strange_calls(bfcl):
    suite, truth = bfcl
    items = suite[0][:12]
    strange = [{"name": "__import__", "arguments": {"name": "os"}}, {"name": "eval", "arguments": {"source": "1/0"}},
               {"name": "cd", "arguments": {"folder": "x'); import os; os.abort(); ('"}},
               {"name": "power", "arguments": {"base": 10, "exponent": 10 ** 10}},
               {"name": "ls", "arguments": {"nonsense": 1}}]

    def misbehaves(name, messages):
        if messages[-1]["role"] == "tool":
            return "Enough."
        return tool_calls(strange) + '<tool_call>{"name": </tool_call>'
    episodes = play((items, *suite[1:]), misbehaves)
    assert not any(e.ret for e in episodes)
    told = [text for e in episodes for role, text in e.turns if role == "tool"]
    assert any("is not defined" in text for text in told) and any("This was not done" in text for text in told)
    assert {e.outcome for e in episodes} <= {"terminated", "env_error"}   # a huge power

    forever = play((items[:2], *suite[1:]), lambda name, _: tool_calls(truth[name][0][:1] or strange[:1]))
    replies = [sum(role == "assistant" for role, _ in e.turns) for e in forever]
    assert replies == [21, 21]   # 20 steps, and one too many
    assert not any(e.ret for e in forever)


def test_bfcl_shows_functions_when_they_are_released(bfcl):
    suite, _ = bfcl
    held = next(item for item in suite[0] if item.skill == "miss_func")
    name = re.search(r"'missed_function': \{'(\d+)': \['(\w+)'", held.code)
    with sandbox.Sandbox(prelude=suite[2]) as box, suite[1].open(box, held) as env:
        _, info = env.reset(0)
        assert name[2] not in [tool["function"]["name"] for tool in info["tools"]]
        types = set(re.findall(r'"type": "(\w+)"', json.dumps(info["tools"])))
        assert types <= {"function", "object", "string", "integer", "number", "boolean", "array"}
        for _ in range(int(name[1])):
            said, *_ = env.step("[]")
        assert f'"name": "{name[2]}"' in said


# --- ACEBench: a copy of its repository in miniature ---

UTILS = "CLASS_FILE_PATH_MAPPING_EN = {'MessageApi': 'model_inference.phone'}"
PHONE = """
class MessageApi:
    def __init__(self):
        self.inbox, self.noise = {1: "hello"}, object()
    def add(self, text, to="me"):
        self.inbox[len(self.inbox) + 1] = f"{to}: {text}"
        return {"status": True}
"""
ROLE = """
import ast
from model_inference.phone import MessageApi
class ROLE:
    def __init__(self, model, config, classes, number, language):
        assert language == "en" and classes == ["MessageApi"] and number.isdigit()
        self.api, self.instances = MessageApi(), {}
    def decode_function_list(self, text):
        calls = ast.parse(text.strip("[]"), mode="eval").body
        return [calls] if isinstance(calls, ast.Call) else 1 / 0
    def respond(self, history):
        try:
            call, = self.decode_function_list(history[-1]["message"])
        except Exception:
            return {"message": "Please use what you know"}, {}
        eval(f"self.api.{ast.unparse(call)}")
        return {"message": [{"status": True}]}, {"MessageApi": self.api}
"""
AGENT = """
from openai import OpenAI
BASE_PROMPT_EN = "Be brief."
MULTI_TURN_AGENT_PROMPT_SYSTEM_EN = "You call functions as [f(x='y')]."
MULTI_TURN_AGENT_PROMPT_USER_EN = "Functions: {functions}. History: {history}\\n"
"""
USER = "from openai import OpenAI\nSYSTEM_PROMPT_BASE_EN = 'You want: {instruction}'"


@pytest.fixture
def acebench(tmp_path):
    data, source = tmp_path / "data_all" / "data_en", tmp_path / "model_inference"
    (data / "possible_answer").mkdir(parents=True)
    for kind, role in (("step", "EXECUTION_STEP"), ("turn", "EXECUTION")):
        folder = source / f"multi_{kind}"
        folder.mkdir(parents=True)
        (folder / f"multi_{kind}_utils.py").write_text(UTILS)
        (folder / f"execution_role{'_step' if kind == 'step' else ''}.py").write_text(ROLE.replace("ROLE:", role + ":"))
        (folder / "APIModel_agent.py").write_text(AGENT)
        task = {"question": "Write milk.", "function": [{"name": "add"}], "initial_config": {},
                "involved_classes": ["MessageApi"]}
        (data / f"data_agent_multi_{kind}.json").write_text("".join(
            json.dumps(task | {"id": f"agent_multi_{kind}_{i}"}) + "\n" for i in range(2)))
        (data / "possible_answer" / f"data_agent_multi_{kind}.json").write_text("".join(json.dumps(
            {"id": f"agent_multi_{kind}_{i}", "ground_truth": [{"MessageApi": {"inbox": {"2": "me: milk"}}}]}) + "\n"
            for i in range(2)))
    (source / "multi_turn" / "APIModel_user.py").write_text(USER)
    (source / "phone.py").write_text(textwrap.dedent(PHONE))
    return tmp_path


def test_acebench_multi_step(acebench, capsys):
    suite = agents.acebench(argparse.Namespace(data=str(acebench), user_model=""))
    assert len(suite[0]) == 2 and "only multi_step" in capsys.readouterr().out

    def outcome(*replies):
        episodes = play(suite, lambda name, messages: replies[min(len(messages) // 2 - 1, len(replies) - 1)])
        assert len({(e.ret, len(e.turns)) for e in episodes}) == 1
        return episodes[0].ret, episodes[0].turns
    right, turns = outcome("<think>[add(text='x')]</think>[add(text='milk')]", "finish conversation")
    assert right == 1 and turns[0][0] == "system" and "user: Write milk." in turns[1][1]
    assert turns[3] == ("user", "execution result: [{'status': True}]")
    assert outcome("[add(text='milk', to='you')]", "finish conversation")[0] == 0
    assert outcome("finish conversation", "finish conversation")[0] == 0      # nothing was done
    wandering = outcome("What do you mean?")
    assert wandering[0] == 0 and "Please use what you know" in str(wandering[1]) and len(wandering[1]) == 2 + 40
    twice = outcome("What?", "[add(text='milk')]", "[add(text='milk')]", "finish conversation")
    assert twice[0] == 1   # entries that nobody asked about do no harm, as officially
    assert outcome("[add(text='milk')]", "[__import__('os').system('touch pwned')]", "finish conversation")[0] == 1


def test_acebench_multi_turn(acebench, server):  # noqa: F811
    suite = agents.acebench(argparse.Namespace(data=str(acebench), user_model=server.url))
    assert len(suite[0]) == 4
    items = [item for item in suite[0] if item.skill == "multi_turn"]

    def user(order):
        said = [m["content"] for m in order["messages"]]
        assert said[:2] == ["You want: Write milk.", "Is there anything you need help with today?"]
        script = ["I need a note.", "It says milk.", "finish conversation"]
        return {"role": "assistant", "content": script[len(said) // 2 - 1]}
    server.reply = user
    rights = {}
    for word in ("milk", "beer"):
        replies = ["What shall it say?", f"[add(text='{word}')]", "It is done."]
        episodes = play((items, *suite[1:]), lambda name, messages, replies=replies: replies[len(messages) // 2 - 1])
        rights[word] = [e.ret for e in episodes]
        spoken = [text for role, text in episodes[0].turns[1:] if role == "user"]
        assert spoken[0].endswith("user: I need a note.") and spoken[1:] == [
            "user: It says milk.", "execution result: [{'status': True}]", "user: finish conversation"]
        assert "Be brief." in episodes[0].turns[0][1]
    assert rights == {"milk": [1, 1], "beer": [0, 0]}


# --- tau2 ---

@pytest.fixture
def tau2(server):  # noqa: F811
    pytest.importorskip("tau2.gym.gym_agent", reason="pip install git+https://github.com/sierra-research/tau2-bench")
    suite = agents.tau2(argparse.Namespace(data="", user_model=server.url))
    assert {d: sum(item.skill == d for item in suite[0]) for d in ("retail", "airline", "telecom")} == {
        "retail": 114, "airline": 50, "telecom": 114}
    return suite


def test_tau2(tau2, server):  # noqa: F811
    task = agents.Environment(json.dumps(["mock", "create_task_1"]), "", "mock", "tau2", "", "mock create_task_1")
    server.reply = lambda order: {
        "role": "assistant", "content": "###STOP###" if "created" in str(order["messages"][-1])
        else "Please create a task called Important Meeting for user_1."}
    call = {"name": "create_task", "arguments": {"user_id": "user_1", "title": "Important Meeting"}}

    def works(name, messages):
        return tool_calls([call]) if messages[-1]["role"] == "user" else "<think>hm</think>I created it."
    episode, = play(([task], *tau2[1:]), works)
    assert episode.ret == 1 and [role for role, _ in episode.turns] == [
        "system", "user", "assistant", "tool", "assistant", "user"]
    assert "<policy>" in episode.turns[0][1] and "task_2" in episode.turns[3][1]
    lazy, = play(([task], *tau2[1:]), lambda name, messages: "I created it.")
    assert lazy.ret == 0 and lazy.outcome == "terminated"

    def confused(name, messages):
        return '<tool_call>{"name": }</tool_call>' if len(messages) < 5 else "I created it."
    broken, = play(([task], *tau2[1:]), confused)
    assert broken.ret == 0 and "This was not done" in broken.turns[3][1]

    silent, = play(([task], *tau2[1:]), lambda name, messages: "<think>hm</think>")
    assert (silent.ret, silent.outcome) == (0, "terminated")   # its own fault, so it is scored
    power = {"name": "calculate", "arguments": {"expression": "9**9**9**9"}}
    escaped = r'{ "arguments": {"expression": "9*\u002a9*\u002a9*\u002a9"}, "name": "calculate"}'
    for reply in (tool_calls([power]), 'calculate(expression="9**9**9**9")', escaped,
                  r'calculate(expression="9*\x2a9*\x2a9*\x2a9")'):
        stuck, = play(([task], *tau2[1:]), lambda name, messages, reply=reply: reply if len(messages) < 4 else "Hm.")
        assert "no powers" in str(stuck.turns) and stuck.ret == 0
    bold = {"name": "create_task", "arguments": {"user_id": "user_1", "title": "**Important** Meeting"}}
    free, = play(([task], *tau2[1:]), lambda name, messages: tool_calls([bold]) if len(messages) < 4 else "Hm.")
    assert "no powers" not in str(free.turns)


def test_tau2_without_a_user_is_nobodys_score(tau2, server, score):  # noqa: F811
    server.reply = lambda order: (400, "no")
    results = score(lambda messages, tools: "hello", f"tau2 --limit 1 --samples 1 --user-model {server.url}")
    assert [(r["score"], r["verdict"].split(":")[0]) for r in results] == [(None, "infrastructure")]
