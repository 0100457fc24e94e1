r"""spice.py, answers.py: questions as strict JSON, answers that attack the judge, and who learns from what."""
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import agent
import grpo
import tests.tiny_model as tiny_model
import train
from designer import Environment, Order, Refused
from laptop import quizzes as tiny_spice
from machinery import metrics
from machinery.engines import Reply
from machinery.policy import Policy
from settings import answers, spice
from train import parse

ROOT = Path(__file__).parent.parent
INTEGER = '{"type": "integer", "question": "What is 6 times 7?", "answer": %s}'
STRING = '{"type": "string", "question": "Who found the law of refraction?", "answer": "Snell"}'
MCQ = '{"type": "mcq", "question": "Which is prime?", "options": %s, "answer": %s}'
OPTIONS = '{"A": "4", "B": "5", "C": "6", "D": "8"}'
LATEX = r'{"type": "expression", "question": "What is $\frac{1}{2} + \theta$?\nSimplify.", "answer": "%s"}'

# (what is wrong or right about it, reply, the answer that is read or the kind of refusal)
REPLIES = [
    ("bare", INTEGER % 42, "42"),
    ("number as a string", INTEGER % '"42"', "42"),
    ("negative", INTEGER % -7, "-7"),
    ("blank around", "\n\n  " + INTEGER % 42 + "  \n", "42"),
    ("fenced", "```json\n" + INTEGER % 42 + "\n```", "42"),
    ("fenced, no language", "```\n" + INTEGER % 42 + "\n```", "42"),
    ("fenced, upper case", "```JSON\n" + INTEGER % 42 + "\n```", "42"),
    ("thoughts before the fence", "6 x 7 = 42, so {this} works.\n```json\n" + INTEGER % 42 + "\n```\n", "42"),
    ("another fence before", "```python\nprint(6 * 7)\n```\n```json\n" + INTEGER % 42 + "\n```", "42"),
    ("after a thought", '<think>{"type": 1}</think>' + INTEGER % 42, "42"),
    ("several lines", '{\n "type": "string",\n "question": "Who?",\n "answer": "Snell"\n}', "Snell"),
    ("string", STRING, "Snell"),
    ("letter", MCQ % (OPTIONS, '"B"'), "B"),
    ("numbers as options", MCQ % ('{"A": 4, "B": 5, "C": 6.5, "D": 8}', '"B"'), "B"),
    ("decimals stay as written", LATEX % "0.50", "0.50"),
    ("LaTeX with doubled backslashes", LATEX % r"\\frac{1}{2}", r"\frac{1}{2}"),
    ("LaTeX with single backslashes", LATEX % r"\frac{1}{2}", r"\frac{1}{2}"),
    ("LaTeX that looks like \\t, \\n, \\b, \\r", LATEX % r"\times\nabla\beta\rho", r"\times\nabla\beta\rho"),
    ("LaTeX that looks like \\u", LATEX % r"x\uparrow y", r"x\uparrow y"),
    ("an escaped quote", r'{"type": "string", "question": "Who said \"I\"?", "answer": "an \u0041"}', "an A"),
    ("unicode", '{"type": "string", "question": "Où?", "answer": "Zürich 東京"}', "Zürich 東京"),

    ("empty", "", "empty"),
    ("blank", " \n ", "empty"),
    ("a thought alone", "<think>hm</think>\n", "empty"),
    ("prose", "I would ask what 6 times 7 is.", "json"),
    ("prose around bare JSON", "Here it is: " + INTEGER % 42, "json"),
    ("trailing comma", '{"type": "integer", "question": "6 x 7?", "answer": 42,}', "json"),
    ("single quotes", (INTEGER % 42).replace('"', "'"), "json"),
    ("cut off", (INTEGER % 42)[:-5], "json"),
    ("two objects", INTEGER % 42 + STRING, "json"),
    ("two fences", "```json\n" + INTEGER % 42 + "\n```\n```json\n" + STRING + "\n```", "two questions"),
    ("two in a list", f"[{INTEGER % 42}, {STRING}]", "type"),
    ("two in one object", INTEGER.replace("}", ', "question2": "And 7 x 8?"}') % 42, "fields"),
    ("a field twice", INTEGER.replace('"answer"', '"question": "7 x 8?", "answer"') % 42, "json"),
    ("answer missing", '{"type": "integer", "question": "6 x 7?"}', "fields"),
    ("declined with empty strings", '{"type": "string", "question": "", "answer": ""}', "question"),
    ("answer is a list", INTEGER % "[42]", "answer"),
    ("answer is an object", INTEGER % '{"value": 42}', "answer"),
    ("answer is null", INTEGER % "null", "answer"),
    ("answer is true", INTEGER % "true", "answer"),
    ("answer is NaN", INTEGER % "NaN", "json"),
    ("answer is Infinity", LATEX.replace('"%s"', "-Infinity"), "json"),
    ("answer is no integer", INTEGER % "42.0", "answer"),
    ("answer is an integer of 5,000 digits", INTEGER % ("9" * 5000), "json"),
    ("answer is a sentence", STRING.replace("Snell", "It was Snell of Leiden"), "answer"),
    ("answer is only a dot", STRING.replace("Snell", "."), "answer"),
    ("wrong letter", MCQ % (OPTIONS, '"E"'), "answer"),
    ("small letter", MCQ % (OPTIONS, '"b"'), "answer"),
    ("two letters", MCQ % (OPTIONS, '"AB"'), "answer"),
    ("the option instead of its letter", MCQ % (OPTIONS, '"5"'), "answer"),
    ("three options", MCQ % ('{"A": "4", "B": "5", "C": "6"}', '"B"'), "options"),
    ("five options", MCQ % (OPTIONS.replace("}", ', "E": "9"}'), '"B"'), "options"),
    ("the same option twice", MCQ % (OPTIONS.replace("8", "5"), '"B"'), "options"),
    ("options as a list", MCQ % ('["4", "5", "6", "8"]', '"B"'), "options"),
    ("an option that is a list", MCQ % (OPTIONS.replace('"8"', "[8]"), '"B"'), "options"),
    ("options of a free question", INTEGER.replace('"answer"', f'"options": {OPTIONS}, "answer"') % 42, "fields"),
    ("unknown type", STRING.replace("string", "essay"), "type"),
    ("type is a list", STRING.replace('"string"', "[]"), "type"),
    ("question is a number", STRING.replace('"Who found the law of refraction?"', "5"), "question"),
    ("question is far too long", STRING.replace("Who", "Who " * 1500), "question"),
    ("a lone half of a character", STRING.replace("Snell", "\\ud800"), "json"),
    ("a number, not an object", "42", "type"),
    ("deeply nested", "[" * 15_000, "json"),
    ("10^6 characters", "a" * 10**6, "long"),
    ("10^6 brackets", "{" * 10**6, "long"),
]


