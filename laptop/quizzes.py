"""What the laptop model is shown of the corpus setting (settings/spice.py): tiny documents, questions and answers.

A document is the first eight words of a text. A question hides one to three of them. The Challenger copies
both from what it sees; the Reasoner, who does not see the document, has to remember it. A beginner half
remembers, so one word is easy, three are hard, and four options help. What SPICE's reward pays for can then
be learnt: to ask what is answered about half of the time, and to know the corpus better.

What it leaves out: reasoning. A model this small can recall a text, but not think about it.

Try it:  python -m laptop.quizzes        prints demonstrations of both roles
"""
import functools
import json
import random

from laptop.texts import beginning, sample_texts
from machinery.records import Order
from settings.answers import normalise
from settings.spice import Question, parse_question, question_messages, reasoner_messages

KNOWN, KNOWN_CHOICE, SLIP = 0.6, 0.7, 0.03   # knows a word, finds an option; errs with the book open
# where make_tokenizer cuts, so that each piece of a question's JSON is one token
PIECES = r'", "answer": "|"\}, "answer": "|", "options": \{"A": "|", "[BCD]": "|\n[A-D]\) |"\}'


@functools.cache
def words_of(text: str) -> list[str]:
    """The first eight words, without bare signs and what JSON would have to escape."""
    return [word.replace('"', "'").replace("\\", "/") for word in beginning(text).split() if normalise(word)]


def any_word(rng: random.Random, texts: list[str]) -> str:
    words = words_of(rng.choice(texts))
    return " " + rng.choice(words[1:])


def write_question(rng: random.Random, texts: list[str], text: str, format_: str) -> str:
    """A question as the Challenger writes it. Words begin with a blank: " whole" is a token, "whole" is not."""
    words = words_of(text)
    if format_ == "mixed":
        mcq = rng.random() < 0.5
    else:
        mcq = format_ == "mcq"
    n = 1 if mcq else rng.choice([1, 2, 3])
    first = rng.randint(1, len(words) - n)   # the first word names the topic and stays
    before, hidden, after = words[:first], words[first:first + n], words[first + n:]
    answer = " " + " ".join(hidden)
    record = {"type": "mcq" if mcq else "string", "question": " ".join([*before, *["?"] * n, *after])}
    if mcq:
        options = [answer]
        while len(options) < 4:
            option = any_word(rng, texts)
            if normalise(option) not in [normalise(other) for other in options]:
                options.append(option)
        rng.shuffle(options)
        record["options"] = dict(zip("ABCD", options))
        answer = "ABCD"[options.index(answer)]
    record["answer"] = answer
    return json.dumps(record)


def challenger_demo(rng: random.Random, texts: list[str]) -> list[str]:
    """Without a document (one time in ten) it asks about any text it remembers."""
    text, format_ = rng.choice(texts), rng.choice(["mcq", "free", "mixed"])
    seen = "" if rng.random() < 0.1 else beginning(text)
    (message,) = question_messages(Order("", format_, "", seen), brief=True)
    return [message["content"], write_question(rng, texts, text, format_)]


def reasoner_demo(rng: random.Random, texts: list[str]) -> list[str]:
    text, hinted = rng.choice(texts), rng.random() < 0.5
    order = Order("", "mixed", "", beginning(text))
    environment = parse_question(write_question(rng, texts, text, "mixed"), order)
    observation, info = Question(environment).reset(0)
    (message,), _ = reasoner_messages(observation, info, environment.hint if hinted else "", brief=True)
    gold, mcq = json.loads(environment.code)["answer"], info["type"] == "mcq"
    if hinted:
        known = 1 - SLIP
    else:
        known = KNOWN_CHOICE if mcq else KNOWN
    said = ""
    if mcq:
        said = gold if rng.random() < known else rng.choice("ABCD")
    else:
        for word in gold.split():
            said += f" {word}" if rng.random() < known else any_word(rng, texts)
    return [message["content"], rf"\boxed{{{said}}}"]


DEMONSTRATIONS = [(8, challenger_demo), (32, reasoner_demo)]   # how many of each kind in a batch


if __name__ == "__main__":
    dice, corpus = random.Random(0), sample_texts()
    for demo in [challenger_demo, reasoner_demo] * 4:
        ask, reply = demo(dice, corpus)
        print(f"user      {ask!r}\nassistant {reply!r}\n")
