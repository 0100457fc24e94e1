r"""What a short mathematical answer says: decorations off, plain numbers as numbers, words as words.

A file of its own because it is all text. What can be decided here needs no Math-Verify, which takes a thousand times
longer, and reads "ABC" as a product that is the same as "CBA", and "3:2" as a quotient.
What it leaves out: units other than money, and numbers written with a decimal comma.

Try it:  python -c "from settings import mathtext; print(mathtext.readable(r'\approx \underline{10\,000}.'))"
"""
import re
import unicodedata
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

LONG = 300   # characters; what is longer is left as it is: no plain answer, or an attack on these expressions

# --- what stands around an answer ---

NESTED = r"[^{}]*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}[^{}]*)*"   # braces in pairs, three deep
SIGNS = {  # by what LaTeX writes for them
    "-": "\u2010\u2011\u2012\u2013\u2212", "'": "\u2018\u2019\u02bc", '"': "\u201c\u201d\u201e",
    " ": "\u00a0\u2007", r"\,": "\u2005\u2006\u2008\u2009\u202f", "": "\u200b\u200c\u200d\u2060\ufeff\u00ad",
    r"\times ": "×", r"\cdot ": "·⋅", "/": "÷∕⁄", r"\infty ": "∞", r"\emptyset ": "∅", r"\cup ": "∪",
    r"\cap ": "∩", r"\approx ": "≈", r"\pm ": "±", "sqrt": "√", r"^\circ ": "°"}
SIGNS = {ord(sign): latex for latex, signs in SIGNS.items() for sign in signs}
SIGNS |= {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}   # full-width letters, digits and signs
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
LAYOUT = re.compile(
    r"\\(?:(?:display|text|script)style|tiny|small|normalsize|[lL]arge|LARGE|[hH]uge|bf(?:series)?|it|rm|q?quad|"
    r"therefore|[bB]ig+[lrm]?)(?![A-Za-z])|\\(?:left|right)(?=\s*[\[\]()])|\\color\s*\{\w*\}")
FRAME = re.compile(rf"\\(?:boxed|f(?:rame)?box|underline|emph|textcolor\s*\{{\w*\}})\s*\{{({NESTED})\}}|"
                   r"\\(?:text|math)(?:bf|it|rm|sf)?\s*\{([\d.,\s]+)\}")
WHOLE = re.compile(rf"(?:\\(?:text|math)(?:bf|it|rm|sf|tt|up|normal)?|\\[mh]box|\\boldsymbol)?\s*\{{({NESTED})\}}")
PAIRS = [("**", "**"), ("`", "`"), ('"', '"'), (r"\(", r"\)"), (r"\[", r"\]")]
BEFORE = re.compile(r"(?:\s|\\[,;:! >]|=|\\(?:approx|simeq)(?![A-Za-z])|(?:~|\\sim)\s*(?=[-+\d.]))+")   # ~p is not p
BEHIND = re.compile(r"(?:\s|\\[,;:! >]|~|(?<!\\)(?<!\\right)[.,;:])+$")
DEGREES = re.compile(r"([-+]?[\d.,]+)\s*(?:\^\s*\\circ|\^\s*\{\s*\\circ\s*\}|\\degree)")
SAYS = re.compile(r"(?:\\text\w*\s*\{\s*)?(?:the\s+)?(?:final\s+|correct\s+)?ans(?:wer)?(?:\s+is\b\s*:?|\s*[:=])\s*\}?",
                  re.I)


ENDLESS = re.compile(r"(?<!\d)(\d+\.\d{0,20}?)(\d{1,6}?)\2{2,}\s*(?:\.{3,}|…|\\[lc]?dots)")      # 0.1666...
DOTTED = re.compile(r"\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?")
REPEATING = re.compile(r"(?<!\d)(\d+)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))")


def fraction(found) -> str:
    """0.1\\overline{6} is (16 - 1) / 90."""
    whole, first, again = found[1], found[2], found[3] or found[4]
    top = int(whole + first + again) - int(whole + first)
    return rf"\frac{{{top}}}{{{'9' * len(again)}{'0' * len(first)}}}"


