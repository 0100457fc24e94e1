r"""Tool calls at both ends: read from what a model wrote, and run by the world that it plays in.

A file of its own because this is the protocol; which worlds are designed, and which are sound, is tools.py.

What it teaches: function calling is text, and a parser that is trained against must lose nothing: a call that
is dropped silently is a reward that lies. Three families cover most open chat models:

    Hermes, Qwen      <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>
    Qwen3-Coder, 3.5  <tool_call><function=f><parameter=x>1</parameter></function></tool_call>
    Llama 3           {"name": "f", "parameters": {"x": 1}}, also behind <|python_tag|>; <function=f>{"x": 1}

Other tokenizers may bring a `response_template` (transformers 5.13 or newer), and transformers reads replies
by it. Not those of the three: it gives up a whole reply for one broken call, lets the last of two equal keys
win, and skips text between XML parameters.

What it leaves out: Llama's built-in Python-like calls; calls inside a thought, since thinking is not acting.
"""
import contextlib
import json
import random
import re

from agent import acted

MOST_CALLS, LONGEST = 16, 50_000   # calls a turn, characters of an action
CALL = r"(?P<function><function=)|(?P<json><\|python_tag\|>|<tool_call>(?!\s*<function=))"
MARK = re.compile(r"(?P<answer><answer>)|" + CALL)
BARE = re.compile(r'''(?P<answer><answer>) | (?P<json>(?= (?:\[\s*)? \{\s*   # calls without a mark, or a list of them
    (?:"id"\s*:\s*"[^"]*"\s*,\s*)? "(?:name|type|function|arguments|parameters)"\s*:))''', re.X)
NEXT = re.compile(r"</tool_call>|(?=<tool_call>|<function=|<\|python_tag\|>|<answer>)|\Z")
ANSWER = re.compile(r"(.*?)(?:</answer>|(?=<tool_call>|<function=|<\|python_tag\|>)|\Z)", re.S)
NAME, END = re.compile(r"([^<>\n]+)>\s*"), re.compile(r"\s*(?:</function>|\Z)")
# a value may hold any tag but the beginning of the next one: then its own end is missing
PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>\n?((?:(?!<parameter=).)*?)\n?</parameter>", re.S)


def parse_action(text: str, tokenizer=None) -> str:
    """The action for ToolEnv.step(): a JSON list of {name, arguments}, {error} and {answer}, as they come.

    '<tool_call>{"name": "f"}</tool_call> Done?' -> '[{"name": "f", "arguments": {}}]';   "Done?" -> '[]'
    """
    said = acted(text)
    marks = MARK if re.search(CALL, said) else BARE
    items, at = [], 0
    while found := marks.search(said, at):
        at = found.end()
        try:
            at = READERS[found.lastgroup](said, at, items)
        except (ValueError, RecursionError) as problem:
            items.append(error(problem))
            at = NEXT.search(said, at).end()
    if not items and getattr(tokenizer, "response_template", None):
        try:
            calls = tokenizer.parse_response(text, prefix="").get("tool_calls", [])
            items = [call_of(call) for call in calls]
        except (ValueError, KeyError, RecursionError) as problem:
            items = [error(problem)]
    if len(items) > MOST_CALLS:
        items[MOST_CALLS:] = [error(f"only the first {MOST_CALLS} calls of a turn are made")]
    try:
        action = json.dumps(items)
    except RecursionError:
        action = json.dumps([error("nested too deeply")])
    return action if len(action) <= LONGEST else json.dumps([error(f"more than {LONGEST} characters")])


def error(problem) -> dict:
    """What the model gets to read instead of a result."""
    return {"error": f"Error: {problem}. This was not done, nor what follows it in the same block."}


