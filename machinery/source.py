"""A generated program as text: found in a reply, mended where that is safe, compared. Nothing here runs it.

A file of its own because the Designer and a benchmark of programs read replies by the same rules.
"""
import ast
import io
import re
import textwrap
import tokenize
import warnings

warnings.simplefilter("ignore", SyntaxWarning)   # of programs that are only parsed here
LONGEST_PROGRAM = 60_000  # characters; the sandbox refuses much longer ones too
RUN = "`{3,}|~{3,}"   # what a fence is made of
OPENING = re.compile(rf"^(?P<before>(?:(?!{RUN}).)*)(?P<run>{RUN})(?P<info>[^`\n]*)$", re.M)
MARKER = re.compile(r"[\s>]*(?:[-*+]|\d+[.)])?\s*")   # of a list or a quotation, in which a fence may stand
PYTHON = re.compile(r"\W*(?:(?:code|sourcecode|language|lang)[-\w]*\W+)?(?:i?py(?:thon)?[\d.]*|\S+\.py)(?![\w-])", re.I)
STRING = r"""('{3}|"{3})(?:\\.|[^\\])*?\1|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|#[^\n]*"""   # or a comment


# --- found in a reply ---

def extract_code(reply: str, last: bool = False) -> str:
    """The program in a reply, behind a thought: a fenced block, closed or not; without any block the whole reply.

    The first block that is marked as Python, else the first unmarked one that holds statements. With `last`, as is
    LiveCodeBench's convention, the last of both sorts. f-strings whose literal braces were not doubled are repaired
    where that makes the program parse.
    """
    text = reply.replace("\r\n", "\n").replace("\r", "\n").rpartition("</think>")[2].strip("\ufeff\n")
    if parsed(text):   # the fences in it, if any, are in its strings
        return text
    found = blocks(text)
    marked = [code for is_marked, code in found if is_marked]
    programs = [code for is_marked, code in found if is_marked or acts(code)]
    every = [code for _, code in found] or [repair_braces(text)]
    return (programs or every)[-1] if last else (marked or programs or every)[0]


def blocks(text: str) -> list[tuple[bool, str]]:
    """(is it marked as Python?, code) of each fenced block, but for empty ones and those marked as something else."""
    found, at = [], 0
    while opening := OPENING.search(text, at):
        info, at = opening["info"].strip(), opening.end() + 1
        starts_the_line = MARKER.fullmatch(opening["before"])
        is_marked = says_python(info) if starts_the_line else says_only_python(info)
        if info and not is_marked and not starts_the_line or info.lower() in ("markdown", "md"):   # the latter nests
            continue
        end, beyond = closing(text, at, opening["run"])
        code, at = program(text[at:end]), beyond
        if code and (is_marked or info.lower() in ("", "code")):
            found.append((is_marked, code))
    return found


def says_python(info: str) -> bool:
    """Do the words behind an opening fence name Python, as in `py3`, `{.python}`, `python:board.py`?"""
    return PYTHON.match(info) is not None


def says_only_python(info: str) -> bool:
    """Stricter, for places where prose may stand: ``` Python is the language used."""
    return says_python(info) and len(info.split()) <= 2


def closing(text: str, start: int, run: str) -> tuple[int, int]:
    """Where the block from `start` on ends, and where reading goes on; twice len(text) if it is not closed.

    A fence in a string or a comment of the program ends nothing. That is believed only where the program parses:
    with one quotation mark missing, all that follows would be a string.
    """
    fence = f"{run[0]}{{{len(run)},}}"
    at_an_edge = rf"^[ \t]*{fence}|{fence}[ \t]*$"
    anywhere = fence if run[0] == "`" else at_an_edge   # a tilde may be an operator
    pieces = re.compile(rf"{STRING}|(?P<fence>{anywhere})", re.M | re.S).finditer(text, start)
    found = next((piece for piece in pieces if piece["fence"]), None)
    if not parsed(program(text[start:found.start() if found else len(text)])):
        found = re.compile(at_an_edge, re.M).search(text, start)
    if found is None:
        return len(text), len(text)
    line_ends = text.find("\n", found.end())
    line_ends = len(text) if line_ends < 0 else line_ends
    if says_only_python(text[found.end():line_ends].strip()):   # the block was never closed: this opens the next
        return found.start(), text.rfind("\n", 0, found.end()) + 1
    return found.start(), line_ends


def program(block: str) -> str:
    code = block.strip("\n").rstrip()
    return repair_braces(textwrap.dedent(code) if code[:1].isspace() else code)   # a block of a list is indented


def acts(code: str) -> bool:
    """Does it do anything? A board, a number or a word may be valid Python, too."""
    tree = parsed(code)
    return tree is not None and any(not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call)
                                    for node in tree.body)


# --- mended and compared ---

def parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


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
