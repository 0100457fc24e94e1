"""Recipes: each runs, and differs from its base in the named thing only; pools, frozen and remote Designers."""
import importlib.util
import json
import threading
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

import designer
import grpo
import tests.tiny_model as tiny_model
import train
from designer import Order
from laptop import ladders
from laptop import pools as laptop_pools
from machinery import endpoint, recipes
from machinery.engines import Reply
from machinery.files import load_environment
from machinery.policy import Policy
from machinery.recipes import RECIPES
from settings import rlve, spice
from train import parse

QUESTION = '{"type": "integer", "question": "What is 6 times 7?", "answer": 42}'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    return tiny_model.build(tmp_path_factory.mktemp("random") / "m")


@pytest.fixture(scope="module")
def other_model(tmp_path_factory):
    return tiny_model.build(tmp_path_factory.mktemp("other") / "m", seed=1)


def small(model, recipe, run_dir, *flags):
    n = "8" if RECIPES[recipe].get("setting") == "corpus" else "3"
    return parse(["--model", model, "--recipe", recipe, "--run-dir", str(run_dir), "--rollouts", "2", "--n-envs", n,
                  "--plays", "2", "--max-tokens", "12", "--design-tokens", "24", "--hint-tokens", "8", "--brief",
                  "--context", "600", "--document-words", "8", "--show-every", "0", "--attempts", "1", *flags])


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# --- the table ---

def given(recipe, model):
    """The flags that a recipe needs besides its name when no laptop model is there to fill them in."""
    return {"fixed-grpo": ["--pool", "/tmp"], "fixed-designer": ["--designer-model", model],
            "strong-challenger": ["--designer-model", model]}.get(recipe, [])


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_runs(recipe, model, tmp_path):
    flags = given(recipe, model)
    if recipe == "fixed-grpo":
        flags = ["--pool", str(write_pool(tmp_path / "pool"))]
    if recipe == "spade-tools":
        model = tiny_model.build(tmp_path / "m", template=tiny_model.HERMES)
    args = small(model, recipe, tmp_path / "run", *flags)
    if recipe == "fixed-rlve" and importlib.util.find_spec("Gym") is None:
        with pytest.raises(SystemExit, match="pip install rlve-gym"):
            train.main(args)
        return
    train.main(args)
    assert [line["rollout"] for line in metrics_of(tmp_path / "run")] == [0, 1]


DIFFERS = {  # recipe: its base, and all that may differ from it
    "spade-regret": ("spade", {"designer_reward"}), "learning-potential": ("spade", {"designer_reward"}),
    "solve-rate": ("spade", {"designer_reward"}), "no-corpus": ("spade", {"no_corpus"}),
    "no-memory": ("spade", {"memory"}), "two-skills": ("spade", {"skills", "skills_per_set"}),
    "frozen-designer": ("spade", {"freeze_designer"}),
    "frozen-designer-no-memory": ("spade", {"freeze_designer", "memory"}),
    "spade-4b": ("spade", {"model", "band", "context"}),
    "spade-8b": ("spade", {"model", "kl", "design_tokens", "thinking"}),
    "fixed-designer": ("spade", {"designer_model", "freeze_designer"}),
    "fixed-grpo": ("spade", {"pool", "k", "hint_plays"}),
    "fixed-rlve": ("spade", {"setting", "k", "hint_plays", "n_envs", "temperature", "max_turns"}),
    "spice-regret": ("spice", {"designer_reward", "hint_plays"}),
    "spice-mcq": ("spice", {"challenger_format", "skills"}),
    "spice-free": ("spice", {"challenger_format", "skills"}), "spice-no-corpus": ("spice", {"no_corpus"}),
    "absolute-zero": ("spice", {"designer_reward"}), "threshold": ("spice", {"designer_reward"}),
    "r-zero": ("spice", {"designer_reward"}), "strong-challenger": ("spice", {"designer_model", "freeze_designer"}),
}


@pytest.mark.parametrize("recipe", DIFFERS)
def test_only_the_named_thing_changes(recipe):
    base, named = DIFFERS[recipe]
    mine, its = (asdict(parse(["--model", "Qwen3-4B", "--recipe", name, *given(name, "x")])) for name in (recipe, base))
    assert {key for key in mine if mine[key] != its[key]} - {"recipe", "heldout"} == named