def bare(text: str) -> str:
    """`text` without layout, frames, emphasis, "answer:", "=", punctuation and the sign of degrees."""
    before = None
    while text != before:
        before = text
        text = BEHIND.sub("", FRAME.sub(lambda frame: frame[1] or frame[2], text))
        for prefix in (BEFORE, SAYS):
            if found := prefix.match(text):
                text = text[found.end():]
        for whole in (WHOLE, DEGREES):
            if found := whole.fullmatch(text):
                text = found[1]
        for opening, closing in PAIRS:
            inner = text[len(opening):-len(closing)]
            if text == opening + inner + closing and opening not in inner:
                text = inner
    return text


def undressed(text: str) -> str:
    """`text` in signs that LaTeX has, bare, and without dollars around it; endless decimals are fractions."""
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda found: f"^{{{found[0].translate(RAISED)}}}", text).translate(SIGNS)
    text = ENDLESS.sub(r"\1\\overline{\2}", DOTTED.sub(r"\\overline{\1\2\3}", text))   # before its dots are a full stop
    text = with_fractions(REPEATING.sub(fraction, text))
    if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:   # a single one is money
        text = re.sub(r"(?<!\\)\$", "", text)
    return bare(LAYOUT.sub("", text))


COINS = {"usd": r"US\\?\$|\\?\$|USD|dollars?", "eur": r"€|\\euro|EUR|euros?", "gbp": r"£|\\pounds|GBP|pounds?",
         "jpy": "¥|JPY|yen", "inr": r"₹|INR|Rs\.?|rupees?", "cny": "CNY|RMB|yuan", "chf": "CHF|francs?",
         "cent": "¢|cents?"}
COIN = r"(?:\\text\w*\s*\{\s*)?(?:" + "|".join(f"(?P<{coin}>{name})" for coin, name in COINS.items()) + r")\s*\}?"
COIN_BEFORE = re.compile(rf"(?P<sign>[+-]?)\s*{COIN}\s*(?=[-+\d.\\(*])")
COIN_BEHIND = re.compile(rf"(?<=[\d}})\s\\,~*])(?P<sign>){COIN}\s*$", re.I)


def money(text: str) -> tuple[str, str]:
    """("204", "eur") for "€204", "204 EUR" and "204 euros"; (text, "") for what is no sum of money."""
    found = COIN_BEFORE.match(text) or COIN_BEHIND.search(text)
    if not found or not found.start() and found.end() == len(text):
        return text, ""
    return text[:found.start()] + found["sign"] + text[found.end():], next(coin for coin in COINS if found[coin])


# --- what stands inside ---

GAP = re.compile(r"(?<=\d)(?:\\[,;:! ]|,\\!|\{,\}|~)(?=\d{3}(?!\d))")   # 10\,000
NAMES = re.compile(r"(?<![A-Za-z\\])(?<!operatorname\{)(?<!text\{)(?<!rm\{)"
                   r"(?:pi|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|phi|psi|omega|sin|cos|tan|arcsin|arccos|arctan|ln|log|exp)(?![A-Za-z])")
ROOT = re.compile(r"(?<![A-Za-z])\\?sqrt\s*\(([^()]*)\)|(?<![A-Za-z\\])sqrt\s*(\d+|[A-Za-z](?![A-Za-z]))")
POWER = re.compile(r"(?<=\d)\s*(?:\*|[xX]|\\cdot|\\times)\s*10\s*\^\s*"
                   r"(?:\{\s*([+-]?\d+)\s*\}|\(\s*([+-]?\d+)\s*\)|([+-]?\d+))")
E_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d+)(?![\w.])")
INTERVAL = re.compile(r"(?:^|(?<=[=\s(,])|(?<=\\cup)|(?<=\\cap))([\[\](])"
                      r"((?:\([^()]*\)|(?!\\cup|\\cap|\\setminus)[^\[\]()])+)([\[\])])")


def interval(found) -> str:
    """]0,1[ is (0,1), and ]0,5;1] is (0.5,1]."""
    opening, inside, closing = found.groups()
    if opening in "[(" and closing in "])" or not re.search("[,;]", inside):
        return found[0]
    if ";" in inside:
        inside = inside.replace(",", ".").replace(";", ",")
    return ("[" if opening == "[" else "(") + inside + ("]" if closing == "]" else ")")


