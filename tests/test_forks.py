"""The README's forks: each block is put into a copy of the repository, which then trains for two rollouts.

The copy runs the real train.py in a process of its own, with a random model in real sandboxes. Only the Designer is
helped: its tokens are sampled and learnt from as ever, but what they say is replaced by a program that holds.
"""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch
from safetensors.torch import load_file

import tests.tiny_model as tiny_model

ROOT = Path(__file__).parent.parent
DRAWERS = "machinery settings laptop benchmarks study corpus".split()

HELPED = '''
import train
from machinery.policy import Policy

PROGRAM = """
class Parity{number}Env:
    def reset(self, seed=None):
        self.seed = seed or 0
        return "say something", {{}}
    def step(self, action):
        odd = (sum(map(ord, action)) + self.seed + {number}) % 2 == 1
        return "so", float(odd and action.strip() != ""), True, False, {{}}
"""
sampled = Policy.sample

def sample(policy, prompts, max_new_tokens, temperature, what=""):
    replies = sampled(policy, prompts, max_new_tokens, temperature)
    for number, reply in enumerate(replies):
        reply.finished = True
        reply.text = PROGRAM.format(number=number) if max_new_tokens == 24 else "odd sums win"
    return replies

Policy.sample = sample
train.main(train.parse())
'''
FLAGS = ["--rollouts", "2", "--k", "1", "--n-envs", "4", "--plays", "4", "--hint-plays", "4", "--skills-per-set", "1",
         "--context", "600", "--design-tokens", "24", "--hint-tokens", "8", "--max-tokens", "12", "--brief",
         "--document-words", "8", "--lr", "1e-3", "--show-every", "0"]


# --- the blocks of the README ---