def test_papers_values():
    spice_args = parse(["--model", "Qwen3-4B", "--recipe", "spice"])
    expected = dict(setting="corpus", designer_reward="variance", k=1, temperature=1.0, plays=8, n_envs=64, kl=0.0,
                    agent_advantage="center", loss_reduction="constant", designer_weight=1.0, invalid_reward="-0.1",
                    lr=1e-6, rollouts=640, hint_plays=0, memory=0)
    assert {key: getattr(spice_args, key) for key in expected} == expected
    assert spice_args.n_envs == 8 * spice.PER_DOCUMENT
    tools = parse(["--model", "Qwen3-4B", "--recipe", "spade-tools"])
    assert (tools.setting, tools.k, tools.kl, tools.skills_per_set) == ("tools", 8, 0.005, 6)


def test_the_laptop_keeps_its_sizes_and_any_flag_wins():
    args = parse(["--recipe", "spice"])
    assert (args.rollouts, args.document_words, args.n_envs) == (110, 8, 24)       # sizes
    assert (args.k, args.designer_reward, args.hint_plays) == (1, "variance", 0)   # the method
    args = parse(["--recipe", "spice", "--k", "3", "--rollouts", "7", "--designer-reward", "threshold"])
    assert (args.k, args.rollouts, args.designer_reward) == (3, 7, "threshold")
    assert parse(["--recipe", "spice", "--designer-reward", "regret"]).hint_plays == 8
    assert not parse(["--recipe", "frozen-designer", "--no-freeze-designer"]).freeze_designer
    assert parse(["--recipe", "fixed-grpo"]).pool == "tiny"
    assert parse(["--recipe", "strong-challenger"]).designer_model == "tiny"


@pytest.mark.parametrize("flags, message", [
    (["--recipe", "fixed-grpo"], "give --pool DIR"),
    (["--recipe", "spice", "--n-envs", "12"], "multiple of 8"),
    (["--recipe", "spice", "--designer-reward", "regret", "--no-corpus"], "the document is the hint"),
    (["--recipe", "spice-regret", "--hint-plays", "0"], "says nothing without hinted plays"),
    (["--recipe", "spice", "--challenger-format", "essay"], "invalid choice"),
])
def test_refused_combinations_say_why(flags, message, capsys):
    with pytest.raises(SystemExit):
        parse(["--model", "Qwen3-4B", *flags])
    assert message in capsys.readouterr().err


def test_the_table_of_differences(capsys):
    with pytest.raises(SystemExit):
        parse(["--recipes"])
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[2:]}
    assert list(rows) == list(RECIPES)
    assert rows["spade"].endswith("nothing") and rows["threshold"].endswith("spice, designer_reward=threshold")
    assert all(row in rows[name] for name, (row, _, _) in recipes.ROWS.items())


def test_no_corpus_keeps_the_prompt():
    (with_document,) = designer.design_messages(Order("s", "Optimization", "", "TEXT"), brief=False)
    (without,) = designer.design_messages(Order("s", "Optimization", "", ""), brief=False)
    paragraph = "Base it on one idea of this document:\n<document>\nTEXT\n</document>\n\n"
    assert paragraph in with_document["content"]
    assert with_document["content"].replace(paragraph, "") == without["content"]


# --- pools ---

def write_pool(folder):
    folder.mkdir()
    for i in range(4):
        code = ladders.program("Mathematical Reasoning", "Primes", i + 1, 1)
        (folder / f"ladder{i}.py").write_text(code)   # files of anybody: no line of facts
    return folder


def roles_of_updates(monkeypatch):
    roles, update = [], grpo.update
    monkeypatch.setattr(grpo, "update", lambda policy, samples, **options:
                        roles.append([s.role for s in samples]) or update(policy, samples, **options))
    return roles


def test_a_former_runs_environments_are_a_pool(monkeypatch, model, tmp_path):
    programs = [ladders.program("Mathematical Reasoning", word, 2, 1) for word in ("Primes", "Circles", "Waves")]

    def sample(self, prompts, limit, temperature, progress=None):
        said = [f"```python\n{code}\n```" for code in programs] if limit > 8 else ["Add 1 to each digit."] * 3
        return [Reply([5, 6], [-1.0, -1.0], text, True) for text in said[:len(prompts)]]
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "sample", sample)
        train.main(small(model, "spade", tmp_path / "first", "--hint-plays", "2"))
    assert metrics_of(tmp_path / "first")[0]["designer/valid"] == 1.0
    pool = tmp_path / "first" / "environments"
    names = {load_environment(f).name for f in pool.glob("*.py")}
    roles = roles_of_updates(monkeypatch)
    train.main(small(model, "fixed-grpo", tmp_path / "second", "--pool", str(pool)))
    plays = [json.loads(line) for line in (tmp_path / "second" / "plays.jsonl").read_text().splitlines()]
    assert len(names) == 3 and {p["environment"][6:] for p in plays} == names   # behind the rollout they serve in
    assert not any(p["hinted"] for p in plays)
    assert {role for batch in roles for role in batch} <= {"agent"} and len(roles) == 2
    with pytest.raises(SystemExit, match="was not made for --setting corpus"):
        train.main(small(model, "spice", tmp_path / "third", "--pool", str(pool)))


