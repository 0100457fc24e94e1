"""What every lesson of the laptop model is made from: texts of the corpus, their topics, programs from templates.

A file of its own because the three worlds (ladders.py, tool_worlds.py, quizzes.py) and the model (tiny.py) share it.
"""
import json
import re
from pathlib import Path


def sample_texts():
    """The bundled corpus; each of its texts starts with a topic word of its own."""
    with open(Path(__file__).parents[1] / "corpus" / "sample.jsonl", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def texts_for(state):
    """What a run's laptop model is taught with: the run's own documents; without a corpus the bundled ones."""
    return state.corpus.texts if state.corpus else sample_texts()


def topic(text):
    """The word that a text is about: its first, as part of a class name. "" if there is none."""
    words = text.split()
    return re.sub(r"\W|^\d+", "", words[0]).capitalize() if words else ""


def beginning(text):
    """The first eight words: all that the laptop model sees of a document."""
    return " ".join(text.split()[:8])


def fenced(code):
    return f"```python\n{code}\n```"


def fill(template, slots):
    """The template with {name} replaced by slots["name"]. Other braces stay: the programs hold f-strings and dicts."""
    names = "|".join(slots)
    return re.sub(rf"\{{({names})\}}", lambda found: str(slots[found[1]]), template)


def play_copy(code, **given):
    """An instance of the class of one of our own programs, which finds the names `given`. (What a model wrote never
    runs in this process: see sandbox.py.)"""
    (name,) = re.findall(r"^class (\w+)", code, re.MULTILINE)
    space = dict(given)
    exec(code, space)
    return space[name]()
