"""A resumed run is the run that was interrupted, bit for bit, whatever interrupted it.

The real train.main in processes of their own, with a random model that plays in real sandboxes. Only the Designer is
helped: its tokens are sampled as ever, but two of three programs are replaced by one that works.
"""
import json
import multiprocessing
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import agent
import designer
import grpo
import tests.tiny_model as tiny_model
import train
from designer import Environment
from machinery.policy import Policy

processes = multiprocessing.get_context("forkserver")   # each starts from a clean process that has imported all this
processes.set_forkserver_preload(["tests.test_resume"])
torch.set_num_threads(1)

GAME = '''
class {name}Env:
    def reset(self, seed=None):
        self.seed, self.said = seed, 0
        return f"{name} {{seed % 1000}}, {{self.said}}", {{}}
    def step(self, action):
        self.said += sum(map(ord, action))
        over = self.said % 3 == 0
        return f"sum {{self.said}}", float((self.said + self.seed) % 2), over, False, {{}}
'''
FLAGS = ["--k", "2", "--n-envs", "3", "--plays", "4", "--hint-plays", "2", "--context", "400", "--max-tokens", "30",
         "--max-turns", "3", "--lr", "1e-3", "--temperature", "0.9", "--designer-reward", "learning-potential",
         "--brief", "--document-words", "6", "--save-every", "1", "--show-every", "0", "--attempts", "2"]


def helped_design(policy, box, setting, orders, args):
    prompts = [policy.prompt_ids([{"role": "user", "content": f"{s.skill} {s.document} {len(s.good)} {len(s.bad)}"}])
               for s in orders]
    made = []
    for order, prompt, reply in zip(orders, prompts, policy.sample(prompts, 20, args.temperature)):
        code = GAME.format(name=f"Game{order.name[:9].replace('_', '')}")
        environment = Environment(code, "even sums win", order.skill, setting.name, order.document, order.name)
        refused = "_002_" in order.name
        made.append(designer.Design(order, prompt, reply, reply.text, None, "syntax: as ever") if refused else
                    designer.Design(order, prompt, reply, code, environment))
    return made


def child(argv, event, out):
    """train.py with these arguments; `event` (name, rollout) goes wrong on the way."""
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    torch.set_num_threads(1)
    designer.design = helped_design
    if event and event[0].startswith("SIGTERM"):
        send_sigterm(event[0].removeprefix("SIGTERM while "), event[1])
    what, when = event or ("", -1)
    real_write, real_update, updates = Policy.write, grpo.update, []

    def write(policy, folder, state):
        real_write(policy, folder, state)
        if folder.name == f"checkpoint-{when}" and what == "kill -9 in a save":
            (folder / "optimizer.pt").write_bytes((folder / "optimizer.pt").read_bytes()[:1000])
            os.kill(os.getpid(), signal.SIGKILL)

    def update(*arguments, **options):
        updates.append(1)
        if len(updates) == when + 1:
            if what == "kill -9 in a rollout":
                os.kill(os.getpid(), signal.SIGKILL)
            for _ in range({"Ctrl-C": 1, "Ctrl-C twice": 2}.get(what, 0)):
                os.kill(os.getpid(), signal.SIGINT)
        if what == "no folder" and len(updates) == when:
            (Path(argv[argv.index("--run-dir") + 1]) / "environments").write_text("in the way")
        if what.startswith("full disk"):
            size = int(what.split()[-1]) if len(updates) == when else resource.RLIM_INFINITY   # bytes of any one file
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        return real_update(*arguments, **options)
    Policy.write, grpo.update = write, update
    train.main(train.parse(argv))


def send_sigterm(phase, when):
    """A scheduler's notice the `when`-th time that this phase of a rollout is about to begin."""
    owner, name = {"designing": (designer, "design"), "playing": (agent, "play_shown"), "learning": (grpo, "update"),
                   "saving": (Policy, "write")}[phase]
    real, calls = getattr(owner, name), []

    def phase_begins(*arguments, **options):
        calls.append(1)
        if len(calls) == when:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **options)
    setattr(owner, name, phase_begins)


def run(argv, event=None, out="/dev/null"):
    process = processes.Process(target=child, args=([str(a) for a in argv], event, str(out)))
    process.start()
    process.join(100)
    if process.is_alive():
        process.kill()
        raise TimeoutError(Path(out).read_text()[-2000:])
    return process.exitcode


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model.build(tmp_path_factory.mktemp("m") / "m", short=True)