def test_the_laptops_own_pool_is_sound():
    import sandbox
    pool = laptop_pools.untaught()
    assert len({e.name for e in pool}) == 96 and {e.skill for e in pool} == set(ladders.TEMPLATES)
    with sandbox.Sandbox() as box:
        assert all(sandbox.validate(box, e.code).valid for e in pool[:6])


def test_rlve_levels_rise_at_90_percent_of_128_and_forget():
    levels = {"Sorting": [3, 0, 0]}
    code = json.dumps({"generator": "Sorting", "level": 3})
    lower = json.dumps({"generator": "Sorting", "level": 2})
    rlve.note(levels, [(code, 1.0)] * 127 + [(lower, 1.0)] * 500)
    assert levels["Sorting"] == [3, 127, 127]                  # only the top level counts
    rlve.note(levels, [(code, 0.99)])
    assert levels["Sorting"] == [4, 0, 0]                      # 127 of 128
    code = json.dumps({"generator": "Sorting", "level": 4})
    rlve.note(levels, [(code, 1.0)] * 115 + [(code, 0.0)] * 13)
    assert levels["Sorting"] == [4, 0, 0]                      # 89.8 %: stays, and counts anew
    rlve.note(levels, [(code, 1.0)] * 116 + [(code, -1.0)] * 12)
    assert levels["Sorting"] == [5, 0, 0]


# --- another Designer ---

def test_a_frozen_designer_writes_with_its_own_weights_and_is_not_trained(monkeypatch, model, other_model, tmp_path):
    roles, asked, sample = roles_of_updates(monkeypatch), [], Policy.sample
    monkeypatch.setattr(Policy, "sample", lambda self, prompts, *rest:
                        asked.append((self.name, len(prompts))) or sample(self, prompts, *rest))
    flags = ["--designer-model", other_model, "--k", "1", "--rollouts"]
    train.main(small(model, "fixed-designer", tmp_path / "whole", *flags, "3"))
    assert {role for batch in roles for role in batch} <= {"agent"}
    assert {name for name, n in asked} == {other_model} and sum(n for _, n in asked) == 9
    # Resuming gives the same programs: the frozen model's randomness follows from the rollout alone
    train.main(small(model, "fixed-designer", tmp_path / "parts", *flags, "2"))
    train.main(parse(["--resume", str(tmp_path / "parts"), "--rollouts", "3"]))
    written = [[f.read_text() for f in sorted((tmp_path / run / "environments/rejected").glob("*.py"))]
               for run in ("whole", "parts")]
    assert len(written[0]) == 9 and written[0] == written[1]