def forks() -> dict[str, str]:
    """The title of each fork and its lines: the diff of the README's section is cut at lines that begin with ##."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Forking\n")[2]
    block = re.search(r"^```diff\n(.*?)^```", text, flags=re.M | re.S)[1]
    _, *parts = re.split(r"^## ", block, flags=re.M)
    return dict(part.split("\n", 1) for part in parts)


FORKS = forks()
REWARD, LOSS, SETTING, TWO, METRIC, LOGGER = FORKS


def files_of(block: str) -> dict[str, list[str]]:
    """What the block says of each file: the header "# path" or "# path, a new file", and its lines."""
    files = {}
    for line in block.splitlines():
        if line.startswith("# "):
            lines = files[line[2:]] = []
        else:
            lines.append(line)
    return files


def changed(text: str, lines: list[str]) -> str:
    """`text` with each + line below the lines without + that precede it, and without the - lines. What is not new must
    stand exactly once in the text.
    """
    places = []   # (lines as they stand, as they will)
    before = "+"
    for line in lines:
        mark, content = line[:1], line[1:]
        if mark != "+" and before == "+":
            places.append(([], []))
        if mark != "+":
            places[-1][0].append(content)
        if mark != "-":
            places[-1][1].append(content)
        before = mark
    found = text.splitlines()
    for old, new in places:
        begins = [i for i in range(len(found)) if found[i:i + len(old)] == old]
        assert len(begins) == 1, f"{len(begins)} times in the file: {old}"
        found[begins[0]:begins[0] + len(old)] = new
    return "\n".join(found) + "\n"


def test_lines_are_put_where_the_readme_says():
    text = "a\nb\nc\nd\n"
    assert changed(text, [" a", "+x", "+y", "-c", "+z"]) == "a\nx\ny\nb\nz\nd\n"
    assert changed(text, [" b", " c", "+x"]) == "a\nb\nc\nx\nd\n"
    assert changed(text, ["-b", "-c"]) == "a\nd\n"
    with pytest.raises(AssertionError, match="2 times in the file"):
        changed("a\na\n", [" a", "+x"])
    with pytest.raises(AssertionError, match="0 times in the file"):
        changed("aa\n", [" a", "+x"])


@pytest.mark.parametrize("title", FORKS)
def test_a_fork_has_at_most_25_lines_and_changes_at_most_two_files(title):
    existing = [name for name in files_of(FORKS[title]) if not name.endswith(", a new file")]
    assert len(FORKS[title].splitlines()) <= 25
    assert 1 <= len(existing) <= 2


# --- copies that run ---

@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model.build(tmp_path_factory.mktemp("random") / "m", short=True, max_position_embeddings=8192)


def forked(title: str, folder: Path) -> Path:
    """A copy of the repository with this fork."""
    for script in ROOT.glob("*.py"):
        folder.mkdir(exist_ok=True)
        shutil.copy(script, folder)
    for drawer in DRAWERS:
        shutil.copytree(ROOT / drawer, folder / drawer, ignore=shutil.ignore_patterns("__pycache__"))
    for name, lines in files_of(FORKS[title]).items():
        path = folder / name.removesuffix(", a new file")
        if name.endswith(", a new file"):
            assert not path.exists() and all(line.startswith("+") for line in lines)
            path.write_text("".join(line[1:] + "\n" for line in lines), encoding="utf-8")
        else:
            path.write_text(changed(path.read_text(encoding="utf-8"), lines), encoding="utf-8")
    (folder / "helped.py").write_text(HELPED, encoding="utf-8")
    return folder


def python(folder: Path, *arguments) -> str:
    env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=folder, env=env, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run(title: str, model: str, tmp_path: Path, *flags) -> tuple[Path, list[dict]]:
    """The run folder of two rollouts of this fork, and their metrics."""
    folder = tmp_path / "run"
    copy = forked(title, tmp_path / "copy")
    python(copy, "helped.py", "--model", model, "--run-dir", folder, *FLAGS, *flags)
    metrics = metrics_of(folder)
    assert [line["rollout"] for line in metrics] == [0, 1]
    assert all(line["designer/valid"] == 1 and line["loss/grad_norm"] > 0 for line in metrics)
    return folder, metrics


def metrics_of(folder: Path) -> list[dict]:
    """Without what a clock measured."""
    return [{key: value for key, value in json.loads(line).items() if not key.startswith("time/")}
            for line in (folder / "metrics.jsonl").read_text().splitlines()]


def programs_of(folder: Path) -> list[dict]:
    return [json.loads(path.read_text().splitlines()[0][2:]) for path in (folder / "environments").glob("*.py")]


def test_a_reward_of_ones_own(model, tmp_path):
    folder, metrics = run(REWARD, model, tmp_path, "--recipe", "spade-gated")
    programs = programs_of(folder)
    for program in programs:
        hinted, unhinted = fmean(program["hinted"]), fmean(program["unhinted"][0])
        assert program["reward"] == (max(0.0, hinted - unhinted) if hinted >= 0.5 else 0.0)
    assert len(programs) == 8 and any(program["reward"] > 0 for program in programs)
    assert json.loads((folder / "args.json").read_text())["designer_reward"] == "gated"


RATIOS = '''
import torch, grpo
old = torch.zeros(3)
log_ratio = torch.tensor([0.2, -0.4, 0.1], requires_grad=True)   # of a sample of two tokens, and of one with one
loss, _ = grpo.policy_loss(log_ratio, old, old, torch.tensor([1.0, 1.0, -1.0]), lengths=[2, 1])
loss.sum().backward()
print(*loss.tolist(), *log_ratio.grad.tolist())
'''


def test_a_ratio_for_a_whole_sample_and_several_steps(model, tmp_path):
    """By hand: mean log-ratios -0.1 and 0.1, ratios 0.9048 and 1.1052; each of the first two tokens has half of the
    gradient of both their losses.
    """
    _, metrics = run(LOSS, model, tmp_path, "--lr", "1e-4")
    assert all(0 < line["loss/clip_fraction"] < 1 for line in metrics)   # of a single step it is 0
    found = [float(number) for number in python(tmp_path / "copy", "-c", RATIOS).split()]
    assert found == pytest.approx([-0.9048, -0.9048, 1.1052, -0.9048, -0.9048, 1.1052], abs=1e-4)


def test_a_setting_of_ones_own(model, tmp_path):
    folder, _ = run(SETTING, model, tmp_path, "--setting", "merchants", "--context", "6000")
    assert {program["setting"] for program in programs_of(folder)} == {"merchants"}
    plays = [json.loads(line) for line in (folder / "plays.jsonl").read_text().splitlines()]
    openings = {play["hinted"]: play["turns"][0][1] for play in plays}
    assert openings[True] == "Get a bargain.\nsay something\nodd sums win\nYour move, in \\boxed{}:"
    assert openings[False] == "Get a bargain.\nsay something\n\nYour move, in \\boxed{}:"
    designs = json.loads((folder / "checkpoint" / "state-0.json").read_text())["designs"]
    assert {design["order"]["skill"] for design in designs} == {"Bluffing"}   # the second set's
    assert all("a merchant for training bluffing" in tiny_model.tokenizer().decode(d["prompt"]) for d in designs)


def test_two_models_that_learn(model, tmp_path):
    folder, metrics = run(TWO, model, tmp_path)
    assert all(line["designer/loss/grad_norm"] > 0 for line in metrics)
    start, agent, designer = (load_file(Path(path) / "model.safetensors") for path in
                              (model, folder / "checkpoint", folder / "checkpoint" / "designer"))
    for one, other in ((start, agent), (start, designer), (agent, designer)):
        assert any(not torch.equal(one[name], other[name]) for name in one)

    half = tmp_path / "half"   # stopped after a rollout and resumed, it is the run in one go: both are saved
    python(tmp_path / "copy", "helped.py", "--model", model, "--run-dir", half, *FLAGS, "--rollouts", "1")
    python(tmp_path / "copy", "helped.py", "--resume", half, "--rollouts", "2")
    assert metrics_of(half) == metrics
    again = load_file(half / "checkpoint" / "designer" / "model.safetensors")
    assert all(torch.equal(designer[name], again[name]) for name in designer)


def test_a_metric_of_ones_own_is_in_the_report(model, tmp_path):
    folder, metrics = run(METRIC, model, tmp_path)
    assert all(line["agent/turns_hinted"] == 1 for line in metrics)   # these games are over after a reply
    page = (folder / "report.html").read_text()
    chart = page.partition("<h3>Turns</h3>")[2].partition("</figure>")[0]
    assert "turns hinted" in chart and chart.count("<path") >= 2


def test_a_logger(model, tmp_path, monkeypatch):
    """The real package is not needed here: what it is called with is."""
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "wandb.py").write_text('''
import json
def note(what, **said):
    with open("wandb.jsonl", "a") as file:
        file.write(json.dumps([what, said]) + "\\n")
def init(project, id, resume, config):
    note("init", id=id, resume=resume, plays=config["plays"])
def log(facts, step):
    note("log", facts=facts, step=step)
''')
    monkeypatch.setenv("PYTHONPATH", str(fake))
    _, metrics = run(LOGGER, model, tmp_path)
    calls = [json.loads(line) for line in (tmp_path / "copy" / "wandb.jsonl").read_text().splitlines()]
    assert calls[0] == ["init", {"id": "run", "resume": "allow", "plays": 4}]
    assert [(what, said["step"]) for what, said in calls[1:]] == [("log", 0), ("log", 1)]
    for (_, said), line in zip(calls[1:], metrics):
        assert said["facts"].items() >= {key: value for key, value in line.items() if key != "rollout"}.items()
