"""tools.py and toolcalls.py: reading calls, sound and unsound worlds, and play() with the real sandbox.

tests/tool_environments holds the worlds: sound_*.py, and fault_*.py, which say by what they are refused.
"""
import json
import random
import re
import time
from pathlib import Path

import pytest

import tests.tiny_model as tiny_model
from agent import Job, play
from designer import Environment, Order, Refused, check_hint, design
from laptop import tool_worlds as tiny_tools
from machinery.engines import Reply
from machinery.flags import Args
from sandbox import EnvError, Sandbox
from settings import tool_prompts, tools
from settings.toolcalls import LONGEST, MOST_CALLS, ToolEnv, parse_action
from tests.test_agent import Script

WORLDS = sorted((Path(__file__).parent / "tool_environments").glob("*.py"))


def world(name, hint=""):
    path = next(path for path in WORLDS if path.stem == name)
    return Environment(path.read_text(encoding="utf-8"), hint, "Data Retrieval", "tools", "", name)


@pytest.fixture(scope="module")
def box():
    with Sandbox(prelude=tools.TOOLS.prelude) as box:
        yield box


# --- what models write, and what is read from it: (name, arguments), "answer: ...", or "error: part of the message" ---

DEEP = "[" * 100_000
REPLIES = [
    # Hermes, Qwen
    ('<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', [("f", {"x": 1})]),
    ('<tool_call>{"name":"f","arguments":{}}</tool_call>', [("f", {})]),
    ('I look it up.\n<tool_call>\n{"name": "f", "arguments": {"x": "a b"}}\n</tool_call>', [("f", {"x": "a b"})]),
    ('<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": '
     '{"y": [1, 2]}}\n</tool_call>', [("f", {"x": 1}), ("g", {"y": [1, 2]})]),
    ('<tool_call>{"name": "f", "arguments": {"a": {"b": {"c": [1, {"d": "}"}]}}}}</tool_call>',
     [("f", {"a": {"b": {"c": [1, {"d": "}"}]}}})]),
    ('<tool_call>{"arguments": {"a": {"b": 1}}, "name": "f"}</tool_call>', [("f", {"a": {"b": 1}})]),
    ('<tool_call>{"name": "f", "arguments": {"x": "größe 日記 \\u00e9 🙂"}}</tool_call>',
     [("f", {"x": "größe 日記 é 🙂"})]),
    ('<tool_call>{"name": "f", "arguments": {"x": "</tool_call> and <answer>done</answer>"}}</tool_call>',
     [("f", {"x": "</tool_call> and <answer>done</answer>"})]),
    ('<tool_call>{"name": "f", "arguments": {"x": "two\nlines"}}</tool_call>', [("f", {"x": "two\nlines"})]),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}}', [("f", {"x": 1})]),
    ('<tool_call>{"name": "f", "arguments": {"x": "1"}}\n{"name": "g", "arguments": {}}</tool_call>',
     [("f", {"x": "1"}), ("g", {})]),
    ('<tool_call>[{"name": "f", "arguments": {}}, {"name": "g"}]</tool_call>', [("f", {}), ("g", {})]),
    ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', [("f", {"x": 1})]),
    ('<tool_call>{"type": "function", "function": {"name": "f", "arguments": {"x": null}}}</tool_call>',
     [("f", {"x": None})]),
    ('<think>I could <tool_call>{"name": "g"}</tool_call></think>\n<tool_call>{"name": "f"}</tool_call>', [("f", {})]),
    ('so g? no.</think><tool_call>{"name": "f", "arguments": {"x": -1.5e3}}</tool_call>', [("f", {"x": -1500.0})]),
    ('<think>never closed <tool_call>{"name": "g"}</tool_call>', []),
    # Hermes, broken
    ('<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>', ["error: Expecting ',' delimiter"]),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}}}</tool_call>', [("f", {"x": 1}), "error: behind a call"]),
    ("<tool_call>{'name': 'f', 'arguments': {}}</tool_call>", ["error: Expecting property name"]),
    ('<tool_call>f(x=1)</tool_call>', ["error: Expecting value"]),
    ('<tool_call></tool_call>', ["error: Expecting value"]),
    ('<tool_call>', ["error: Expecting value"]),
    ('<tool_call>{"name": "f", "argu', ["error: Unterminated string"]),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}\n<tool_call>{"name": "g", "arguments": {}}</tool_call>',
     ["error: delimiter", ("g", {})]),
    ('<tool_call>[1, 2]</tool_call>', ["error: a JSON object with"]),
    ('<tool_call>{"arguments": {"x": 1}}</tool_call>', ["error: a JSON object with"]),
    ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', ["error: a JSON object with"]),
    ('<tool_call>{"name": "f", "args": {"x": 1}}</tool_call>', ["error: not args"]),
    ('<tool_call>{"name": "f", "arguments": {"x": 1}, "parameters": {"x": 2}}</tool_call>', ["error: parameters"]),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', ["error: arguments of a call are"]),
    ('<tool_call>{"name": "f", "arguments": {"x": 1, "x": 2}}</tool_call>', ["error: given twice"]),
    ('<tool_call>{"name": "f", "arguments": {"x": ' + DEEP, ["error: "]),
    ('<tool_call>{"name": "f", "arguments": {"x": 1' + "0" * 5000 + '}}</tool_call>', ["error: digits"]),
    # Qwen3-Coder and Qwen 3.5: all values are text
    ('<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>', [("f", {"x": "1"})]),
    ('<tool_call>\n<function=f>\n</function>\n</tool_call>', [("f", {})]),
    ('<tool_call>\n<function=f>\n<parameter=a>\ntwo\nlines\n</parameter>\n<parameter=b>\n{"c": [1]}\n</parameter>\n'
     '</function>\n</tool_call>', [("f", {"a": "two\nlines", "b": '{"c": [1]}'})]),
    ('<function=f><parameter=x>a < b > c</parameter></function>', [("f", {"x": "a < b > c"})]),
    ('<tool_call><function=f><parameter=x>é</parameter></function></tool_call><tool_call><function=g></function>'
     '</tool_call>', [("f", {"x": "é"}), ("g", {})]),
    ('<tool_call><function=f><parameter=x>\n\n kept \n\n</parameter></function>', [("f", {"x": "\n kept \n"})]),
    ('<tool_call><function=f><parameter=x></function></parameter></function></tool_call>',
     [("f", {"x": "</function>"})]),
    ('<tool_call><function=f><parameter=x>1</tool_call>', ["error: no </function>"]),
    ('<tool_call><function=f>hello<parameter=x>1</parameter></function></tool_call>', ["error: but hello"]),
    ('<tool_call><function=f><parameter=x>1</parameter><parameter=x>2</parameter></function></tool_call>',
     ["error: given twice"]),
    ('<tool_call><function=f', ["error: not closed"]),
    # Qwen3-Coder, an end is missing: the next call is still made
    ('<function=f><parameter=x>1</function></tool_call><tool_call><function=g><parameter=y>2</parameter></function>'
     '</tool_call>', ["error: f: no </function>", ("g", {"y": "2"})]),
    ('<tool_call><function=f><parameter=x>1<parameter=y>2</parameter></function></tool_call>', ["error: f: no"]),
    ('<tool_call><function=f><parameter=x>1<parameter=y>2</parameter></function></tool_call>\n<tool_call>{"name": "g"}'
     '</tool_call>', ["error: f: no", ("g", {})]),
    ('<tool_call><function=f><parameter=x>1<tool_call><function=g><parameter=y>2</parameter></function></tool_call>',
     ["error: f: no", ("g", {"y": "2"})]),
    ('<function=f><parameter=x>1\n<function=g><parameter=y>2</parameter></function>',
     ["error: f: no", ("g", {"y": "2"})]),
    ('<function=f <function=g></function>', ["error: not closed", ("g", {})]),
    ('<function=f><parameter=x<parameter=y>1</parameter></function>\n<function=g></function>',
     ["error: f: no", ("g", {})]),
    ('<function=f><parameter=a>1</parameter><parameter=x>2</function><answer>done</answer>',
     ["error: f: no", "answer: done"]),
    ('<function=f><parameter=x>a <tool_call>{"name": "g"}</tool_call> b</parameter></function>',
     [("f", {"x": 'a <tool_call>{"name": "g"}</tool_call> b'})]),
    # Llama 3
    ('{"name": "f", "parameters": {"x": {"y": ["z"]}}}', [("f", {"x": {"y": ["z"]}})]),
    ('<|python_tag|>{"name": "f", "parameters": {"x": "1"}}', [("f", {"x": "1"})]),
    ('<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"x": 2}}',
     [("f", {}), ("g", {"x": 2})]),
    ('{"name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}', [("f", {}), ("g", {})]),
    ('{"type": "function", "name": "f", "parameters": {"x": 1}}', [("f", {"x": 1})]),
    ('I will call it: {"name": "f", "parameters": {"x": 1}} That should do.', [("f", {"x": 1})]),
    ('```json\n{"name": "f", "parameters": {"x": 1}}\n```', [("f", {"x": 1})]),
    ('<function=f>{"x": {"y": 1}}</function>', [("f", {"x": {"y": 1}})]),
    ('[{"name": "f", "arguments": {"x": 1}}, {"name": "g"}]', [("f", {"x": 1}), ("g", {})]),
    ('I call\n[\n  {"name": "f", "parameters": {}},\n  {"arguments": {"x": [2]}, "name": "g"}\n]\nnow.',
     [("f", {}), ("g", {"x": [2]})]),
    ('```json\n[{"arguments": {}, "name": "f"}]\n```', [("f", {})]),
    ('[{"name": "f"}]\n[{"name": "g"}]<answer>done</answer>', [("f", {}), ("g", {}), "answer: done"]),
    ('{"arguments": {"x": {"name": "h"}}, "name": "f"}\n{"parameters": {}, "name": "g"}',
     [("f", {"x": {"name": "h"}}), ("g", {})]),
    ('{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}', [("f", {})]),
    ('[{"id": "a", "arguments": {}, "name": "f"}, {"name": "g"}', ["error: delimiter"]),
    ('[{"name": "f"}, {"arguments": {}}]', [("f", {}), "error: a JSON object with"]),
    ('The list [1, 2], the records [{"id": 3}] and {"id": "x", "age": 4}.', []),
    ('{"name": "f", "parameters": {"x": 1}', ["error: Expecting ',' delimiter"]),
    ('{"name": "f", "parameters": {"x": 1}}}', [("f", {"x": 1}), "error: behind a call"]),
    ('<|python_tag|>search.call(query="x")', ["error: Expecting value"]),
    ('<function=f>{"x": 1</function>', ["error: Expecting ',' delimiter"]),
    # answers and prose
    ('<answer>done</answer>', ["answer: done"]),
    ('All is done.\n<answer> Done ', ["answer:  Done "]),
    ('<tool_call>{"name": "f"}</tool_call>\n<answer>done</answer>', [("f", {}), "answer: done"]),
    ('<answer>done</answer><tool_call>{"name": "f"}</tool_call>', ["answer: done", ("f", {})]),
    ('{"name": "f", "parameters": {"x": 1}}\n<answer>done</answer>', [("f", {"x": 1}), "answer: done"]),
    ('<answer>done <tool_call>{"name": "f"}</tool_call>', ["answer: done ", ("f", {})]),
    ('<tool_call><function=f></function>{"name": "g"}</tool_call>', ["error: behind </function>"]),
    ('<tool_call><function=f></function></tool_call> Done.', [("f", {})]),
    ('Which one do you mean?', []),
    ('', []),
    ('The set is {1, 2}, the record {"id": 3}.', []),
]