def order(format_="mixed", document="A text."):
    return Order("q", format_, "document 0", document)


@pytest.mark.parametrize("reply, expected", [row[1:] for row in REPLIES], ids=[row[0] for row in REPLIES])
def test_replies(reply, expected):
    start = time.time()
    try:
        verdict = json.loads(spice.parse_question(reply, order()).code)["answer"]
    except Refused as refusal:
        verdict = str(refusal).split(":")[0]
    assert verdict == expected
    assert time.time() - start < 2


def test_repaired_latex_reaches_the_question_as_written():
    question = json.loads(spice.parse_question(LATEX % "1", order()).code)["question"]
    assert question == "What is $\\frac{1}{2} + \\theta$?\nSimplify."


def test_the_format_that_was_ordered_is_kept():
    with pytest.raises(Refused, match="type"):
        spice.parse_question(STRING, order("mcq"))
    with pytest.raises(Refused, match="type"):
        spice.parse_question(MCQ % (OPTIONS, '"B"'), order("free"))
    assert spice.parse_question(STRING, order("free")).hint == "A text."


def test_an_expression_that_the_judge_cannot_read_is_invalid():
    assert spice.validate(None, spice.parse_question(LATEX % r"\frac{x}{2}", order())).valid
    verdict = spice.validate(None, spice.parse_question(LATEX % r"\frac{{{", order()))
    assert not verdict.valid and verdict.reason.startswith("answer: ")


# --- answers ---

