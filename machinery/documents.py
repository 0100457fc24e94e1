"""Where documents and given environments are read from: a file, a folder, or a data set of the hub.

    --corpus notes.jsonl                                     JSON lines with a `text` field
    --corpus notes/                                          a folder of .txt and .md files
    --corpus spade-rl/SPADE-Grounding-Corpus-Games-15K       a data set of the hub: pip install datasets

What it leaves out: splitting long documents (--document-words cuts them), PDF, deduplication.
"""
from pathlib import Path

from machinery.textfiles import json_lines, read_text

SAMPLE = str(Path(__file__).parents[1] / "corpus" / "sample.jsonl")


def read_documents(where: str) -> list[str]:
    """All texts that are not blank, in the order of the file, of the files' names, or of the data set.

    Raises SystemExit with one line where there is none; lines that are broken are skipped and counted aloud.
    """
    path = Path(where)
    if from_hub(where):
        texts, skipped = [row.get("text") for row in data_set(where)], []
        wanted = "a data set with a column `text`"
    elif path.is_dir():
        files = sorted(file for kind in ("*.txt", "*.md") for file in path.rglob(kind))
        texts, skipped = [read_text(file) for file in files], []
        wanted = "a folder of .txt or .md files"
    else:
        texts, skipped = texts_of_file(where)
        wanted = 'JSON lines such as {"text": "A fraction is ..."}'
    if skipped:
        print(f"corpus: {len(skipped)} malformed lines skipped, first {skipped[0]}")
    texts = [text.encode("utf-8", "replace").decode() for text in texts   # half a surrogate pair is no text
             if isinstance(text, str) and text.strip()]
    if not texts:
        raise SystemExit(f"the corpus {where} holds no document: --corpus wants {wanted}. {''.join(skipped[:1])}")
    return texts


def texts_of_file(path: str) -> tuple[list[str], list[str]]:
    """(the `text` of each line, where and why lines were skipped)."""
    texts, skipped = [], []
    try:
        for where, record, problem in json_lines(path):
            text = record.get("text")
            if isinstance(text, str):
                texts.append(text)
            else:
                skipped.append(f"{where}: " + (problem or 'there is no "text" that is a string'))
    except OSError as error:
        raise SystemExit(f"cannot read the corpus {path}: {error.strerror}. --corpus wants JSON lines such as "
                         f'{{"text": "A fraction is ..."}}, a folder of .txt or .md files, or a data set of the hub; '
                         f"--no-corpus trains without.") from None
    return texts, skipped


def from_hub(where: str) -> bool:
    """A data set's id, OWNER/NAME, or a folder laid out like one: parquet files, or JSON lines under data/."""
    path = Path(where)
    if path.is_dir():
        return any(path.rglob("*.parquet")) or any((path / "data").glob("*.json*"))
    owner, _, name = where.partition("/")
    is_id = owner.isprintable() and owner[:1].isalnum() and name and "/" not in name
    return bool(is_id) and not path.exists() and not name.endswith((".jsonl", ".json", ".txt", ".md"))


def data_set(where: str):
    """The rows of a data set of the hub or of a folder laid out like one; all splits, in their order."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise SystemExit(f"'{where}' is no file or folder here; to read it from the hub: pip install "
                         f"datasets") from None
    try:
        splits = load_dataset(where)
    except (OSError, ValueError, RuntimeError) as error:   # no connection, no such data set, a broken file
        reason = str(error).strip().splitlines()[0][:200]
        raise SystemExit(f"cannot read the data set '{where}' ({reason}). Download it where there is a connection and "
                         f"give its folder.") from None
    return [row for split in splits.values() for row in split]