def readable(item):
    if "error" in item:
        return "error"
    return f"answer: {item['answer']}" if "answer" in item else (item["name"], item["arguments"])


@pytest.mark.parametrize("reply, expected", REPLIES)
def test_replies(reply, expected):
    items = json.loads(parse_action(reply))
    assert len(items) == len(expected), items
    for item, wanted in zip(items, expected):
        if isinstance(wanted, str) and wanted.startswith("error: "):
            assert wanted[7:] in item["error"] and "not done" in item["error"]
        else:
            assert readable(item) == wanted


def test_there_are_enough_replies_and_a_turn_is_bounded():
    assert len(REPLIES) >= 60
    many = json.loads(parse_action('<tool_call>{"name": "f"}</tool_call>' * (MOST_CALLS + 5)))
    assert len(many) == MOST_CALLS + 1 and "only the first" in many[-1]["error"]
    (large,) = json.loads(parse_action(json.dumps({"name": "f", "parameters": {"x": "y" * LONGEST}})))
    assert "characters" in large["error"]


def test_no_text_breaks_the_parser():
    """Pieces of real calls in any order: every reply gives a list of calls, errors and answers, and soon."""
    rng, pieces = random.Random(0), sorted({piece for reply, _ in REPLIES for piece in re.findall(
        r"</?[\w|=]+>?|[{}\[\]\":,;]|\w+|\s", reply[:300])})
    for _ in range(5000):
        for item in json.loads(parse_action("".join(rng.choices(pieces, k=rng.randint(1, 30))))):
            assert set(item) in ({"error"}, {"answer"}, {"name", "arguments"}, {"name", "arguments", "untyped"})
    start = time.monotonic()
    for piece in ("<tool_call>", "<function=f><parameter=x>", '<tool_call>{"name": "', "<answer>", "<think>", "["):
        parse_action(piece * (30_000 // len(piece)))
    assert time.monotonic() - start < 5


# The chat templates of three families, as far as tools are concerned.
HERMES = tiny_model.HERMES
CALLS = "{{ '\n<tool_call>\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' }}\n" \
        "{{- c.function.arguments | tojson }}{{ '}\n</tool_call>' }}"
CODER = HERMES.replace(CALLS, """{{ '\n<tool_call>\n<function=' + c.function.name + '>\n' }}
{%- for k, v in c.function.arguments | items %}{{ '<parameter=' + k + '>\n' }}
{{- v if v is string else v | tojson }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}""")
LLAMA = HERMES.replace(CALLS, """{{ '<|python_tag|>' if loop.first else '; ' }}
{{- '{"name": "' + c.function.name + '", "parameters": ' }}{{ c.function.arguments | tojson }}{{ '}' }}""")
tiny_model.CONTROL |= dict.fromkeys((CODER, LLAMA), tiny_model.CONTROL[HERMES])
SPOKEN = [("f", {"a": {"b": [1, {"c": "}"}]}, "s": 'größe </tool_call> "q"\nx', "n": 3, "t": True}), ("g", {})]
SCHEMAS = {"a": {"type": "object"}, "s": {"type": "string"}, "n": {"type": "integer"}, "t": {"type": "boolean"}}


@pytest.mark.parametrize("template", [HERMES, CODER, LLAMA], ids=["hermes", "coder", "llama"])
def test_what_a_template_writes_is_read_back(template):
    assert len({HERMES, CODER, LLAMA}) == 3
    words = tiny_model.tokenizer(template)
    message = {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in SPOKEN]}
    user = {"role": "user", "content": "please"}
    opening = words.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    whole = words.apply_chat_template([user, message], tokenize=False)
    items = json.loads(parse_action(whole.removeprefix(opening).removesuffix("<|im_end|>\n")))
    for item in items:
        item["arguments"] = ToolEnv()._typed(item["arguments"], SCHEMAS, item.pop("untyped", False))
    assert items == [{"name": name, "arguments": arguments} for name, arguments in SPOKEN]


@pytest.mark.parametrize("schema, text, value", [
    ({"type": ["boolean", "null"]}, "False", False), ({"type": ["boolean", "null"]}, "None", None),
    ({"enum": [15, 30]}, "15", 15), ({"enum": ["1", "2"]}, "1", "1"), ({"type": ["string", "integer"]}, "7", "7"),
    ({}, "[1]", [1]), ({}, "word", "word"), ({"type": "integer"}, "x", None),
    ({"type": "string", "enum": ["a"]}, "b", None)])
def test_the_text_of_an_xml_call_gets_its_type(schema, text, value):
    def typed():
        return ToolEnv()._typed({"x": text}, {"x": schema}, True)
    if value is None and text != "None":
        with pytest.raises(ValueError, match="its schema is"):
            typed()
    else:
        assert typed() == {"x": value} and type(typed()["x"]) is type(value)


def test_signatures_and_schemas_agree():
    def fault(method, properties, required):
        space = {}
        exec(f"def tool_t(self, {method}): return ''", space)
        schema = {"type": "object", "properties": dict.fromkeys(properties, {}), "required": required}
        world = type("T", (ToolEnv,), {"tools": [{"name": "t", "description": "", "parameters": schema}],
                                       "setup": lambda self, rng: [("do", lambda: False)], **space})()
        return world.reset(0)[1]["fault"]
    for method, required in (("a, b", ["a", "b"]), ("a, b=1", ["a"]), ("a, *, b", ["a", "b"]), ("a, *, b=1", ["a"]),
                             ("a=1, b=2", []), ("a, b=1", ["a", "b"])):
        assert fault(method, "ab", required) == "", method
    for method, required in (("a, b", ["a"]), ("a, b=1", ["a", "ghost"]), ("a", ["a"]), ("a, b, c=1", ["a", "b"]),
                             ("a, *, b", ["a"]), ("*a, b", ["a", "b"]), ("a, **b", ["a"])):
        assert "name other parameters" in fault(method, "ab", required), method


def test_other_families_are_read_by_their_response_template():
    words = tiny_model.tokenizer()
    function = {"name": "{name}", "arguments": "{content}"}
    words.response_template = {
        "defaults": {"role": "assistant"}, "start_anchor": "<|im_start|>assistant\n", "fields": {
            "tool_calls": {"open_pattern": r"<call>(?P<name>\w+)", "close": "</call>", "repeats": True,
                           "content": "json", "transform": {"type": "function", "function": function}},
            "content": {"content": "text"}}}
    reply = '<call>f{"x": [1]}</call>'
    assert json.loads(parse_action(reply)) == []
    assert json.loads(parse_action(reply, words)) == [{"name": "f", "arguments": {"x": [1]}}]
    assert "JSON" in json.loads(parse_action("<call>f{oops</call>", words))[0]["error"]
    assert json.loads(parse_action("only talk", words)) == []


# --- worlds ---

@pytest.mark.parametrize("path", WORLDS, ids=lambda path: path.stem)
def test_worlds(box, path):
    verdict = tools.validate(box, world(path.stem), timeout=1.0 if "hangs" in path.stem else 5.0)
    if path.stem.startswith("sound"):
        assert verdict.valid, verdict.reason
        assert len(verdict.solutions) == 3
    else:
        expected = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# refused: ")
        assert not verdict.valid and verdict.reason.startswith(expected), verdict.reason


def test_there_are_enough_worlds():
    names = [path.stem for path in WORLDS]
    assert sum(name.startswith("sound") for name in names) >= 6
    assert sum(name.startswith("fault") for name in names) >= 12


def steps(box, name, *replies, seed=0):
    with tools.ToolPlay(box, world(name).code) as env:
        return [env.reset(seed)] + [env.step(parse_action(reply)) for reply in replies]


def call(name, **arguments):
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


def test_instructions_are_revealed_one_at_a_time_and_done_wins_only_at_the_end(box):
    with tools.ToolPlay(box, world("sound_tickets").code) as env:
        observation, info = env.reset(3)
        assert observation == "Bo should take the login problem." and len(info["tools"]) == 4
        said = [observation]
        for action in env.solution():
            early = env.step(parse_action("<answer>done</answer>"))
            assert early[1:4] == (0.0, False, False) and early[0].startswith("Not done. The user says: ")
            assert early[-1]["results"] == [] and early[0].endswith(said[-1])
            _, reward, terminated, _, info = env.step(action)
            assert (reward, terminated) == (0.0, False)
            said += [text.split("The user says: ")[1] for text in info["results"] if "The user says: " in text]
        assert said[1:] == ["Order pizza for the team.", "The login problem is urgent."]
        assert "<answer>done</answer>" in info["results"][0] and info["met"] == 3
        assert env.step(parse_action("<answer>42</answer>"))[2] is False
        assert env.step(parse_action("<answer> Done.</answer>"))[2] is False
        assert env.step(parse_action("so: <answer> Done </answer>"))[1:3] == (1.0, True)


def test_a_tool_that_raises_is_an_observation(box):
    _, unknown, raises, missing, extra, wrong, enum, broken = steps(
        box, "sound_bank", call("open_vault"), call("security_code", account="AC0"), call("unlock", account="AC0"),
        call("accounts", verbose=True), call("unlock", account="AC0", code="1234"),
        call("transfer", source="a", target="b", amount=1, speed="warp"), '<tool_call>{"name": </tool_call>')
    for reply, part in [(unknown, "no tool open_vault, there are accounts, "), (raises, "KeyError"),
                        (missing, "missing 1 required positional argument: 'code'"),
                        (extra, "unexpected keyword argument 'verbose'"), (wrong, 'code is "1234", its schema'),
                        (enum, 'speed is "warp"'), (broken, "Expecting value")]:
        assert part in reply[-1]["results"][0] and reply[-1]["results"][0].startswith("Error: ")
        assert reply[1:4] == (0.0, False, False)


def test_several_calls_in_one_turn_and_the_answer_with_them(box):
    env = tools.ToolPlay(box, world("sound_tickets").code)
    env.reset(1)
    plan = [json.loads(action)[0] for action in env.solution()]
    text = "".join(call(item["name"], **item["arguments"]) for item in plan)
    too_many = env.step(parse_action(call("list_tickets") * 30))
    assert len(too_many[-1]["results"]) == MOST_CALLS + 1 and "only the first" in too_many[-1]["results"][-1]
    reply = env.step(parse_action(text + call("nonsense") + "<answer>done</answer>"))
    env.close()
    assert reply[1:3] == (1.0, True) and len(reply[-1]["results"]) == 6
    assert [message["role"] for message in tools.observation_messages(reply[0], reply[-1])] == ["tool"] * 6


def test_text_of_xml_calls_gets_its_type(box):
    xml = ("<tool_call><function=move><parameter=files>[\"größe\"]</parameter><parameter=target>"
           "{\"folder\": \"new\", \"create\": True}</parameter></function></tool_call>")
    bad, good = steps(box, "sound_files", xml, xml.replace("True", "true"))[1:]
    assert "its schema is" in bad[-1]["results"][0] and "StopIteration" in good[-1]["results"][0]
    switch = "<function=switch><parameter=lamp>{}</parameter><parameter=on>False</parameter></function>"
    opening, reply = steps(box, "sound_home", switch.format("attic"))
    assert reply[-1]["results"] == ["off"]


def test_schemas_may_leave_out_what_is_obvious(box):
    code = world("sound_home").code
    looser = code.replace('"type": "object", "required": ["what"]', '"required": ["what"]')
    looser = looser.replace('"on": {"type": "boolean"}', '"on": {"type": ["boolean", "null"]}')
    lamps = '"lamp": {"enum": ["desk", "hall", "kitchen", "porch", "stairs"]}'
    looser = looser.replace('"lamp": {"type": "string"}, "percent"', f'{lamps}, "percent"')
    looser = looser.replace("    def setup", """    tools.append({"name": "noop", "description": "Does nothing."})

    def tool_noop(self):
        return "nothing"

    def setup""")
    assert looser.count("noop") == 2 and looser.count("null") == 1 and looser.count(lamps) == 1
    environment = Environment(looser, "", "", "tools", "", "looser")
    assert tools.validate(box, environment).valid
    with tools.ToolPlay(box, looser) as env:
        _, info = env.reset(0)
        assert info["tools"][-1]["function"]["parameters"] == {"type": "object", "properties": {}}
        xml = "<function=dim><parameter=lamp>desk</parameter><parameter=percent>40</parameter></function>"
        assert env.step(parse_action(xml))[-1]["results"] == ["40 %"]


HOSTILE = '''
class HostileEnv:
    def reset(self, seed=None):
        return "hi", {0}
    def step(self, action):
        return "x", 0.0, False, False, {1}
'''
TOOL = {"type": "function", "function": {"name": "t", "description": "", "parameters": {
    "type": "object", "properties": {}}}}
OPENING = {"fault": "", "tools": [TOOL] * 3, "instructions": 3}
NESTED = "x"
for _ in range(60):
    NESTED = [NESTED]


@pytest.mark.parametrize("info, kind", [
    ({}, "class: "), ({"fault": 3}, "class: "), ({"tools": {"a": 1}}, "class: "), ({"instructions": True}, "class: "),
    ({"tools": [TOOL] * 9}, "count: "), ({"tools": [1, 2, 3]}, "tools: "), ({"tools": [NESTED] * 3}, "tools: "),
    ({"tools": [TOOL | {"x": NESTED}] * 3}, "tools: "), ({"tools": [TOOL | {"x": "y" * 30_000}] * 3}, "tools: "),
    ({"tools": [{"type": "function", "function": TOOL["function"] | {"name": "a b"}}] * 3}, "tools: "),
    ({"tools": [{"type": "function", "function": TOOL["function"] | {"parameters": {
        "type": "object", "properties": {"x": {"enum": 5}}}}}] * 3}, "tools: "),
    ({"tools": [{"type": "function", "function": TOOL["function"] | {"parameters": []}}] * 3}, "tools: "),
])
def test_hostile_openings(box, info, kind):
    code = HOSTILE.replace("{0}", repr(info and OPENING | info)).replace("{1}", "{}")
    with tools.ToolPlay(box, code) as env, pytest.raises(EnvError, match=kind):
        env.reset(0)


@pytest.mark.parametrize("solution, reason", [
    ('["water everything"]', "step: JSONDecodeError"), ('["[]"]', "solution: meets 0"),
    ('[{"name": "sell"}]', "solution: not a list of strings"), ("[self.call('sell')] + ['7']", "step: TypeError"),
    ("None", "solution: 0 calls"), ("5 / 0", "solution: ZeroDivisionError"),
])
def test_strange_solutions(box, solution, reason):
    code = world("fault_order").code.split("    def solution")[0]
    code += f"    def solution(self):\n        return {solution}"
    verdict = tools.validate(box, Environment(code, "", "", "tools", "", "strange"))
    assert not verdict.valid and reason in verdict.reason, verdict.reason


@pytest.mark.parametrize("info", [{}, {"results": "text", "met": 0}, {"results": [1], "met": 0}, {"results": []},
                                  {"results": ["x"] * 99, "met": 0}, {"results": [], "met": "3"}])
def test_hostile_results(box, info):
    code = HOSTILE.replace("{0}", repr(OPENING)).replace("{1}", repr(info))
    with tools.ToolPlay(box, code) as env:
        assert env.reset(0)[0] == "hi"
        with pytest.raises(EnvError, match="protocol"):
            env.step("[]")


# --- the laptop model's lessons ---

@pytest.mark.parametrize("skill", tools.SKILLS)
def test_the_laptop_models_worlds_are_sound_and_its_hints_pass(box, skill):
    for n, m in [(3, 2), (3, 4), (4, 3), (5, 2), (5, 4)]:
        environment = Environment(tiny_tools.program(skill, "Lamps", n, m), "", skill, "tools", "", "x")
        verdict = tools.validate(box, environment)
        assert verdict.valid, (n, m, verdict.reason)
        assert check_hint(tiny_tools.FAMILIES[skill]["hint"], verdict.solutions)


def test_the_beginner_looks_when_told_to_and_wins_more_often():
    rng, plays = random.Random(0), {True: [], False: []}
    for _ in range(400):
        turns = tiny_tools.agent_demo(rng, ["Lamps light up."])
        assert len(turns) % 2 == 0 and len(turns) <= 16
        assert all(len(json.loads(parse_action(said))) == 1 for said in turns[1::2])
        plays["hint: " in turns[0]].append(turns[-1] == "<answer>done</answer>")
    hinted, alone = (sum(plays[arm]) / len(plays[arm]) for arm in (True, False))
    assert hinted > 0.8 and 0.3 < alone < 0.7


# --- plays ---

@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_model.policy(tiny_model.build(tmp_path_factory.mktemp("tools"), template=HERMES), context=2048)


def test_both_arms_are_played_and_no_two_plays_share_state(box, policy):
    """Every play sells one tea a turn; the state of another play would show in the numbers."""
    def answer(key, text):
        turn = text.count("<|im_start|>assistant") - 1
        return [call("sell", thing="tea", count=1), call("stock") + call("burn"), "Hm?", "<answer>done</answer>"][turn]

    environment = Environment(world("fault_class_state").code, "sell first", "", "tools", "", "kiosk")
    policy.engine = Script(policy, answer, streams=True)
    jobs = [Job(environment, seed, hinted) for seed in (5, 5, 6) for hinted in (True, False)]
    episodes = play(policy, box, tools.for_model(tools.TOOLS, policy), jobs, brief=False, temperature=1.0, max_turns=4,
                    max_new_tokens=200, context=2048)
    for episode, job in zip(episodes, jobs):
        assert episode.outcome == "turn_limit" and episode.ret == 0.0
        assert ("HINT: sell first" in episode.turns[0][1]) == job.hinted
        piece, = episode.pieces
        opening = policy.tokenizer.decode(piece.ids[:piece.mask.index(1)])
        assert '"name": "sell"' in opening and "Sell three teas." in opening
        assert [role for role, _ in episode.turns] == ["user", "assistant", "tool", "assistant", "tool", "tool",
                                                       "assistant", "user", "assistant"]
        assert episode.turns[2][1] == "1 sold so far."   # kept in the class, and yet of this play alone
        assert "no tool burn" in episode.turns[5][1] and "No tool call was found" in episode.turns[7][1]
        assert sum(piece.mask) == len(piece.logprobs)
        said = [token for token, own in zip(piece.ids, piece.mask) if own]
        assert policy.tokenizer.decode(said).replace("<|im_end|>", "") == "".join(
            text for role, text in episode.turns if role == "assistant")
    same = [[turn for turn in episode.turns[1:]] for episode in episodes]
    assert same[0] == same[1] == same[2] == same[3] and same[4] == same[5]


def test_a_broken_world_ends_its_own_play_only(box, policy):
    policy.engine = Script(policy, lambda key, text: call("sign", side="open"))
    environments = [Environment(world(name).code, "", "", "tools", "", name)
                    for name in ("fault_true_at_reset", "fault_order")]
    broken, sound = play(policy, box, tools.TOOLS, [Job(e, 0, False) for e in environments], brief=True,
                         temperature=1.0, max_turns=2, max_new_tokens=200, context=2048)
    assert broken.outcome == "env_error" and "predicate: number 3" in broken.error
    assert sound.outcome == "turn_limit"


RESULT = "{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
FORGETS, RAISES = HERMES.replace(RESULT, ""), HERMES.replace(RESULT, "{{ raise_exception('no tools') }}")
tiny_model.CONTROL |= dict.fromkeys((FORGETS, RAISES), tiny_model.CONTROL[HERMES])


@pytest.mark.parametrize("template", [tiny_model.CHATML, FORGETS, RAISES], ids=["no schemas", "no results", "raises"])
def test_models_without_tools_are_refused(tmp_path, template):
    assert len({HERMES, FORGETS, RAISES}) == 3
    policy = tiny_model.policy(tiny_model.build(tmp_path, template=template))
    with pytest.raises(SystemExit, match="does not show tools"):
        tools.TOOLS.for_run(tools.TOOLS, Args(), policy)


# --- the Designer at work ---

class Talker:
    """A policy whose prompts and replies are texts; `answer` makes one of the other."""

    def __init__(self, answer):
        self.answer = answer

    def prompt_ids(self, messages):
        return [message["content"] for message in messages]

    def sample(self, prompts, max_tokens, temperature, progress=None):
        replies = [self.answer("".join(prompt)) for prompt in prompts]
        return [Reply([], [], text, len(text) < max_tokens) for text in replies]


JUDGED = Args(judge=True, copies="refuse", design_tokens=9000, hint_tokens=300, context=20_000)


@pytest.mark.parametrize("says, kept", [("Each predicate can. **Yes**.", True), ("yes", True), ("No.", False),
                                        ("Yes, but not the second.", False), ("", False), ("yes " * 99, False)])
def test_the_judge_fails_closed(box, says, kept):
    def answer(text):
        if "End with yes or no." in text:
            return says
        return f"```python\n{world('sound_home').code}```" if "Write ONE Python class" in text else "Read first."

    (made,) = design(Talker(answer), box, tools.TOOLS, [Order("s", "Data Retrieval", "", "A text.")], JUDGED)
    assert (made.environment is not None) == kept, made.reason
    assert made.environment.hint == "Read first." if kept else made.reason == "judge: does not say yes"


@pytest.mark.parametrize("verdicts, reasons", [("yes yes", ["", "duplicate"]), ("no yes", ["judge", ""])])
def test_a_copy_of_what_the_judge_refused_is_no_copy(box, verdicts, reasons):
    """As on several ranks, where copies are compared after each rank has judged its own."""
    said = iter(verdicts.split())

    def answer(text):
        if "End with yes or no." in text:
            return next(said)
        return f"```python\n{world('sound_home').code}```" if "Write ONE Python class" in text else "Read first."

    orders = [Order(name, "Data Retrieval", "", "A text.") for name in "ab"]
    made = design(Talker(answer), box, tools.TOOLS, orders, JUDGED)
    assert [d.reason.split(":")[0] for d in made] == reasons
    assert [d.environment is not None for d in made] == [reason == "" for reason in reasons]


# --- prompts ---

def test_prompts_name_skill_domain_and_variant():
    texts = [tool_prompts.design_messages(Order(f"n{i}", "Error Recovery", "", "A text."), brief=False)[-1]["content"]
             for i in range(300)]
    assert all("error recovery" in text and "A text." in text and "ToolEnv" in text for text in texts)
    domains = tool_prompts.DOMAINS
    assert {domain for domain in domains for text in texts if f"a {domain}." in text} == set(domains)
    counts = [sum(variant in text for text in texts) for variant in tool_prompts.VARIANTS]
    assert sum(counts) == 300 and counts[0] > counts[1] > max(counts[2:]) and min(counts) > 20
    (again,) = tool_prompts.design_messages(Order("n7", "Error Recovery", "", "A text."), brief=False)
    assert texts[7] == again["content"]


def test_the_example_of_the_prompt_is_a_program():
    code = tool_prompts.RULES.split("```python\n")[1].split("```")[0]
    compile(code.replace("...]", "]"), "example", "exec")


def test_a_hint_may_plan_but_not_copy_the_calls(box):
    solutions = tools.validate(box, world("sound_tickets")).solutions
    plan = "List the tickets, assign the one named, decline what no tool can do. Done comes last."
    assert check_hint(plan, solutions) == plan
    with tools.ToolPlay(box, world("sound_tickets").code) as env:
        env.reset(0)
        calls = [json.loads(action)[0] for action in env.solution()]
    copied = ", then ".join(f"{item['name']}({', '.join(f'{k}={v}' for k, v in item['arguments'].items())})"
                            for item in calls)
    with pytest.raises(Refused):
        check_hint(f"Call {copied}.", solutions)
    empty = tools.TOOLS.parse_design("```python\nclass AEnv(ToolEnv): pass\n```", Order("s", "Tool Selection", "", ""))
    assert empty.setting == "tools" and empty.code.startswith("class AEnv")


@pytest.mark.parametrize("reply", [
    'I call {"name": "f", "arguments": {}} and then {"name": "g", "arguments": {}}',
    '```json\n{"name": "f"}\n```\nThen:\n```json\n{"name": "g"}\n```',
    'First: [{"name": "f"}] Second: [{"name": "g"}]', '{"name": "f"}, {"name": "g"}',
    '{"arguments": {}, "name": "f"}\nand\n{"arguments": {}, "name": "g"} <answer>done</answer>'])
def test_of_several_bare_calls_between_prose_none_vanishes(reply):
    items = json.loads(parse_action(reply))
    called = [item["name"] for item in items if "name" in item]
    assert called == ["f", "g"] or called[:1] == ["f"] and "error" in items[1]