@pytest.mark.parametrize("kind, gold, answer, right", [
    ("integer", "42", "42", True), ("integer", "42", " 42 ", True), ("integer", "1000", "1,000", True),
    ("integer", "42", "+42", True), ("integer", "42", "42.0", True), ("integer", "42", r"\text{42}", True),
    ("integer", "1000000", "1,000,000", True), ("integer", "12", "1,2", False), ("integer", "204", "2,04", False),
    ("integer", "70", r"\$70", True), ("expression", "18.90", r"\$18.90", True),
    ("integer", "42", "43", False), ("integer", "42", "", False), ("integer", "5", "$5$ or $6$", False),
    ("integer", "5", "5, 6", False), ("integer", "5", "forty-two", False),
    ("expression", r"\frac{1}{2}", "1/2", True), ("expression", r"\frac{1}{2}", "0.5", True),
    ("expression", "x^2+2x+1", "(x+1)^2", True), ("expression", r"\sqrt{8}", r"2\sqrt{2}", True),
    ("expression", "x^2+2x+1", "(x-1)^2", False), ("expression", "x", "y", False),
    ("expression", r"\pi", "3.14159265", True), ("expression", "[0, 1)", "[0, 1]", False),
    ("string", "Krebs cycle", "the  Krebs Cycle.", True), ("string", "Snell", r"\text{Snell}", True),
    ("string", "Snell", "Snell of Leiden", False), ("string", "a b", "b a", False),
    ("mcq", "B", "B", True), ("mcq", "B", "b", True), ("mcq", "B", "(B)", True), ("mcq", "B", r"\text{B}", True),
    ("mcq", "B", r"\mathrm{B}", True), ("mcq", "B", r"\textbf{(B)}", True),
    ("mcq", "B", "B. because", True), ("mcq", "B", "B) 5", True), ("mcq", "B", "A", False),
    ("mcq", "B", "A or B", False), ("mcq", "A", "A cat", False), ("mcq", "B", "AB", False), ("mcq", "B", "5", False),
])
def test_answers(kind, gold, answer, right):
    assert answers.is_right(kind, gold, answer) == right


ATTACKS = [
    "9^{9^{9^{9}}}", "10^{10^{10}}", "1000000!", "(10^{6})!!", r"\binom{10^9}{5\cdot 10^8}", r"\prod_{i=1}^{10^8} i",
    r"\sum_{n=1}^{10^{12}} \frac{1}{n^3}", r"\int_0^{10^9} e^{-x^{x^{x}}} dx", "(x+y+z+w)^{200}", "e^{e^{e^{e^{10}}}}",
    "(" * 400, "((1+" * 100 + "1" + "))" * 100, r"\boxed{" * 200, r"\frac{" * 150, r"\sqrt{" * 120 + "2" + "}" * 120,
    "x" * 1000, "1" * 1000, "\x00\x01\x1b[2J", "\u202e42\u0661\u0662", "𝟜𝟚", r"\begin{pmatrix}" + "1&" * 90 + "1",
    "__import__('os').system('exit 1')", "5\n\n6\r7", "%s%n{}{0.__class__}", '"], "x"]\n["1", "1"', "a" * 10**6]


def test_attacks_cost_seconds_and_never_a_crash():
    assert len(ATTACKS) >= 20
    with ThreadPoolExecutor(2) as pool:   # starts both judges, which takes seconds too
        list(pool.map(lambda i: answers.is_right("expression", f"{i}/3", "x"), range(8)))

    def judge(attack):
        start = time.time()
        verdicts = [answers.is_right("expression", "x+1", attack), answers.is_right("string", "x+1", attack),
                    answers.is_right("mcq", "B", attack)]
        return verdicts, time.time() - start
    with ThreadPoolExecutor(2) as pool:   # in threads, as play() calls it
        for attack, (verdicts, seconds) in zip(ATTACKS, pool.map(judge, ATTACKS)):
            assert not any(verdicts) and seconds < 5, attack[:50]
    assert answers.is_right("expression", "1/2", "0.5")


def test_the_judge_serves_threads():
    assert threading.current_thread() is threading.main_thread()
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda i: answers.is_right("expression", str(i), f"{i % 4}.0"), range(32)))
    assert verdicts == [i < 4 for i in range(32)]


def test_the_judge_on_the_command_line():
    done = subprocess.run([sys.executable, str(ROOT / "settings" / "judge.py")], input='["1/2", "0.5"]\n["1", "2"]\n',
                          capture_output=True, text=True, timeout=60)
    assert done.stdout == "true\nfalse\n", done.stderr


# --- the question as an environment ---

