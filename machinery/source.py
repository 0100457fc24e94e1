"""A generated program as text: found in a reply, mended where that is safe, compared. Nothing here runs it.

A file of its own because the Designer and a benchmark of programs read replies by the same rules.
"""
import ast
import io
import re
import tokenize
import warnings

warnings.simplefilter("ignore", SyntaxWarning)   # of programs that are only parsed here
LONGEST_PROGRAM = 60_000  # characters; the sandbox refuses much longer ones too


def extract_code(reply: str) -> str:
    """The program in a reply: behind a thought the first ```python block (any case, closed or not), else all.

    f-strings whose literal braces were not doubled are repaired where that makes the program parse.
    """
    reply = reply.rpartition("</think>")[2]
    fence = re.search(r"```[ \t]*(?:python|py)\d?[ \t]*\r?\n(.*?)(?:\n[ \t]*```|\Z)", reply, re.S | re.I)
    return repair_braces((fence.group(1) if fence else reply).strip("\n"))


def syntax_error(code: str) -> SyntaxError | None:
    """The first syntax error; None if it parses, or if parsing fails in a way that no repair can mend."""
    try:
        ast.parse(code)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError):
        pass
    return None


def repair_braces(code: str) -> str:
    """Doubles the braces around what is no expression, on the line of each syntax error, at most 20 times."""
    if len(code) > LONGEST_PROGRAM:
        return code
    repaired = code
    for _ in range(20):
        error = syntax_error(repaired)
        if error is None:
            return repaired
        lines = repaired.split("\n")
        at = (error.lineno or 0) - 1
        if not 0 <= at < len(lines):
            return code
        line = re.sub(r"(?<!\{)\{([^{}]*)\}(?!\})",
                      lambda m: m.group(0) if is_expression(m.group(1)) else "{{" + m.group(1) + "}}", lines[at])
        if line == lines[at]:
            return code
        lines[at] = line
        repaired = "\n".join(lines)
    return code


def is_expression(text: str) -> bool:
    return bool(text.strip()) and syntax_error(f"f'''{{{text}}}'''") is None


def normalised(code):
    """The program without comments, spacing and names of classes: equal for two copies of one program."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return code
    words = [token.string.strip() or tokenize.tok_name[token.type]  # NEWLINE, INDENT, DEDENT are blank
             for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
    classes = {name for before, name in zip(words, words[1:]) if before == "class"}
    return " ".join("a class" if word in classes else word for word in words)


def rung(code):
    """How long the ladder of a program is, read from its text; None if the text does not say."""
    found = re.search(r"^    rungs = (\d)$", code, re.MULTILINE)
    return int(found[1]) if found else None


def in_order(wanted: list[str], words: list[str]) -> bool:
    """Are the wanted words among the others in this order, whatever stands between them?"""
    at = 0
    for word in words:
        if at < len(wanted) and word == wanted[at]:
            at += 1
    return at == len(wanted)
