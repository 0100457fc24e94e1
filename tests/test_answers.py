r"""answers.py, mathtext.py, judge.py: each kind of answer that was once judged wrongly, and its neighbours."""
import json
import time

import pytest

import agent
from settings import answers, mathtext, spice

# --- numbers, large and small ---

NUMBERS = [   # (gold, answer, right)
    (r"3\times 10^{-20}", r"7\times 10^{-20}", False), (r"1.6\times 10^{-19}", r"9.1\times 10^{-31}", False),
    ("0.0000003", "0.0000001", False), ("0.001", "0.0010004", False), ("0", "0.0000001", False),
    (r"-1.6\times 10^{-19}", r"1.6\times 10^{-19}", False), ("1e400", "2e400", False), ("1e999999999", "1", False),
    (r"3\times 10^{-20}", "3e-20", True), (r"3\times 10^{-20}", r"0.3\cdot 10^{-19}", True),
    (r"3\times 10^{-20}", "3*10^-20", True), (r"3\times 10^{-20}", "3×10⁻²⁰", True),
    (r"6\times 10^{23}", "6 x 10^23", True),
    ("7.2e14", r"7.2\times 10^{14}", True), (r"7.2\times 10^{14}", "7.2E+14", True), ("1000", "1e3", True),
    ("10^{-7}", "0.0000001", True), (r"1.6\times10^{-19}\text{ C}", r"1.7\times 10^{-19}", False),
    ("0.333333", "0.33333333", True), ("3.14", "3.1416", False), ("0.5", "0.500001", False),
    ("123456.0", "123456.1", False), ("1000000.0", "1000001", False), ("5000000", "5 million", True),
    ("5", "5 million", False), ("0.30000000000000004", "0.3", True), ("1" * 100 + ".0", "1" * 100, True),
]
JUDGED = [   # what only Math-Verify can tell
    ("1e3", "3e", False), ("3e", "1e3", False), (r"\frac{1}{1000}", "1e-3", True), ("3e-2", "-2+3e", True),
    (r"\sqrt{2}\times 10^{-20}", r"\sqrt{3}\times 10^{-20}", False), ("e^{-40}", "e^{-41}", False),
    (r"\frac{1}{10^{20}}", r"\frac{1}{10^{21}}", False), (r"\frac{1}{10^{20}}", "10^{-20}", True),
    (r"x=3\times 10^{-20}", r"x=7\times 10^{-20}", False), (r"3\times 10^{-20}x", r"7\times 10^{-20}x", False),
    (r"(1, 3\times 10^{-20})", r"(1, 7\times 10^{-20})", False), (r"(1, 3\times 10^{-20})", "(1, 3e-20)", True),
    (r"\frac{1}{3}", "0.333333", True), (r"\frac{1}{3}", "0.3333", False), (r"50\%", "0.5", True),
    (r"50\%", "50", True),
    (r"(1+\sqrt{2})^2", r"3+2\sqrt{2}", True), (r"\sqrt{2}\sqrt{3}-\sqrt{6}", "0", True),
]


@pytest.mark.parametrize("gold, answer, right", NUMBERS)
def test_plain_numbers_are_compared_as_numbers(gold, answer, right, monkeypatch):
    monkeypatch.delattr(answers, "same_mathematics")   # without Math-Verify
    assert answers.is_right("math", gold, answer) is right


@pytest.mark.parametrize("gold, answer, right", JUDGED)
def test_tiny_numbers_inside_mathematics(gold, answer, right):
    assert answers.is_right("math", gold, answer) is right


# --- ratios, names, words, sets ---

