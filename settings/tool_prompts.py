"""What Designer, hint writer, judge and Agent are told in the tool-use setting. Its programs and rules are tools.py.

Try it:  python -m settings.tool_prompts        prints the order for one world
"""
import random

import designer
from machinery.records import Environment, Order

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
- Only the standard library; no files, network, processes, threads or print(); the same seed gives the same world.'''


def design_messages(order: Order, brief: bool) -> list[dict]:
    """The order for one world. Domain and variant are drawn by the slot's name and document."""
    if brief:
        return designer.design_messages(order, brief)
    rng = random.Random(f"{order.name} {order.document}")
    domain = rng.choice(DOMAINS)
    [variant] = rng.choices(list(VARIANTS), VARIANTS.values())
    text = f"Details may come from this text, which is not the subject:\n<text>\n{order.document}\n</text>"
    parts = ["You write worlds of tools that train assistants, in Python.",
             f"Design a world of tools that trains {order.skill.lower()}: {SKILLS[order.skill]}. It is about a "
             f"{domain}. {variant}", text if order.document else "", RULES, designer.memory_block(order)]
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


if __name__ == "__main__":
    (message,) = design_messages(Order("demo", "Error Recovery", "", "A library lends books for three weeks."), False)
    print(message["content"])
