r"""The corpus setting (SPICE, arXiv 2510.24684): a model writes questions from documents, answers without.

What it teaches: self-play needs neither programs nor labelled data where the two roles know different
things. The Challenger reads a document and writes a question with its gold answer; the Reasoner sees the
question alone. The document is the privileged information, so it also serves as SPADE's hint: an open-book
arm, with which hint regret can pay for questions (neither paper has that).

What it leaves out: SPICE's extra call that picks the type of a question (here the reply names it), and its
up to 1,024 attempts until a document has a valid question (here 8). Questions see no environment memory.

Try it:  python -m settings.spice        prints the prompt for one document
"""
import json
import re
from collections import defaultdict
from decimal import Decimal

from agent import acted, extract_action, last_boxed, observation_messages
from designer import Corpus, Refused
from machinery import ranks
from machinery.documents import SAMPLE, read_documents
from machinery.records import Environment, Order
from machinery.seeds import seed_of
from regret import DESIGNER_REWARDS, majority_label
from sandbox import Verdict
from settings.answers import is_right, letter, normalise, same_mathematics
from settings.setting import Setting
from settings.toolcalls import unique

PER_DOCUMENT = 8   # questions, G in SPICE; they share one baseline
LONGEST_REPLY, LONGEST_QUESTION, LONGEST_ANSWER = 20_000, 4_000, 200   # characters
TYPES = {"mcq": ["mcq"], "free": ["integer", "expression", "string"]}
TYPES["mixed"] = TYPES["mcq"] + TYPES["free"]
ANSWERS = {"mcq": "[A-D]", "integer": "[+-]?[0-9]{1,40}", "expression": ".+", "string": r"\S+(\s+\S+){0,2}"}

# --- the Challenger ---

MCQ = ('multiple choice: "type" is "mcq", "options" has the fields A, B, C and D, all plausible and equally '
       'long (typical mistakes make good wrong options), and "answer" is the letter')
FREE = ('free form, without "options": "type" is "integer" (a plain whole number), "expression" (LaTeX, '
        'simplest form) or "string" (one to three words), and "answer" is the answer itself')
FORMATS = {"mcq": MCQ, "free": FREE, "mixed": f"either {MCQ}; or {FREE}; choose what fits"}
RULES = r"""
- The student sees your question and nothing else: it is complete in itself and mentions no document or text.
- It has exactly one right answer, which can be checked, and takes at least three steps or facts that no one
  alone gives away. A student who guesses should be wrong.
- Its form is {form}.
Think first: solve your own question as a student would, and make it harder if that was quick. End with this:

```json
{{"type": "...", "question": "...", "answer": "..."}}
```

In JSON a backslash is written twice: "\\frac{{1}}{{2}}"."""


def question_messages(order: Order, brief: bool) -> list[dict]:
    """The order for one question. Without a corpus only the document is missing."""
    if brief:
        return [{"role": "user", "content": f"ask {order.skill} from: {order.document}"}]
    text = "Write one hard exam question together with its answer.\n"
    if order.document:
        text += f"\nTake its answer from this document:\n<document>\n{order.document}\n</document>\n"
    text += RULES.format(form=FORMATS[order.skill])
    return [{"role": "user", "content": text}]


def no_constant(name: str):
    raise ValueError(f"{name} is no JSON")


def read_json(text: str):
    r"""Strict JSON but for one repair: lone backslashes of LaTeX are doubled ("\frac" is no form feed)."""
    escape = r'(\\\\|\\["/]|\\u[0-9a-fA-F]{4}|\\[bfrt](?![a-zA-Z])|\\n(?!abla|e[gq]?\b|u\b|ot(?:in)?\b|mid\b))|\\'
    text = re.sub(escape, lambda found: found[1] or r"\\", text)   # what is no escape of JSON is LaTeX's
    strict = dict(parse_float=Decimal, parse_constant=no_constant, object_pairs_hook=unique)
    try:
        record = json.loads(text, **strict)
        json.dumps(record, default=str, ensure_ascii=False).encode()   # half a surrogate pair breaks any log
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise Refused(f"json: {error}") from None
    return record


def scalar(value) -> str:
    """A string or a number as text; "" for anything else."""
    return str(value).strip() if type(value) in (str, int, Decimal) else ""


def parse_question(reply: str, order: Order) -> Environment:
    """One JSON object, bare or fenced, with exactly the fields of its type; it becomes the "program"."""
    if len(reply) > LONGEST_REPLY:
        raise Refused(f"long: more than {LONGEST_REPLY} characters")
    text = reply.rpartition("</think>")[2].strip()
    blocks = re.findall(r"```(?:json)?[ \t]*\n\s*(\{.*?\})\s*```", text, re.S | re.I) or [text]
    if not text:
        raise Refused("empty: the reply holds no question")
    if len(blocks) > 1:
        raise Refused("two questions: there must be one")
    record = read_json(blocks[0])
    kind = record.get("type") if type(record) is dict else None
    if kind not in TYPES[order.skill]:
        raise Refused(f"type: not one of {', '.join(TYPES[order.skill])}")
    fields = {"type", "question", "answer"}
    if kind == "mcq":
        fields.add("options")
    if set(record) != fields:
        raise Refused("fields: one is missing or not asked for")
    question, answer = record["question"], scalar(record["answer"])
    if type(question) is not str or not 0 < len(question.strip()) <= LONGEST_QUESTION:
        raise Refused("question: not a text of reasonable length")
    if len(answer) > LONGEST_ANSWER or not re.fullmatch(ANSWERS[kind], answer, re.S) or not normalise(answer):
        raise Refused(f"answer: not of the type {kind}")
    record |= {"question": question.strip(), "answer": answer}
    if kind == "mcq":
        options = record["options"] if type(record["options"]) is dict else {}
        record["options"] = {choice: scalar(options.get(choice))[:LONGEST_QUESTION] for choice in "ABCD"}
        texts = {normalise(text) for text in record["options"].values()}
        if len(options) != 4 or len(texts) < 4 or "" in texts:
            raise Refused("options: not A, B, C and D, four different texts")
    code = json.dumps(record, ensure_ascii=False)
    return Environment(code, order.document, order.skill, "corpus", order.document, order.name)


