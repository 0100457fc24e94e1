"""Environments as files: the first line holds the facts, the rest is the program."""
import json
from dataclasses import asdict
from pathlib import Path

from machinery.records import Environment


def save_environment(folder: Path, environment: Environment, **facts) -> None:
    facts = {k: v for k, v in asdict(environment).items() if k != "code"} | facts
    folder.mkdir(parents=True, exist_ok=True)
    text = "# " + json.dumps(facts) + "\n" + environment.code + "\n"
    (folder / f"{environment.name}.py").write_text(text, encoding="utf-8", errors="replace")


def load_environment(path: Path) -> Environment:
    """Reads a saved environment; any other Python file is taken as a program without hint or skill."""
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    head, _, code = text.partition("\n")
    try:
        facts = json.loads(head[2:]) if head.startswith("# {") else {}
    except ValueError:   # somebody's comment
        facts = {}
    return Environment(code if facts else text, facts.get("hint", ""), facts.get("skill", ""),
                       facts.get("setting", "games"), facts.get("document", ""), Path(path).stem)
