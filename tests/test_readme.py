"""The READMEs keep what they promise: commands that exist, flags that are known, links that lead somewhere."""
import argparse
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

import evaluate
import train

ROOT = Path(__file__).parent.parent
READMES = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md")), ROOT / "study" / "PAPERS.md"]
DRAWERS = "machinery settings laptop benchmarks study".split()


def commands_of(text):
    """The shell commands in code blocks and in backquotes that start with python or torchrun, each a list of words."""
    lines = text.replace("\\\n", " ").split("\n")
    found, fenced = [], False
    for line in lines:
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            found.append(line.strip())
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    found += re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)
    parts = [part.strip() for command in found for part in command.split("&&")]
    return [shlex.split(part, comments=True) for part in parts if re.match(r"(python|torchrun) ", part)]


def script_and_arguments(words):
    """(name of the script or module, what it is given): ["python", "-m", "a.b", "c"] -> ("a.b", ["c"])"""
    if words[0] == "torchrun":
        at = next(i for i, word in enumerate(words) if word.endswith(".py"))
        return words[at], words[at + 1:]
    if words[1] == "-m":
        return words[2], words[3:]
    return words[1], words[2:]


COMMANDS = [(str(path.relative_to(ROOT)), words) for path in READMES
            for words in commands_of(path.read_text(encoding="utf-8"))]


def test_commands_are_found():
    text = ("```\na\npip install x && python a.py --b 1   # a comment\n```\nUse `python -m c.d e`, not `f`.\n\n"
            "    torchrun --n 8 g.py \\\n        --h\n")
    assert sorted(commands_of(text)) == [["python", "-m", "c.d", "e"], ["python", "a.py", "--b", "1"],
                                         ["torchrun", "--n", "8", "g.py", "--h"]]
    assert script_and_arguments(["python", "-m", "c.d", "e"]) == ("c.d", ["e"])
    assert script_and_arguments(["torchrun", "--n", "8", "g.py", "--h"]) == ("g.py", ["--h"])
    for drawer in ("", *DRAWERS):
        assert any(name == str(Path(drawer, "README.md")) for name, _ in COMMANDS), drawer


@pytest.mark.parametrize("name, words", COMMANDS, ids=lambda value: " ".join(value) if type(value) is list else value)
def test_a_command_names_a_script_and_flags_that_exist(name, words, capsys):
    script, arguments = script_and_arguments(words)
    if script.endswith(".py"):
        assert (ROOT / script).exists(), f"{name}: no {script}"
    else:
        assert importlib.util.find_spec(script) is not None, f"{name}: no module {script}"
    if script == "train.py":
        recipes = {word: "spade" for word in arguments if word == "NAME"}   # any one will do
        parses(train.parse, [recipes.get(word, word) for word in arguments], capsys)
    if script == "evaluate.py":
        parses(evaluate_flags, arguments, capsys)


def parses(parse, arguments, capsys):
    """The real parser takes the flags, or stops only because it was asked for help or to list, or where a run that the
    README makes up should be.
    """
    try:
        parse(arguments)
    except SystemExit as stop:
        said = capsys.readouterr().err
        made_up = "wants the folder of a run" in said or "--pool runs/NAME/environments holds no .py files" in said
        assert stop.code in (0, None) or made_up, said


class Parsed(Exception):
    """evaluate.main() has read its flags."""


def evaluate_flags(arguments):
    real = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser, argv=None):
        real(parser, argv)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Parsed):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        evaluate.main(arguments)


@pytest.mark.parametrize("words", [["--no-such-flag"], ["--recipe", "no-such-recipe"], ["--k", "many"]])
def test_a_wrong_flag_of_train_is_noticed(words, capsys):
    with pytest.raises(AssertionError):
        parses(train.parse, words, capsys)


def test_a_wrong_flag_of_evaluate_is_noticed(capsys):
    with pytest.raises(AssertionError):
        parses(evaluate_flags, ["--no-such-flag"], capsys)


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere_and_lines_are_short(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        file, _, heading = target.partition("#")
        linked = (path.parent / file) if file else path
        assert linked.exists(), target
        if heading:
            assert heading in anchors(linked.read_text(encoding="utf-8")), target
    long = [line for line in text.splitlines() if len(line) > 125 and not line.startswith("|")]
    assert not long


def anchors(text):
    """The names that GitHub gives to headings: lower case, hyphens for blanks, no other signs."""
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_readme_is_one_read():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 180
    for drawer in DRAWERS:
        assert f"]({drawer}/" in text, f"nothing leads to {drawer}"


@pytest.mark.parametrize("name", DRAWERS)
def test_a_drawers_readme_names_each_of_its_files(name):
    text = (ROOT / name / "README.md").read_text(encoding="utf-8")
    for file in (ROOT / name).glob("*.py"):
        assert file.name == "__init__.py" or file.name in text, file.name


def test_no_difference_is_told_without_a_reason():
    text = (ROOT / "study" / "PAPERS.md").read_text(encoding="utf-8")
    told = text[text.index("## What differs"):]
    rows = [line for line in told.splitlines() if line.startswith("| ")]
    assert len(rows) > 30
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 3 and all(cells), row
