"""What the Designer builds on: corpus C, environment memory M, and environments as files.

A file of its own because it has the state that a run must save, while designer.py has none.

What it teaches: grounding. Documents keep the programs varied (without them the paper's Designer wrote one
maze 41 times in a row), memories keep them at the edge of what the Agent can do (SPADE, section 3.3).

What it leaves out: embeddings, novelty scores, deduplication beyond "the same program" (sandbox.py).
"""
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass
class Environment:
    """What the Designer emits. `code` defines a class ...Env with reset(seed) and step(action)."""
    code: str
    hint: str
    skill: str
    setting: str
    document: str
    name: str


class Corpus:
    """Documents to ground programs in: JSONL with a `text` field, each cut to its first `words` words.

    Drawn without replacement until all are used, then in a new order. `drawn`, the number of draws so far, is
    the whole state: the order of round n is a function of (seed, n).
    """

    def __init__(self, path: str, words: int, seed: int = 0):
        self.words, self.seed, self.drawn, self.texts, self.skipped = words, seed, 0, [], []
        try:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError as error:
            raise SystemExit(f"cannot read the corpus {path}: {error.strerror}. --corpus FILE wants JSON lines "
                             f'such as {{"text": "A fraction is ..."}}; --no-corpus trains without.') from None
        for number, line in enumerate(lines, 1):
            try:
                text = json.loads(line)["text"] if line.strip() else ""
                if text.strip():
                    self.texts.append(text.encode("utf-8", "replace").decode())   # half a surrogate pair is no text
            except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
                self.skipped.append(f"{path}:{number}: {type(error).__name__}: {error}")
        if self.skipped:
            print(f"corpus: {len(self.skipped)} malformed lines skipped, first {self.skipped[0]}")
        if not self.texts:
            raise SystemExit(f"the corpus {path} holds no document: each line needs a non-empty \"text\"")

    def draw(self) -> str:
        round_, position = divmod(self.drawn, len(self.texts))
        order = random.Random(f"{self.seed} corpus {round_}").sample(range(len(self.texts)), len(self.texts))
        self.drawn += 1
        return " ".join(self.texts[order[position]].split()[:self.words])


class EnvironmentMemory:
    """The last `capacity` environments with how they fared (SPADE's M), first in first out.

    A record: {name, skill, code, hint, win_rate, reward, regret, rollout}. Examples to imitate have a win rate in
    [.15, .85]; of the ten highest by `select` ("regret" or "reward") two are drawn. One to avoid is below .1 or
    above .9. With `select="random"` any may be imitated, however it fared.
    """

    def __init__(self, capacity: int = 200, select: str = "regret"):
        self.capacity, self.select, self.records = capacity, select, []

    def add(self, records: list[dict]) -> None:
        self.records = (self.records + records)[-self.capacity:] if self.capacity else []

    def examples(self, skill: str, rng: random.Random, n: int = 2) -> tuple[list[dict], list[dict]]:
        """(examples to imitate, examples to avoid), same skill only; both may be empty."""
        same = [r for r in self.records if r["skill"] == skill]
        good = same
        if self.select != "random":
            good = [r for r in same if 0.15 <= r["win_rate"] <= 0.85]
            good = sorted(good, key=lambda r: -r[self.select])[:max(3 * n, 10)]
        bad = [r for r in same if r["win_rate"] < 0.1 or r["win_rate"] > 0.9]
        return rng.sample(good, min(n, len(good))), rng.sample(bad, min(1, len(bad)))


# --- environments as files: the first line holds the facts, the rest is the program ---

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
