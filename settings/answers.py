r"""Is an answer the right one? By mathematics, by text, or by letter.

A file of its own because questions that were written here (spice.py) and benchmarks need the same judge.
What it leaves out: partial credit, and judges that are models.

Try it:  python -c "from settings import answers; print(answers.is_right('math', '1/3', r'0.\overline{3}'))"
"""
import re
import unicodedata

from settings import judge, mathtext

LONGEST = 1_000  # characters of an answer
TYPED = {"-": "\u2010\u2011\u2012\u2013\u2014\u2212", "'": "\u2018\u2019\u201b\u02bc\u2032",
         '"': "\u201c\u201d\u201e\u00ab\u00bb", "": "\u00ad\u200b\u200c\u200d\u2060\ufeff"}   # by what a keyboard has
TYPED = {ord(sign): plain for plain, signs in TYPED.items() for sign in signs}
WRAPPER = re.compile(r"\\(?:text\w*|math(?:rm|bf|it|sf|tt|normal)|mbox|boxed|fbox|underline|emph)\s*\{([^{}]*)\}")


def unwrapped(text: str) -> str:
    r"""\textbf{\text{B}} -> B, and typographic signs as a keyboard has them."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(TYPED))
    if "\\" not in text:
        return text
    text, before = re.sub(r"\\(?:text)?color\s*\{\w*\}", "", text), None
    while text != before:
        before, text = text, WRAPPER.sub(r"\1", text)
    return text


def normalise(answer: str) -> str:
    r"""For exact match: "The  Krebs cycle." -> "krebs cycle"; \text{}, a leading article, typography do not count."""
    plain = unwrapped(answer)
    if "\\" in plain or "~" in plain:
        plain = re.sub(r"\\([&%$#_])", r"\1", re.sub(r"\\[ ,;:!]|(?<!\\)~", " ", plain))
    return re.sub(r"^(the|a|an) ", "", " ".join(plain.casefold().split()).strip(" .,;:!?'\"`$*"))


# --- letters ---

SAYS = r"(?:the\s+)?(?:(?:final|correct|right|best)\s+)?(?:answer|option|choice|ans)\b(?:\s+is\b)?\s*[:.]?[\s({\[]*"
CHOICE = re.compile(rf"[\s({{\[]*(?:{SAYS})*(?P<letter>[A-J])(?![\w'])(?P<marks>[\s)\]}}.:,;!]*(?:-+\s+)?)"
                    r"(?P<behind>.*)", re.S | re.I)
REASON = re.compile(r"(?:because|since)\b|is\s+(?:the\s+)?(?:correct|right|best|answer)\b", re.I)
ANOTHER = re.compile(r"(?<![\w'])[A-J](?![\w'])|^\W*(?:or|and|nor|not)\b|^[b-h](?![\w'])")


def letter(answer: str, options: dict[str, str] | None = None) -> str:
    r"""The choice that is meant, or "": "B", "(b)", "Option B", "B Paris", "B. because" -> "B"; "A cat" -> "".

    With `options`, {letter: text}, nothing may stand behind a letter but the text of its option, and a reason.
    """
    found = CHOICE.fullmatch(spoken(answer))
    if not found or options and found["letter"].upper() not in options:
        return ""
    choice, behind = found["letter"].upper(), found["behind"].strip()
    meant = not behind or (is_option(options[choice], behind) if options else seems_option(found, behind))
    return choice if meant else ""


def spoken(text: str) -> str:
    """Without emphasis and brackets that only mathematics needs."""
    return re.sub(r"\\(?:left|right|[()\[\],;: ])|[$*`\"]", " ", unwrapped(text)).strip(" '\n\t")


def is_option(option: str, behind: str) -> bool:
    """Is the text behind a letter that of its option, or a reason, or one after the other?"""
    option, said = normalise(spoken(option)), normalise(behind)
    rest = said.removeprefix(option).lstrip(" .,;:(-")
    in_brackets = re.fullmatch(r"\((.*)\)", said, re.S)
    said = in_brackets[1] if in_brackets else said
    same_text = option.replace(" ", "") == said.replace(" ", "")   # 10m/s is 10 m/s
    return same_text or bool(REASON.match(rest)) or mathtext.verdict(option, said) is True


def seems_option(found, behind: str) -> bool:
    """Could it be one? An article, a name such as "E. coli" and a second letter look like a choice, and are none."""
    if ANOTHER.search(behind):
        return False
    marks, choice = found["marks"], found["letter"]
    if re.search(r"[)\]}:]", marks):
        return True
    if not re.search(r"\s", marks) or not choice.isupper():
        return False
    article = choice in "AI" and marks.isspace() and " " in behind   # "A Christmas Carol"
    begins_like_one = behind[0].isupper() or behind[0].isdigit() or behind[0] in "\\("
    return bool(REASON.match(behind)) or begins_like_one and not article


# --- everything ---

def is_right(kind: str, gold: str, answer: str) -> bool:
    """`kind` is mcq (a letter), string (exact match after normalisation), or else mathematics."""
    if not answer.strip() or len(answer) > LONGEST:
        return False
    if kind == "mcq":
        return letter(answer) == gold
    if kind == "string":
        return normalise(answer) == normalise(gold)
    if re.fullmatch("[+-]?[0-9]+", gold) and re.fullmatch("[+-]?[0-9]+", answer):
        return int(answer) == int(gold)  # most of them, and the fastest
    if answer.strip() == gold:
        return True
    verdict = mathtext.verdict(gold, answer)
    return same_mathematics(gold, answer) if verdict is None else verdict


def same_mathematics(gold: str, answer: str) -> bool:
    """Math-Verify's verdict; False where it needs too long, too much memory, or breaks."""
    euler = mathtext.has_euler(gold) or mathtext.has_euler(answer)
    return judge.ask(mathtext.readable(gold, euler), mathtext.readable(answer, euler))