@pytest.fixture(scope="module")
def straight(model, tmp_path_factory):
    """Four rollouts without a pause: a window of two, a regeneration, a window of two."""
    top = tmp_path_factory.mktemp("straight")
    flags = ["--model", model, *FLAGS]
    assert run([*flags, "--rollouts", 4, "--run-dir", top / "r"], out=top / "log") == 0, (top / "log").read_text()
    return flags, top / "r"


def lines(folder, name):
    """JSON lines without what a clock measured."""
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")}
            for line in (folder / name).read_text().splitlines()]


def assert_same_run(a, b):
    assert lines(a, "metrics.jsonl") == lines(b, "metrics.jsonl")
    assert lines(a, "plays.jsonl") == lines(b, "plays.jsonl")
    x, y = (load_file(f / "checkpoint" / "model.safetensors") for f in (a, b))
    assert x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)
    x, y = (torch.load(f / "checkpoint" / "optimizer.pt", weights_only=True)["state"] for f in (a, b))
    assert x.keys() == y.keys() and all(torch.equal(x[name][k], y[name][k]) for name in x for k in x[name])
    x, y = (json.loads((f / "checkpoint" / "state-0.json").read_text()) for f in (a, b))
    assert x == y
    x, y = ({p.relative_to(f): p.read_text() for p in (f / "environments").rglob("*.py")} for f in (a, b))
    assert x == y
    assert [p.name for p in b.glob("checkpoint-*")] == ["checkpoint-4"]        # nothing half-written is left


def test_there_is_something_to_compare(straight):
    _, folder = straight
    metrics = lines(folder, "metrics.jsonl")
    assert [m["rollout"] for m in metrics] == [0, 1, 2, 3]
    assert all(m["loss/grad_norm"] > 0 for m in metrics)
    assert ["designer/reward_all" in m for m in metrics] == [False, True, False, True]
    state = json.loads((folder / "checkpoint" / "state-0.json").read_text())
    assert len(state["memory"]) == 4 and any(state["learning_potential"].values())


@pytest.mark.parametrize("what, when, saved", [
    ("kill -9 in a rollout", 1, 1), ("kill -9 in a rollout", 2, 2),   # saved: the rollouts of the last checkpoint.
    ("kill -9 in a save", 2, 1), ("kill -9 in a save", 3, 2),         # After 1 of them a window is open; after 2
    ("Ctrl-C", 0, 1), ("Ctrl-C", 1, 2),                               # the next thing is a new set
])
def test_two_parts_are_the_whole(straight, tmp_path, what, when, saved):
    flags, whole = straight
    folder, log = tmp_path / "r", tmp_path / "log"
    code = run([*flags, "--rollouts", 4, "--run-dir", folder], (what, when), log)
    assert code == (1 if what == "Ctrl-C" else -signal.SIGKILL)
    assert (folder / "checkpoint").resolve().name == f"checkpoint-{saved}"
    if what == "Ctrl-C":
        assert f"stopped after {saved} rollouts. Go on with: python train.py --resume {folder}" in log.read_text()
    assert run(["--resume", folder], out=log) == 0, log.read_text()[-2000:]
    assert_same_run(whole, folder)


@pytest.mark.parametrize("phase, when", [("designing", 2), ("playing", 2), ("learning", 2), ("saving", 1)])
def test_a_schedulers_notice_lets_the_rollout_finish(straight, tmp_path, phase, when):
    flags, whole = straight
    folder, log = tmp_path / "r", tmp_path / "log"
    assert run([*flags, "--rollouts", 4, "--run-dir", folder], (f"SIGTERM while {phase}", when), log) == 1
    said = log.read_text()
    assert "SIGTERM: this rollout is finished and saved first" in said and "Traceback" not in said
    assert f"Go on with: python train.py --resume {folder}" in said
    assert run(["--resume", folder], out=log) == 0, log.read_text()[-2000:]
    assert_same_run(whole, folder)


def test_raised_rollouts_go_on_where_a_window_ended(straight, tmp_path):
    flags, whole = straight
    assert run([*flags, "--rollouts", 2, "--run-dir", tmp_path / "r"]) == 0
    assert run(["--resume", tmp_path / "r", "--rollouts", 4]) == 0
    assert_same_run(whole, tmp_path / "r")