@pytest.mark.parametrize("gold, answer, right", [
    ("3:2", "3/2", False), (r"\frac{3}{2}", "3:2", False), ("1.5", "3:2", False), ("3:2", "2:3", False),
    ("204", "204:1", False),
    (r"\sqrt{2}", r"\sqrt{2}:1", False), ("3:2", "3 : 2", True), ("3:2", r"3\colon 2", True), ("3:2", "6:4", True),
    ("1:2:3", "1:2:4", False), ("1:2:3", "2:4:6", True),
    ("ABC", "CBA", False), ("AB", "BA", False), ("ACBD", "ABCD", False), (r"\text{ABC}", "BCA", False),
    ("ABC", r"\text{ABC}", True),
    ("June 20", r"\text{June 20}", True), (r"\text{June 20}", "June 20", True), ("June 20", r"\mathrm{June}\ 20", True),
    ("June 20", "20 June", False), ("June 20", "June 21", False), (r"\text{listen}", "silent", False),
    ("2:30", "1:15", False), ("12:30", "2:5", False), ("2:30", "02:30", True), ("2023-01-05", "2017", False),
    ("2023-01-05", "2023-05-01", False), ("2023-01-05", "2023-1-5", True), ("1/2/2020", "1/4040", False),
    ("5/10/15", "1/30", False), ("16:9", "32:18", True),
    ("10:30 a.m.", r"10:30\text{ a.m.}", True), ("10:30 a.m.", "10:30 p.m.", False),
    (r"A\cup B", r"B\cup A", True), (r"A\cap B", "B ∩ A", True), (r"A\cup(B\cup C)", r"(C\cup A)\cup B", True),
    (r"A\cap(B\cup C)", r"(A\cap B)\cup(A\cap C)", True), (r"A\cup B", r"A\cap B", False),
    (r"A\cup B", r"A\cup C", False),
    (r"A\setminus B", r"B\setminus A", False), (r"A\cup B\cap C", r"C\cap A\cup B", False),
])
def test_what_is_no_product_and_no_quotient(gold, answer, right):
    assert answers.is_right("math", gold, answer) is right


@pytest.mark.parametrize("gold, answer, right", [
    ("xy", "yx", True), ("3xy", "3yx", True), ("x+AB", "AB+x", True), (r"\{1,2\}", r"\{2,1\}", True),
    ("(1,2)", "(2,1)", False),
    (r"[0,1]\cup[2,3]", r"[2,3]\cup[0,1]", True)])
def test_what_still_may_be_written_in_another_order(gold, answer, right):
    assert answers.is_right("math", gold, answer) is right


# --- decorations ---

@pytest.mark.parametrize("answer", r"""
    204. 204, 204; =204 \approx204 ≈204 ~204 204° 204^\circ 204^{\circ} €204 204€ £204 \$204 $204 $204$ \(204\) \[204\]
    US$204 \underline{204} \fbox{204} \mathbf{204}. \textbf{204} **204** `204` "204" +204 204.0 \underline{\text{204}}
    \textcolor{red}{204} \color{red}{204} \Large{204} \displaystyle{204} ２０４ (204) {204} \emph{204} 204\text{cm}
    Answer:204 \text{Answer:}204""".split() + [
    "204 USD", "USD 204", "204 euros", r"204\text{ dollars}", r"\approx 204", "= 204.", r"\bf 204", "The answer is 204",
    "\u200b204", "204\u00a0", r"204\,", r"\quad 204"])
def test_decorations_of_a_number(answer, monkeypatch):
    monkeypatch.delattr(answers, "same_mathematics")
    assert answers.is_right("math", "204", answer) and not answers.is_right("math", "205", answer)


@pytest.mark.parametrize("answer", [
    "10,000", "10 000", r"10\ 000", r"10\;000", r"10\,000", r"10\:000", r"10{,}000", r"10,\!000", "10~000",
    "10\u202f000",
    "10\u00a0000", "10'000", "10_000", "10 000.", r"\$10\,000"])
def test_groups_of_three_digits(answer, monkeypatch):
    monkeypatch.delattr(answers, "same_mathematics")
    assert answers.is_right("math", "10000", answer) and not answers.is_right("math", "1000", answer)


@pytest.mark.parametrize("gold, answer", [
    ("204", "20.4"), ("204", "2 04"), ("204", "204204"), ("204", r"\neq 204"), ("204", ">204"), ("204", "204 or 205"),
    ("204", r"\overline{204}"), ("204", "204!"), ("204", "-204"), ("204 EUR", "204 USD"), ("$204", "204 cents"),
    ("204", "."),
    ("10000", "10 00 0"), ("10000", "10, 000"), ("10000", "10 0000"), ("123", "0,123"), ("3, 5", "3 5"),
    ("3500", "(3,500)"),
    ("EUR", "USD")])
def test_what_is_more_than_decoration(gold, answer):
    assert not answers.is_right("math", gold, answer)