def unique(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


DECODER = json.JSONDecoder(object_pairs_hook=unique, strict=False)   # strict: no line breaks in strings


def call_of(value) -> dict:
    """{name, arguments} from the JSON object of a call."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):   # {"type": .., "function": {..}}
        value = {key: item for key, item in value.items() if key != "function"} | value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError('a call is a JSON object with "name" and "arguments"')
    given = [key for key in ("arguments", "parameters") if key in value]
    unknown = set(value) - {"name", "type", "id", *given}
    if unknown or len(given) > 1:
        raise ValueError(f'a call has "name" and "arguments", not {", ".join(sorted(unknown) or given)}')
    arguments = value[given[0]] if given else {}
    if arguments in ("", None):   # how some servers write that there are none
        arguments = {}
    if isinstance(arguments, str):   # JSON inside JSON, as in OpenAI's protocol
        arguments = DECODER.decode(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a call are a JSON object")
    return {"name": value["name"], "arguments": arguments}


# --- readers: what follows a mark goes into `items`; returned is where to go on ---

def read_answer(text, at, items):
    found = ANSWER.match(text, at)
    items.append({"answer": found[1]})
    return found.end()


def read_json(text, at, items):
    """One JSON value or several: Llama separates parallel calls by a semicolon or a new line."""
    start = at
    while at == start or text.startswith(("{", "["), at):
        value, at = DECODER.raw_decode(text, re.compile(r"\s*").match(text, at).end())
        for item in value if isinstance(value, list) and value else [value]:   # one by one: those before a fault stay
            items.append(call_of(item))
        at = re.compile(r"[\s;]*").match(text, at).end()
    end = NEXT.search(text, at)
    rest = text[at:end.start()].strip()
    if rest and (end[0] or rest[0] in '}],:"'):   # prose may follow, but not inside the tags
        raise ValueError(f"behind a call there is {rest[:40]}")
    return end.end() if end[0] else at   # in prose there may be more of them


def read_function(text, at, items):
    """NAME> and then <parameter=KEY>VALUE</parameter> ... or a JSON object, and </function>."""
    name = NAME.match(text, at)
    if name is None:
        raise ValueError("<function=NAME> is not closed")
    at, call = name.end(), {"name": name[1].strip(), "arguments": {}, "untyped": True}
    if text.startswith("{", at):
        arguments, at = DECODER.raw_decode(text, at)
        call = call_of({"name": call["name"], "arguments": arguments})
    while found := PARAMETER.match(text, at):
        at = found.end()
        call["arguments"] = unique([*call["arguments"].items(), (found[1].strip(), found[2])])
    end = END.match(text, at)
    if end is None:
        raise ValueError(f"{call['name']}: no </function> but {text[at:at + 40].strip()}")
    after = NEXT.search(text, end.end())
    if after[0] and (rest := text[end.end():after.start()].strip()):
        raise ValueError(f"behind </function> there is {rest[:40]}")
    items.append(call)
    return after.end()


READERS = {"answer": read_answer, "json": read_json, "function": read_function}


class ToolEnv:
    """The base class of every world. It runs in the sandbox only, which is given its source."""
    tools = []

    def __init_subclass__(cls):
        if {"reset", "step"} & set(vars(cls)):
            raise TypeError("reset and step belong to ToolEnv; a world is built in setup(rng)")

    def call(self, tool, /, **arguments):
        """One step of a solution."""
        return json.dumps([{"name": tool, "arguments": arguments}])

    def reset(self, seed=None):
        self._instructions, self._met = list(self.setup(random.Random(seed))), 0
        nothing = {"type": "object", "properties": {}}   # what a tool without parameters may leave out
        self.tools = [{**tool, "parameters": nothing | tool.get("parameters", {})} for tool in self.tools]
        tools = [{"type": "function", "function": tool} for tool in self.tools]
        return self._instructions[0][0], {"tools": tools, "instructions": len(self._instructions),
                                          "fault": self._fault()}

    def _fault(self):
        """What is wrong with the fresh world, or ""."""
        for tool in self.tools:
            method, schema = getattr(self, "tool_" + tool["name"], None), tool["parameters"]
            if method is None:
                return f"tools: there is no method tool_{tool['name']}"
            code, required = method.__code__, set(schema.get("required", []))
            named, positional = code.co_varnames[1:code.co_argcount + code.co_kwonlyargcount], code.co_argcount - 1
            optional = {*named[positional - len(method.__defaults__ or ()):positional], *(method.__kwdefaults__ or ())}
            if (set(named) != set(schema["properties"]) or not set(named) - optional <= required <= set(named)
                    or code.co_flags & 12):   # *args or **kwargs
                return f"tools: tool_{tool['name']} and its schema name other parameters"
        for number, (_, predicate) in enumerate(self._instructions, 1):
            try:
                if predicate():
                    return f"predicate: number {number} is true at reset"
            except Exception as error:
                return f"predicate: number {number} raises {type(error).__name__}: {error}"
        return ""

    def step(self, action):
        items, results, finished = json.loads(action), [], False
        for item in items:
            if "answer" in item:
                finished = self._met == len(self._instructions) and item["answer"].strip().lower() == "done"
                results.append("Well done." if finished else "Not done. " + self._pending())
            else:
                results.append(item["error"] if "error" in item else self._run(**item))
        text = "\n".join(results) or "No tool call was found. " + self._pending()
        called = any("answer" not in item for item in items)   # the tools speak, else the user
        info = {"results": results if called else [], "met": self._met}
        return text, float(finished), finished, False, info

    def _run(self, name, arguments, untyped=False):
        """The text that one call returns; whatever goes wrong in a tool is such a text as well."""
        schemas, met = {tool["name"]: tool["parameters"]["properties"] for tool in self.tools}, self._met
        try:
            if name not in schemas:
                raise NameError(f"there is no tool {name}, there are {', '.join(schemas)}")
            result = getattr(self, "tool_" + name)(**self._typed(arguments, schemas[name], untyped))
            result = result if isinstance(result, str) else json.dumps(result, default=str)
        except Exception as error:
            result = f"Error: {type(error).__name__}: {error}"
        while self._met < len(self._instructions) and self._instructions[self._met][1]():
            self._met += 1
        return result[:4000] + ("\n\n" + self._pending() if self._met > met else "")

    def _typed(self, arguments, schemas, untyped):
        """The arguments, if they are what is declared. All of an XML call is text and gets its type here."""
        types = {"string": [str], "integer": [int], "number": [int, float], "boolean": [bool],
                 "array": [list], "object": [dict], "null": [type(None)]}
        for key, value in arguments.items():
            schema = schemas.get(key, {})
            kinds = schema.get("type", [])
            kinds = kinds if isinstance(kinds, list) else [kinds]
            if untyped and "string" not in kinds and value not in schema.get("enum", []):
                with contextlib.suppress(ValueError):   # what is no JSON stays a text
                    value = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
                arguments[key] = value
            allowed = [kind for name in kinds for kind in types.get(name, [type(value)])] or [type(value)]
            if type(value) not in allowed or value not in schema.get("enum", [value]):
                raise ValueError(f"{key} is {json.dumps(value)}, its schema is {json.dumps(schema)}")
        return arguments

    def _pending(self):
        if self._met < len(self._instructions):
            return "The user says: " + self._instructions[self._met][0]
        return "All instructions are met. Finish with <answer>done</answer>"
