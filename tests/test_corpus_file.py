"""The sample corpus keeps the promises of corpus/README.md."""

import json
import keyword
import re
from pathlib import Path

LINES = (Path(__file__).parents[1] / "corpus" / "sample.jsonl").read_bytes().decode("ascii").splitlines()
DOCUMENTS = [json.loads(line) for line in LINES]


def test_every_line_is_a_document():
    assert len(DOCUMENTS) == 72
    for document in DOCUMENTS:
        assert list(document) == ["title", "text"]
        assert all(isinstance(value, str) and value == " ".join(value.split()) for value in document.values())
        assert document["title"] and document["text"][-1] in ".?"


def test_texts_are_plain_ascii_after_decoding():
    # json.dumps hides curly quotes and dashes as \u escapes, so look at the decoded strings.
    assert all(value.isascii() for document in DOCUMENTS for value in document.values())


def test_texts_are_short_but_not_empty():
    lengths = [len(document["text"].split()) for document in DOCUMENTS]
    assert min(lengths) >= 90 and max(lengths) <= 180


def test_first_words_are_unique_topic_names_fit_for_a_class():
    words = [document["text"].split()[0] for document in DOCUMENTS]
    assert len(set(words)) == len(words)
    for word in words:
        assert re.fullmatch(r"[A-Z][a-z]{3,8}", word), word
        assert (word + "Env").isidentifier() and not keyword.iskeyword(word.lower()), word


def test_titles_and_texts_differ():
    assert len({document["title"] for document in DOCUMENTS}) == 72
    assert len({document["text"] for document in DOCUMENTS}) == 72