def test_the_reasoner_sees_neither_the_document_nor_the_answer_unless_the_book_is_open():
    environment = spice.parse_question(MCQ % (OPTIONS, '"B"'), order(document="Secret text."))
    world = spice.CORPUS.open(None, environment)
    observation, info = world.reset(3)
    assert observation == "Which is prime?\nA) 4\nB) 5\nC) 6\nD) 8"
    for brief in (True, False):
        (closed,), _ = spice.reasoner_messages(observation, info, "", brief)
        (open_,), _ = spice.reasoner_messages(observation, info, environment.hint, brief)
        assert "Secret text." not in closed["content"] and "Secret text." in open_["content"]
    for action, reward in ((r"\boxed{B}", 1.0), (r"\boxed{C}", 0.0), ("B", 0.0), ("", 0.0)):
        assert world.step(action)[1:4] == (reward, True, False)


def test_without_a_corpus_only_the_document_is_missing():
    whole = spice.question_messages(order(document="Snell."), brief=False)[0]["content"]
    bare = spice.question_messages(order(document=""), brief=False)[0]["content"]
    missing = "\nTake its answer from this document:\n<document>\nSnell.\n</document>\n"
    assert whole.count(missing) == 1 and whole.replace(missing, "") == bare


def episode(name, said, outcome="terminated", kind="string"):
    code = json.dumps({"type": kind, "question": "?", "answer": "B"})
    turns = [("user", "?"), ("assistant", said), ("user", "")]
    return agent.Episode(Environment(code, "", "mixed", "corpus", "", name), 0, False, turns=turns, outcome=outcome)


def test_majority_labels_are_what_most_answers_say():
    said = [r"\boxed{Snell}", r"\boxed{ snell.}", r"\boxed{B}", r"\boxed{Snell}?</think> No box.", r"\boxed{Snell}"]
    plays = [episode("one", text) for text in said[:4]] + [episode("one", said[4], "context_limit")]
    other = [episode("two", text, kind="mcq") for text in (r"\boxed{(C)}", r"\boxed{C}", r"\boxed{B}")]
    silent = [episode("three", "nothing")]
    spice.majority_labels(plays + other + silent)
    assert [e.ret for e in plays] == [1, 1, 0, 0, 0]     # a reply that was cut short has no vote and no reward
    assert [e.ret for e in other] == [1, 1, 0]
    assert [e.ret for e in silent] == [0]


# --- the whole loop, with a Challenger that says what the test wants ---

@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model.build(tmp_path_factory.mktemp("random") / "m")


def run_spice(monkeypatch, model, tmp_path, script, *flags, boxed=lambda text: text):
    """Two documents with eight questions each; a reply that starts with an even character is right. Returns the
    batches that the learner was given, and the designs of the last set."""
    batches, update = [], grpo.update
    state = {}

    def sample(self, prompts, limit, temperature, progress=None):
        assert temperature == 1.0
        replies = [script[i % len(script)] for i in range(len(prompts))]
        return [Reply(self.tokenizer.encode(r), [-1.0] * len(self.tokenizer.encode(r)), r, True) for r in replies]

    def record(policy, samples, **options):
        batches.append(list(samples))
        assert options["reduction"] == "constant"
        return update(policy, samples, **options)

    def keep(state_, *rest):
        state["designs"] = state_.designs
        return measure(state_, *rest)
    measure = metrics.measure
    monkeypatch.setattr(Policy, "sample", sample)
    monkeypatch.setattr(grpo, "update", record)
    monkeypatch.setattr(metrics, "measure", keep)
    monkeypatch.setattr(spice, "last_boxed", boxed)
    monkeypatch.setattr(spice, "is_right", lambda kind, gold, answer: ord((answer or "a")[0]) % 2 == 0)
    train.main(parse(["--model", model, "--recipe", "spice", "--run-dir", str(tmp_path / "run"), "--rollouts", "1",
                      "--n-envs", "16", "--max-tokens", "8", "--design-tokens", "24", "--context", "600", "--brief",
                      "--document-words", "8", *flags]))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    return batches, state, lines[0]


