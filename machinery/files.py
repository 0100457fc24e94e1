"""Environments as files: the first line holds the facts, the rest is the program."""
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from machinery.records import Environment
from machinery.textfiles import read_text

TEXTS = "hint skill setting document".split()   # the facts that loading brings back
FACTS = re.compile(r'#\s*(\{\s*"(?:hint|skill|setting|document|name)"\s*:.*)')   # else it is somebody's comment
UNPLAYABLE = ("syntax", "import", "class", "load")   # verdicts on programs of which not one episode can begin


def save_environment(folder: Path, environment: Environment, **facts) -> None:
    facts = {k: v for k, v in asdict(environment).items() if k != "code"} | facts
    folder.mkdir(parents=True, exist_ok=True)
    text = "# " + json.dumps(facts) + "\n" + environment.code + "\n"
    (folder / f"{environment.name}.py").write_text(text, encoding="utf-8", errors="replace")


def load_environment(path: Path) -> Environment:
    """Reads a saved environment; any other Python file is taken as a program without hint or skill.

    Raises SystemExit where facts are damaged: to go on without the hint would be another experiment.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise SystemExit(f"cannot read the environment {path}: {error.strerror}") from None
    head, _, code = text.lstrip("\ufeff\n").partition("\n")
    facts = FACTS.match(head)
    if facts is None:
        return Environment(text, "", "", "games", "", Path(path).stem)
    try:
        facts = json.loads(facts[1])
        problem = ", ".join(key for key in TEXTS if not isinstance(facts.get(key, ""), str))
    except (ValueError, RecursionError) as error:
        problem = str(error)
    if problem:
        raise SystemExit(f"{path}:1: this line holds what was saved with the program, and is damaged ({problem}). "
                         f"Mend it, or delete it: then the program is played without hint and skill")
    return Environment(code, facts.get("hint", ""), facts.get("skill", ""), facts.get("setting", "games"),
                       facts.get("document", ""), Path(path).stem)


def check_setting(environments: list[Environment], setting, where: str) -> None:
    """Ends in one line where one of them was made for another setting; `where` is the flag that named them."""
    for environment in environments:
        if environment.setting != setting.name:
            raise SystemExit(f"{where} was not made for --setting {setting.name}: {environment.name}")


def refusals(box, setting, environments: list[Environment]) -> list[str]:
    """For each environment why it cannot be played, in the words of sandbox.py --check; "" if it can.

    Whether it should be is for whoever gave the folder to say: a game that junk wins is played all the same.
    """
    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(lambda environment: setting.validate(box, environment), environments))
    return [verdict.reason if verdict.reason.startswith(UNPLAYABLE) else "" for verdict in verdicts]