class Server:
    """An OpenAI-compatible server on the loopback. `script` says how the next requests are met, the last for ever."""

    def __init__(self, script, port=0):
        self.script, self.seen, self.lock = list(script), [], threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.seen.append((self.path, self.headers["Authorization"], body))
                    what = outer.script.pop(0) if len(outer.script) > 1 else outer.script[0]
                if what == "hang":
                    time.sleep(2)
                if what == "drop":
                    return
                status, text = what if isinstance(what, tuple) else (200, None)
                answer = text if text is not None else json.dumps({"choices": [
                    {"message": {"content": what}, "finish_reason": "stop"}]})
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, *_):
                pass
        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(endpoint, "PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.setattr(endpoint, "TIMEOUT", 0.5)


MESSAGES = [{"role": "user", "content": "ask"}]


def ask(server, prompts=1):
    remote = endpoint.Endpoint(server.url + "#some/model")
    return remote.sample([remote.prompt_ids(MESSAGES)] * prompts, 100, 0.7)


def test_remote_order_and_reply(impatient, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    with Server([QUESTION]) as server:
        replies = ask(server, 20)
    assert [r.text for r in replies] == [QUESTION] * 20 and all(r.finished for r in replies)
    path, key, body = server.seen[0]
    assert path == "/v1/chat/completions" and key == "Bearer s3cret"
    assert body == {"model": "some/model", "messages": MESSAGES, "temperature": 0.7, "max_completion_tokens": 100}


@pytest.mark.parametrize("trouble", [(429, "slow down"), (500, "oops"), (503, ""), "hang", "drop", (200, "{ no json")])
def test_passing_trouble_is_waited_out(trouble, impatient):
    with Server([trouble, trouble, QUESTION]) as server:
        assert ask(server)[0].text == QUESTION
    assert len(server.seen) == 3


def test_a_model_that_knows_one_temperature_only(impatient):
    with Server([(400, '{"error": {"param": "temperature"}}'), QUESTION]) as server:
        assert ask(server)[0].text == QUESTION
    assert "temperature" not in server.seen[1][2]


@pytest.mark.parametrize("trouble, attempts, message", [
    ((429, "slow down"), 4, "no answer in 4 attempts: 429"), ("hang", 4, "timed out"),
    ((401, "bad key"), 1, "refuses: 401 Unauthorized bad key.*OPENAI_API_KEY"), ((404, "no model"), 1, "refuses: 404"),
    ((200, '{"error": "x"}'), 1, "sent no chat completion")])
def test_lasting_trouble_ends_with_its_reason(trouble, attempts, message, impatient):
    with Server([trouble]) as server:
        with pytest.raises(endpoint.Unreachable, match=message):
            ask(server)
    assert len(server.seen) == attempts


def test_a_cut_reply_is_unfinished_and_a_url_needs_a_name(impatient):
    cut = json.dumps({"choices": [{"message": {"content": None}, "finish_reason": "length"}]})
    with Server([(200, cut)]) as server:
        assert (ask(server)[0].text, ask(server)[0].finished) == ("", False)
    with pytest.raises(SystemExit, match="#NAME"):
        endpoint.Endpoint("http://127.0.0.1:1/v1")


def test_a_dead_server_stops_the_run_with_a_checkpoint_and_the_run_goes_on_elsewhere(impatient, model, tmp_path):
    def flags(folder, server):
        return small(model, "strong-challenger", folder, "--designer-model", server.url + "#m", "--rollouts", "3",
                     "--save-every", "0")
    with Server([QUESTION]) as server:
        train.main(flags(tmp_path / "whole", server))
    with Server([QUESTION] * 16 + [(503, "gone")]) as server:   # two sets of eight
        with pytest.raises(SystemExit, match="out of reach: .*503.*--resume"):
            train.main(flags(tmp_path / "parts", server))
    assert len(metrics_of(tmp_path / "parts")) == 2
    assert (tmp_path / "parts" / "checkpoint").resolve().name == "checkpoint-2"
    with Server([QUESTION]) as server:
        train.main(parse(["--resume", str(tmp_path / "parts"), "--designer-model", server.url + "#m"]))
    whole, parts = metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "parts")
    assert [line["rollout"] for line in parts] == [0, 1, 2]
    for a, b in zip(whole, parts):   # to the last bit, time aside
        assert {k: v for k, v in a.items() if "time" not in k} == {k: v for k, v in b.items() if "time" not in k}
    assert whole[0]["designer/valid"] == 1.0


def test_a_server_that_never_was(impatient, model, tmp_path):
    with Server([QUESTION]) as server:
        url = server.url
    with pytest.raises(SystemExit, match="out of reach"):
        train.main(small(model, "strong-challenger", tmp_path / "r", "--designer-model", url + "#m"))
    assert (tmp_path / "r" / "checkpoint" / "model.safetensors").exists()


def test_rlve_problems_know_their_answers():
    pytest.importorskip("Gym", reason="rlve-gym is not installed")
    import random
    levels = {"Sorting": [6, 0, 0]}
    problems = rlve.draw(60, levels, random.Random(3), "00000")
    assert problems == rlve.draw(60, {"Sorting": [6, 0, 0]}, random.Random(3), "00000")
    assert {json.loads(e.code)["level"] for e in problems if e.skill == "Sorting"} <= {3, 4, 5, 6}
    assert {json.loads(e.code)["level"] for e in problems if e.skill != "Sorting"} == {0}
    rewards = []
    for environment in problems:
        world = rlve.RLVE.open(None, environment)
        assert world.reset(1) == world.reset(2)             # every play meets the same instance
        reference = world.problem.parameter.get("reference_answer")
        assert world.step("no box")[1] < 1
        if reference is not None:
            rewards.append(world.step(f"so \\boxed{{{reference}}}")[1])
    assert len(rewards) > 40 and set(rewards) == {1.0}