def test_one_valid_question_of_each_document_trains_the_reasoner(monkeypatch, model, tmp_path):
    poison = INTEGER % '"never a gold answer"'
    script = [STRING, MCQ % (OPTIONS, '"B"'), poison, INTEGER % 42, "nonsense", STRING, STRING, poison]
    (batch,), state, facts = run_spice(monkeypatch, model, tmp_path, script)
    designs = state["designs"]
    assert len({d.order.document for d in designs}) == 2 and len({d.order.group for d in designs}) == 2
    assert [d.environment is not None for d in designs] == [True, True, False, True, False, True, True, False] * 2
    assert facts["designer/valid"] == 10 / 16 and facts["refused/json"] == 2 and facts["refused/answer"] == 4
    reasoners = [s for s in batch if s.role == "agent"]
    challengers = [s for s in batch if s.role == "designer"]
    assert len(challengers) == 16 and len(reasoners) == 2 * 8
    trained = {s.group for s in reasoners}
    assert len(trained) == 2 and trained <= {d.name for d in designs if d.environment}
    for d in designs:
        assert not (d.environment is None and d.name in {s.group for s in reasoners})
        if d.environment:   # the variance is that of the very answers that train the Reasoner
            assert len(d.window.unhinted) == 8 and d.window.hinted == []
        if d.name in trained:
            returns = [s.reward for s in reasoners if s.group == d.name]
            assert returns == d.window.unhinted
            centred = [r - sum(returns) / 8 for r in returns]
            assert [s.advantage for s in reasoners if s.group == d.name] == pytest.approx(centred)   # no std
    for group in {d.order.group for d in designs}:
        mine = [s for s in challengers if s.group == group]
        assert sum(s.advantage for s in mine) == pytest.approx(0)
        mean = sum(s.reward for s in mine) / 8
        assert [s.advantage for s in mine] == pytest.approx([s.reward - mean for s in mine])   # weight 1, no std
        assert sorted(s.reward for s in mine)[:3] == [-0.1] * 3


def test_a_question_may_appear_twice(monkeypatch, model, tmp_path):
    _, state, facts = run_spice(monkeypatch, model, tmp_path, [STRING])
    assert facts["designer/valid"] == 1.0 and facts["designer/unique"] == 1 / 16


def test_regret_with_the_document_as_the_hint(monkeypatch, model, tmp_path):
    _, state, facts = run_spice(monkeypatch, model, tmp_path, [STRING], "--designer-reward", "regret")
    window = state["designs"][0].window
    assert len(window.hinted) == 8 and "agent/return_hinted" in facts
    plays = [json.loads(line) for line in (tmp_path / "run" / "plays.jsonl").read_text().splitlines()]
    document = state["designs"][0].environment.document
    assert document and all((document in p["turns"][0][1]) == p["hinted"] for p in plays
                            if p["environment"] == state["designs"][0].name)


def test_r_zero_without_a_corpus_labels_by_majority(monkeypatch, model, tmp_path):
    flags = ["--designer-reward", "r-zero", "--no-corpus", "--max-tokens", "200"]   # now and then it ends by itself
    script = [MCQ % (OPTIONS, '"B"'), "nonsense"]   # the Challenger says B; whoever comes to an end says C
    (batch,), state, facts = run_spice(monkeypatch, model, tmp_path, script, *flags, boxed=lambda text: "C")
    assert state["designs"][0].order.document == ""
    plays = [json.loads(line) for line in (tmp_path / "run" / "plays.jsonl").read_text().splitlines()]
    assert {p["outcome"] for p in plays} > {"terminated"}
    assert all(p["return"] == float(p["outcome"] == "terminated") for p in plays)
    paid = [ret for d in state["designs"] for ret in d.window.unhinted]
    assert sum(paid) / len(paid) == facts["outcome/terminated"] == facts["agent/return"]


# --- what the laptop model is shown ---

def test_demonstrations_speak_the_formats():
    import random

    from laptop.texts import sample_texts
    rng, texts, kinds = random.Random(0), sample_texts(), set()
    for _ in range(300):
        ask, reply = tiny_spice.challenger_demo(rng, texts)
        format_ = ask.split()[1]
        question = json.loads(spice.parse_question(reply, order(format_)).code)
        kinds.add((format_, question["type"]))
        assert question["answer"] in reply
        shown, said = tiny_spice.reasoner_demo(rng, texts)
        assert agent.last_boxed(said) and "?" in shown
    assert kinds == {("mcq", "mcq"), ("free", "string"), ("mixed", "mcq"), ("mixed", "string")}