HALVES = {sign: unicodedata.normalize("NFKC", sign).split("\u2044") for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
MIXED = re.compile(r"(?<![\w.,/\\)}])(\d+) +(\d+)/(\d+)(?![\w.,/])")


def with_fractions(text: str) -> str:
    r"""3 1/2 and 3½ are 3\frac{1}{2}."""
    for sign, (top, bottom) in HALVES.items():
        text = text.replace(sign, rf"\frac{{{top}}}{{{bottom}}}")
    return MIXED.sub(r"\1\\frac{\2}{\3}", text)


def has_euler(text: str) -> bool:
    """Is there an e that is not part of a number such as 3e-2?"""
    return re.search(r"(?<![A-Za-z\\])e(?![A-Za-z])", E_POWER.sub("", text)) is not None


def readable(text: str, euler: bool = False) -> str:
    """`text` as LaTeX that Math-Verify reads. 3e-2 is a power of ten; with `euler` it is 3e - 2."""
    if len(text) > LONG:
        return text
    text = GAP.sub("", bare(money(undressed(text))[0]))
    text = text.replace(r"\varnothing", r"\emptyset").replace(r"\colon", ":").replace("**", "^")
    text = re.sub(r"(?<=[\w}])~(?=[\w\\])", " ", text)
    text = re.sub(r"\^\s*([+-]\d+)", r"^{\1}", text)
    text = POWER.sub(lambda found: rf"\times 10^{{{int(found[1] or found[2] or found[3])}}}", text)
    text = E_POWER.sub(lambda found: found[0] if euler and found[2][0] in "+-" else
                       rf"{found[1]}\times 10^{{{int(found[2])}}}", text)
    text = ROOT.sub(lambda found: rf"\sqrt{{{found[1] or found[2]}}}", text)
    return NAMES.sub(r"\\\g<0> ", INTERVAL.sub(interval, text)).strip()


# --- numbers ---

NUMBER = re.compile(r"([+-]?)\s*(?:((?:[1-9]\d{0,2}(?:([ ,'_])\d{3})(?:\3\d{3})*|\d+)(?:\.\d*)?|\.\d+)"
                    r"(?:\\times 10\^\{(-?\d{1,15})\})?|10\s*\^\s*(?:\{(-?\d{1,15})\}|(\d{1,15})))")
UNIT = re.compile(r"(?:(?:\s|\\,|/|\\cdot)*\\(?:text|math|mbox)(?:rm)?\s*\{[^{}%\d]*\}(?:\^\d|\^\{-?\d\})?)+$")
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SCALE = re.compile(r"\s*(?:\\text\s*\{\s*)?(hundred|thousand|million|billion|trillion)\s*\}?$")
EXACT = Context(prec=2100, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


def number(text: str) -> Decimal | None:
    r"""The value of a readable text that is a plain number: "10 000", "-3\times 10^{-20}", "5 million", "(7)"."""
    scale = SCALE.search(text)
    text = text[:scale.start()] if scale else text
    unit = UNIT.search(text)
    if unit and "percent" not in unit[0]:
        text = text[:unit.start()]
    if text.startswith("(") and text.endswith(")") and "," not in text:   # (3,500) are two
        text = text[1:-1].strip()
    found = NUMBER.fullmatch(text)
    if not found:
        return None
    sign, mantissa, _, *powers = found.groups()
    exponent = sum(int(power) for power in powers if power) + (SCALES[scale[1]] if scale else 0)
    digits = re.sub("[ ,'_]", "", mantissa or "1")
    return EXACT.scaleb(EXACT.create_decimal(sign + digits), exponent)


def same_number(a: Decimal, b: Decimal) -> bool:
    """Whole numbers exactly; others to six decimals and five digits, so that no tiny number is like another.

    Numbers too large for six decimals to mean anything may differ by the noise of floating point.
    """
    gap, size = EXACT.abs(EXACT.subtract(a, b)), max(a.copy_abs(), b.copy_abs())
    if size < 10**15 and a == a.to_integral_value() and b == b.to_integral_value():
        return a == b
    rounded = gap <= Decimal("5e-7") and gap <= EXACT.multiply(size, Decimal("1e-5"))
    return rounded or gap <= EXACT.multiply(size, Decimal("1e-9"))


# --- what Math-Verify would misread ---

WORDS = re.compile(r"(?=.*?(?:[A-Za-z]{4}|[A-Z]{2}|[A-Z][a-z]{2}|\b(?=[a-z]*[eiou])[a-z]{3}\b)|[A-Z][a-z]$)"
                   r"[A-Za-z](?:[\w .,:;'&]|(?<=[a-z])-(?=\w))*")
SETS = re.compile(r"(?:[A-Za-z](?!\s*[A-Za-z])|[\s()]|\\cup|\\cap|\\setminus)+")


def flat(text: str) -> str:
    r"""A readable text as a line to be compared: "\text{June}\ 20" is "June 20", "x + 1" is "x+1"."""
    text = re.sub(r"\\(?:text|math)(?:rm|bf|it|normal)?\s*\{([^{}]*)\}", r" \1 ", text)
    text = " ".join(re.sub(r"\\[,;:! ]", " ", text).split())
    return re.sub(r"(?<=\W) | (?=\W)", "", text).rstrip(".,;:")


CLOCK = re.compile(r"\d{1,2}:[0-5]\d(:[0-5]\d)?")
DATE = re.compile(r"\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2(\d{4}|\d{2})")


def same_time(gold: str, answer: str) -> bool | None:
    """2:30 is no ratio of 1:15, and 2023-01-05 is not 2017; None where the right answer is neither time nor date."""
    gold, answer = gold.replace(" ", ""), answer.replace(" ", "")
    if not CLOCK.fullmatch(gold) and not DATE.fullmatch(gold):
        return None
    parts = [[text if text in "-/.:" else int(text) for text in re.findall(r"\d+|\D", side)] for side in
             (gold, answer) if re.fullmatch(r"[\d/.:-]+", side)]
    return len(parts) == 2 and parts[0] == parts[1]


def same_ratio(gold: str, answer: str) -> bool | None:
    """3:2 is 6:4, but no quotient; None where there is none, or one that Math-Verify can tell."""
    sides = [text.split(":") for text in (gold, answer)]
    if len(sides[0]) == len(sides[1]) == 1 or re.search(r"\\\{|\\to|\\mid", gold + answer):
        return None
    if len(sides[0]) != len(sides[1]):
        return False
    golds, answers = ([number(part.strip()) for part in side] for side in sides)
    if None in golds + answers:
        return None if len(golds) == 2 else False   # Math-Verify takes 1:2:3 for 1/2/3
    return all(same_number(EXACT.multiply(a, answers[0]), EXACT.multiply(b, golds[0]))
               for a, b in zip(golds[1:], answers[1:]))


def same_sets(gold: str, answer: str) -> bool | None:
    r"""A\cup B is B\cup A: both are tried on every part of the Venn diagram. None for anything else."""
    both = f"{gold} {answer}"
    names = sorted(set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", both)))
    if not SETS.fullmatch(gold) or not SETS.fullmatch(answer) or "\\" not in both or len(names) > 6:
        return None
    parts = range(2 ** len(names))
    inside = {name: sum(1 << part for part in parts if part >> i & 1) for i, name in enumerate(names)}
    values = [venn(text, inside) for text in (gold, answer)]
    return None if None in values else values[0] == values[1]


def venn(text: str, inside: dict[str, int]) -> int | None:
    """The parts of the diagram, as bits, that a text of set operations means; None if it is ambiguous or broken."""
    for latex, sign in ((r"\cup", "|"), (r"\cap", "&"), (r"\setminus", "-")):
        text = text.replace(latex, sign)
    text = f"({re.sub('[A-Za-z]', lambda name: str(inside[name[0]]), text)})".replace(" ", "")
    while not text.isdigit():
        group = re.search(r"\((\d+(?:([|&-])\d+(?:\2\d+)*)?)\)", text)   # one kind of sign between two brackets
        if not group:
            return None
        first, *others = map(int, re.findall(r"\d+", group[1]))
        for other in others:
            first = {"|": first | other, "&": first & other, "-": first & ~other}[group[2]]
        text = text[:group.start()] + str(first) + text[group.end():]
    return int(text)


def verdict(gold: str, answer: str) -> bool | None:
    """Are two short answers the same? None where only Math-Verify can tell."""
    if len(gold) > LONG or len(answer) > LONG:
        return None
    euler = has_euler(gold) or has_euler(answer)
    coins = {money(undressed(text))[1] for text in (gold, answer)} - {""}
    gold, answer = readable(gold, euler), readable(answer, euler)
    if not answer or len(coins) > 1:   # dollars are no euros
        return False
    values = number(gold), number(answer)
    if None not in values:
        return same_number(*values)
    if flat(gold) == flat(answer):
        return True
    if WORDS.fullmatch(flat(gold)):
        return flat(gold).casefold() == flat(answer).strip("()").casefold()
    for judge in (same_time, same_ratio, same_sets):
        same = judge(gold, answer)
        if same is not None:
            return same
    return None