@pytest.mark.parametrize("gold, answer, right", [
    ("3.5", "3 1/2", True), (r"3\frac{1}{2}", "3 1/2", True), ("7/2", "3½", True), ("1/2", "½", True),
    ("-3/2", "-1 1/2", True), ("31/2", "3 1/2", False), ("3/2", "3 1/2", False),
    (r"\frac{1}{3}", r"0.\overline{3}", True), (r"0.\overline{3}", "1/3", True),
    (r"\frac{1}{6}", r"0.1\overline{6}", True),
    (r"\frac{1}{7}", r"0.\dot{1}4285\dot{7}", True), ("1", r"0.\overline{9}", True), ("1/3", "0.333...", True),
    ("0.3", r"0.\overline{3}", False), (r"\frac{12}{100}", r"0.\overline{12}", False),
    (r"0.\overline{3}", r"\overline{3}", False),
    (r"\emptyset", r"\varnothing", True), (r"\varnothing", "∅", True), (r"\emptyset", r"\{0\}", False),
    (r"\emptyset", "0", False),
    ("(0,1)", "]0,1[", True), ("]0,1[", "(0,1)", True), ("[0,1)", "[0,1[", True), ("(0,1]", r"\left]0,1\right]", True),
    (r"(-\infty,1)", r"]-\infty;1[", True), (r"(0,1)\cup(2,3)", r"]0,1[\cup]2,3[", True), ("[0,1]", "]0,1[", False),
    ("(0,1)", "]1,0[", False), ("(0.5,1)", "]0,5;1[", True),
    (r"\frac{\pi}{2}", "pi/2", True), ("2pi", r"2\pi", True), (r"\sqrt{2}", "√2", True), (r"\sqrt{2}", "sqrt(2)", True),
    (r"\ln 2", "ln(2)", True), (r"\frac{\pi}{2}", "pi/3", False), (r"\pi", "ip", False), (r"\infty", "∞", True),
    (r"\frac{1}{2}", r"\approx 0.5", True), (r"\frac{1}{2}", "= 1/2", True),
    (r"\frac{1}{2}", r"\underline{\frac{1}{2}}.", True),
    (r"\frac{1}{2}", r"\frac12 USD", True), ("x^2", "=x^2", True), ("5", r"5\text{ apples}", True), ("5 m", "5", True)])
def test_decorations_of_mathematics(gold, answer, right):
    assert answers.is_right("math", gold, answer) is right


@pytest.mark.parametrize("gold, answer, right", [
    ("Newton's law", "Newton’s law", True), ("yes", "“yes”", True), ("well-known", "well\u2011known", True),
    ("R&D", r"R\&D", True), ("R&D", r"\text{R\&D}", True), ("50%", r"50\%", True), ("Krebs cycle", "Krebs~cycle", True),
    ("Krebs cycle", r"\textbf{\text{Krebs cycle}}", True), ("cooperate", "co\u00adoperate", True),
    ("oui", "«oui»", True),
    ("R&D", "RD", False), ("well-known", "wellknown", False), ("C#", "C", False), ("can't", "cant", False),
    ("a b", "ab", False)])
def test_typography_of_texts(gold, answer, right):
    assert answers.is_right("string", gold, answer) is right


def test_hostile_answers_cost_no_time():
    pieces = ["1", "{", r"\text{", "answer: ", r"\,", ",,", "(", "]0,", "**", r"\overline{", "0.3", "USD", "e", "A ",
    "$"]
    start = time.process_time()
    for piece in pieces:
        text = (piece * 1000)[:1000]
        mathtext.verdict("204", text), mathtext.verdict("204", text[:300]), mathtext.verdict(text, text[::-1])
        answers.letter(text), answers.normalise(text), agent.extract_action(text * 20)
    assert time.process_time() - start < 5


# --- letters ---

@pytest.mark.parametrize("answer", [
    "B!",
    "B", "b", "(B)", "[B]", "{B}", "B.", "B,", "B)", "B:", "**B**", "`B`", "'B'", "$B$", r"\(B\)", r"\left(B\right)",
    r"\textbf{(B)}", r"\boxed{B}", "Option B", "Option (B)", "Answer: B", "The correct answer is B", "Choice B.",
    "B Paris",
    "**B** Paris", "**B. Paris**", "B) Paris", "(B) Paris", "B: Paris", "B - Paris",
    "Option B: Paris", r"B\text{ Paris}",
    r"\textbf{(B)}\ 5", "B because it is prime", "B. because", "B is correct"])