def validate(box, environment: Environment) -> Verdict:
    """Can it be judged? All else was refused while it was parsed."""
    question = json.loads(environment.code)
    if question["type"] == "expression" and not same_mathematics(question["answer"], question["answer"]):
        return Verdict(False, "answer: Math-Verify cannot read it")
    return Verdict(True)


# --- the Reasoner ---

class Question:
    """One question as an environment: a single turn, and nothing is executed."""

    def __init__(self, environment: Environment):
        self.question = json.loads(environment.code)

    def reset(self, seed: int) -> tuple[str, dict]:
        options = [f"{choice}) {text}" for choice, text in self.question.get("options", {}).items()]
        return "\n".join([self.question["question"], *options]), {"type": self.question["type"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        given, options = last_boxed(action) or "", self.question.get("options")
        if options:
            given = letter(given, options)
        return "", float(is_right(self.question["type"], self.question["answer"], given)), True, False, {}

    def close(self) -> None:
        pass


def reasoner_messages(observation: str, info: dict, hint: str, brief: bool) -> tuple[list[dict], None]:
    """The opening of a play; the hint is the document."""
    if brief:
        text = f"{observation}\nhint: {hint}" if hint else observation
        return [{"role": "user", "content": text}], None
    text = ""
    if hint:
        text = f"Here is the document that the question below was made from.\n<document>\n{hint}\n</document>\n\n"
    what = "the letter of the right option" if info["type"] == "mcq" else "the final answer alone"
    text += f"{observation}\n\nReason step by step, then put {what} inside \\boxed{{}}."
    return [{"role": "user", "content": text}], None


def majority_labels(episodes: list) -> None:
    """R-Zero: without a document nobody knows the truth, so right is what most answers to a question say.

    The Challenger's own answer is not used. Answers agree if they are the same text or letter. R-Zero also
    keeps only questions of middling agreement, which is left out.
    """
    plays_of = defaultdict(list)
    for episode in episodes:
        plays_of[episode.environment.name].append(episode)
    for plays in plays_of.values():
        question = json.loads(plays[0].environment.code)
        answers = [final_answer(episode, question) for episode in plays]
        label, _ = majority_label(answers)
        for episode, answer in zip(plays, answers):
            agrees = answer != "" and answer == label
            episode.ret = 1.0 if agrees else 0.0


def final_answer(episode, question: dict) -> str:
    """What a play answered, so that equal answers are equal texts; "" if it came to no end."""
    if episode.outcome != "terminated":
        return ""
    _, reply = episode.turns[-2]   # the last turn is what the environment said to it
    answer = last_boxed(acted(reply)) or ""
    return letter(answer, question["options"]) if question["type"] == "mcq" else normalise(answer)


def label_by_majority(args, state, plays: list) -> None:
    """Without a document nobody knows the truth; R-Zero's Challenger is then judged by what most answers say."""
    if args.no_corpus and args.designer_reward == "r-zero":
        majority_labels(plays)


def one_per_document(args, state, plays: list) -> list:
    """The Agent learns from one valid question of each document, drawn anew each rollout (SPICE, step 5)."""
    if args.pool:
        return plays
    valid = defaultdict(list)
    for d in ranks.gather(state.designs):
        if d.environment:
            valid[d.order.group].append(d.name)
    chosen = {names[seed_of(args.seed, state.rollout, group) % len(names)] for group, names in valid.items()}
    return [e for e in plays if e.environment.name in chosen]


def check_flags(args, given: set[str]) -> None:
    if args.skills:
        raise ValueError("--setting corpus has no --skills but a --challenger-format")
    args.skills = args.challenger_format
    if args.attempts > 1:
        raise ValueError("--setting corpus asks each document several times as it is: --attempts 1")
    if args.n_envs % PER_DOCUMENT:
        raise ValueError(f"--setting corpus asks {PER_DOCUMENT} questions of each document: --n-envs must be a "
                         f"multiple of {PER_DOCUMENT}")
    if args.no_corpus and DESIGNER_REWARDS[args.designer_reward].needs_hint:
        raise ValueError(f"for questions the document is the hint: --designer-reward {args.designer_reward} needs one")


CORPUS = Setting(
    name="corpus", skills=FORMATS, design_messages=question_messages, parse_design=parse_question,
    validate=validate, hint_messages=None, open=lambda box, environment: Question(environment),
    agent_messages=reasoner_messages, observation_messages=observation_messages, parse_action=extract_action,
    orders_per_document=PER_DOCUMENT, lessons="laptop.quizzes", check_flags=check_flags,
    after_plays=label_by_majority, learnt_from=one_per_document)


if __name__ == "__main__":
    text = Corpus(read_documents(SAMPLE), words=6000).draw()
    print(question_messages(Order("demo", "mixed", "", text), brief=False)[0]["content"])