def test_a_disk_too_full_for_a_checkpoint_costs_that_checkpoint_only(straight, tmp_path):
    flags, whole = straight
    folder, log = tmp_path / "r", tmp_path / "log"
    assert run([*flags, "--rollouts", 4, "--run-dir", folder], ("full disk 150000", 2), log) == 0, log.read_text()
    said = [line for line in log.read_text().splitlines() if "could not save after 2 rollouts" in line]
    assert len(said) == 1 and "free some space" in said[0]
    assert_same_run(whole, folder)


def stops_and_goes_on(straight, tmp_path, event, said, mend=lambda folder: None):
    """The run ends with one clear message; `mend` is what a person then does; resumed, it is the uninterrupted run."""
    flags, whole = straight
    folder, log = tmp_path / "r", tmp_path / "log"
    assert run([*flags, "--rollouts", 4, "--run-dir", folder], event, log) == 1
    assert said.format(folder=folder) in log.read_text() and "Traceback" not in log.read_text()
    mend(folder)
    assert run(["--resume", folder], out=log) == 0, log.read_text()[-2000:]
    assert_same_run(whole, folder)


def test_a_last_checkpoint_that_cannot_be_written_is_no_success(straight, tmp_path):
    def unfinished(folder):
        assert not (folder / "summary.json").exists()
    stops_and_goes_on(straight, tmp_path, ("full disk 150000", 4), "The last checkpoint is older: saving failed",
                      mend=unfinished)


def test_a_disk_too_full_for_a_line_stops_the_run_and_loses_nothing(straight, tmp_path):
    stops_and_goes_on(straight, tmp_path, ("full disk 1500", 2), "make room, then python train.py --resume {folder}")


def test_programs_that_cannot_be_written_stop_the_run_and_lose_nothing(straight, tmp_path):
    stops_and_goes_on(straight, tmp_path, ("no folder", 1), "cannot write to {folder}: ",
                      mend=lambda folder: (folder / "environments").unlink())


def refusal(argv, capsys):
    with pytest.raises(SystemExit):
        train.parse([str(a) for a in argv])
    return capsys.readouterr().err.splitlines()[-1]


def test_a_resumed_run_keeps_its_flags(straight, capsys, tmp_path):
    _, folder = straight
    args = train.parse(["--resume", str(folder)])
    assert (args.k, args.designer_reward, args.lr, args.resume) == (2, "learning-potential", 1e-3, str(folder))
    assert train.parse(["--resume", str(folder), "--rollouts", "9", "--k", "2"]).rollouts == 9
    assert "began with rollouts = 4" in refusal(["--resume", folder, "--rollouts", 3], capsys)
    assert "began with recipe = 'spade'" in refusal(["--resume", folder, "--recipe", "no-memory"], capsys)
    assert "began with setting = 'games'" in refusal(["--resume", folder, "--setting", "corpus"], capsys)
    assert "--resume wants the folder of a run" in refusal(["--resume", tmp_path], capsys)
    (tmp_path / "args.json").write_text('{"from": "another version"}')
    assert "--resume wants the folder of a run" in refusal(["--resume", tmp_path], capsys)
    with pytest.raises(SystemExit, match="already holds a run"):
        train.main(train.parse(["--run-dir", str(folder)]))
    (tmp_path / "args.json").write_text((folder / "args.json").read_text())
    with pytest.raises(SystemExit, match="has no checkpoint yet"):
        train.main(train.parse(["--resume", str(tmp_path)]))
    (tmp_path / "checkpoint").mkdir()
    for n in (0, 1):
        (tmp_path / "checkpoint" / f"state-{n}.json").write_text("{}")
    with pytest.raises(SystemExit, match="saved by 2 processes"):
        train.main(train.parse(["--resume", str(tmp_path)]))


def test_a_second_ctrl_c_stops_at_once(model, tmp_path):
    flags = ["--model", model, *FLAGS, "--rollouts", 4, "--run-dir", tmp_path / "r"]
    assert run(flags, ("Ctrl-C twice", 1), tmp_path / "log") == 1
    said = (tmp_path / "log").read_text()
    assert "this rollout is finished and saved first" in said and "Traceback" not in said
    assert f"stopped at once. Go on from the last checkpoint: python train.py --resume {tmp_path / 'r'}" in said
    assert [m["rollout"] for m in lines(tmp_path / "r", "metrics.jsonl")] == [0]
