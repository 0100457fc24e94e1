"""Text files that others made: programs and JSON lines, whatever an editor put in front of them.

A file of its own because corpus, benchmarks, environments and sandbox.py read such files, and one that is broken is
told of by its name and line wherever it is read.
"""
import codecs
import json
from collections.abc import Iterator
from pathlib import Path

BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be",
                    codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}   # UTF-32 begins as UTF-16 does


def read_text(path: str | Path) -> str:
    """The text of a file, lines separated by "\\n": UTF-8, or what its byte-order mark says. Raises OSError.

    A byte that is no text becomes the sign U+FFFD.
    """
    data = Path(path).read_bytes()
    mark = next((mark for mark in BYTE_ORDER_MARKS if data.startswith(mark)), b"")
    text = data.removeprefix(mark).decode(BYTE_ORDER_MARKS.get(mark, "utf-8"), errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def json_lines(path: str | Path) -> Iterator[tuple[str, dict, str]]:
    """(where, the object, "") for every line that is not blank; where a line is no object, {} and what is wrong.

    `where` is FILE:LINE, for messages. Files that were put together may have a mark within, which is skipped.
    """
    for number, line in enumerate(read_text(path).split("\n"), 1):
        line = line.strip("\ufeff \t\v\f")
        if not line:
            continue
        try:
            value = json.loads(line)
            problem = "" if isinstance(value, dict) else f"a JSON object is wanted, not {line[:40]!r}"
        except (ValueError, RecursionError) as error:
            value, problem = {}, f"{type(error).__name__}: {error}"
        yield f"{path}:{number}", {} if problem else value, problem