def test_letters(answer):
    assert answers.letter(answer) == "B"


@pytest.mark.parametrize("answer", [
    "A or B", "A) or B)", "A and B", "A, B", "A,B", "A/B", "A & B", "A B", "(A)(B)", "[A, B]", "A = B",
    "Option A or option B",
    "not B", "B or not", "B is wrong", "E. coli", "C. elegans", "a.m.", "A.M.", "e.g.", "D.C.", "A cat", "a cat",
    "I think",
    "A Christmas Carol", "C major", "AB", "B12", "B-12", "C++", "A's", "Because", "E = mc^2", "K", "5", ""])
def test_no_letters(answer):
    assert answers.letter(answer) == ""


@pytest.mark.parametrize("answer, choice", [
    ("B (Paris)", "B"), ("B) (paris).", "B"), ("B (London)", ""),
    ("B", "B"), ("B Paris", "B"), ("B) paris.", "B"), ("B. Paris, because it is", "B"), ("B. because", "B"),
    ("C a cat", "C"),
    ("A cat", ""), ("B London", ""), ("B) Paris or London", ""), ("A. Paris", ""), ("E", ""), ("E. coli", ""),
    ("Paris", ""),
    (r"D) $\frac{1}{2}$", "D"), (r"D) \frac12", ""), ("D) 0.50", "")])
def test_behind_a_letter_stands_its_option(answer, choice):
    options = {"A": "London", "B": "Paris", "C": "a cat", "D": r"$\frac{1}{2}$"}
    assert answers.letter(answer, options) == choice


def test_options_are_known_where_questions_are_asked():
    options = {"A": "4", "B": "5", "C": "50", "D": "-5"}
    code = json.dumps({"type": "mcq", "question": "?", "answer": "B", "options": options})
    world = spice.Question(spice.Environment(code, "", "mcq", "corpus", "", "q"))
    rewards = [world.step(f"\\boxed{{{said}}}")[1] for said in ("B) 5", "B", "B 5.0", "B) 50", "B) 4")]
    assert rewards == [1, 1, 1, 0, 0]


# --- boxes ---

@pytest.mark.parametrize("reply, content", [
    (r"\boxed{7} no, \framebox[2cm]{42}", "42"), (r"\boxed{7} no, \framebox[2cm][l]{42}", "42"),
    (r"\boxed{7} no, \fbox{42}", "42"), (r"\fbox{7} no, \boxed{42}", "42"), (r"\framebox{42}", "42"),
    (r"\boxed{\left\{ x=1 \right.}", r"\left\{ x=1 \right."), (r"\boxed{a \} b}", r"a \} b"),
    (r"\boxed{\{1,2\}}", r"\{1,2\}"),
    (r"\boxed{x \\{y}}", r"x \\{y}"), (r"\boxed{\text{up} \{}", r"\text{up} \{"),
    (r"\boxed{7}, no \boxed 4", "4"), (r"$\boxed 42$", "42"), (r"\boxed -3.", "-3"), (r"\boxed B", "B"),
    (r"\boxed{7} or $\boxed\frac{1}{2}$", r"\frac{1}{2}"), (r"\boxed \boxed{4}", "4"),
    (r"\boxed{7} as you want it in \boxed now", "7"), (r"\boxed{7} in \boxed a second", "7"),
    (r"\boxed{7}, no \boxed{8", None), (r"\boxed{7}, no \boxed{\text{8}", None), (r"\boxed{7} \fbox{8 \}", None),
    (r"\boxed{8 or \boxed{7}", "7"), ("7", None)])
def test_boxes(reply, content):
    assert agent.last_boxed(reply) == content


@pytest.mark.parametrize("reply, action", [
    (r"\boxed{7}, no \fbox{42}", r"\boxed{42}"), (r"\boxed 4", r"\boxed{4}"),
    (r"\boxed{7} and \boxed{never closed", r"and \boxed{never closed"),
    (r"so \boxed{never closed", r"so \boxed{never closed")])
def test_a_box_that_never_ends_is_no_action_and_leaves_no_earlier_one(reply, action):
    assert agent.extract_action(reply) == action
