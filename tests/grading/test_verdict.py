r"""Grading: the right box, the right equalities, and no text that hangs it."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.grading import equality
from opasd.grading.verdict import boxed_answer, is_correct


def box(answer: str) -> str:
    return rf"So the answer is \boxed{{{answer}}}."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed {5}", "5"),
        ("\\boxed\n{ 5 }", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{a{b{c}d}e} and more }", "a{b{c}d}e"),
        (r"\boxed{1}, no, \boxed{2}", "2"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{1} then \boxed{2 {3}", "1"),
        (r"\boxed{2 \boxed{3}", "3"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"{{{ \boxed{5}", "5"),
        (r"}}} \boxed{5}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{\begin{pmatrix}{1}\\{2}\end{pmatrix}}", r"\begin{pmatrix}{1}\\{2}\end{pmatrix}"),
        (r"\boxed{1\\{-2}}", r"1\\{-2}"),
        (r"\boxed{\text{line\\}}", r"\text{line\\}"),
        (r"\boxed{1\\\{2\\\}}", r"1\\\{2\\\}"),
        (r"\\\boxed{5}", "5"),
        (r"\boxed{}", ""),
        (r"\\boxed{5}", "5"),
        (r"$$\boxed{5}$$ {", "5"),
        (r"\boxed{5", None),
        (r"\boxed 5", None),
        ("boxed{5}", None),
        ("The answer is 5.", None),
        ("", None),
    ],
)
def test_the_last_whole_box(text, expected):
    assert boxed_answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        (r"<think>\boxed{1}</think> I do not know.", None),
        (r"\boxed{1}</think> \boxed{2}", "2"),
        (r"\boxed{1}</think>", None),
        (r"<think>a</think>\boxed{1}<think>b</think>\boxed{2}", "2"),
        (r"<think>Perhaps \boxed{1}, but wait", None),
        (r"\boxed{1 </think> 2}", None),
        (r"<think>\boxed{</think>1}", None),
    ],
)
def test_only_the_answer_proper_is_read(text, expected):
    assert boxed_answer(text) == expected


EQUAL = [
    ("1,000", "1000"),
    ("1{,}000", "1000"),
    ("12,345,678", "12345678"),
    ("0.5", r"\frac{1}{2}"),
    (r"\dfrac{1}{2}", "1/2"),
    (r"\frac12", ".5"),
    (r"\frac 1 2", "0.50"),
    (r"-\frac{1}{2}", "-0.5"),
    (r"\frac{-1}{2}", r"-\tfrac{1}{2}"),
    (r"\frac{1}{-2}", "-1/2"),
    (r"\frac{10}{4}", "2.5"),
    ("7.", "7"),
    ("7.0", "7"),
    ("007", "7"),
    ("+7", "7"),
    ("-0", "0"),
    ("− 3", "-3"),
    ("50%", "50"),
    (r"50\%", "50"),
    (r"\$5", "5"),
    ("$5$", "5"),
    (r"\text{east}", "east"),
    (r"\text{ 42 }", "42"),
    (r"\mathrm{No}", "No"),
    (r"( 1 ,\, 2 )", "(1,2)"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
    ("x^2 + 1", "x^2+1"),
    ("1e3", "1000"),
    ("0.1", "1/10"),
    ("9007199254740993", "9007199254740993.0"),
]
UNEQUAL = [
    ("7", "8"),
    ("7", "-7"),
    ("0.33", "1/3"),
    ("1,00", "100"),
    ("9007199254740993", "9007199254740992"),
    (r"\frac{1}{0}", r"\frac{2}{0}"),
    ("1/0", "0"),
    ("x", "y"),
    (r"\leftarrow", "arrow"),
    ("1_000", "1000"),
    ("٣", "3"),
    ("inf", "Infinity"),
    ("1e400", "1e401"),
    ("", "0"),
    ("0", ""),
]


@pytest.mark.parametrize(("answer", "known"), EQUAL)
def test_equal_answers(answer, known):
    assert is_correct(box(answer), known)
    assert is_correct(box(known), answer)


@pytest.mark.parametrize(("answer", "known"), UNEQUAL)
def test_unequal_answers(answer, known):
    assert not is_correct(box(answer), known)
    assert not is_correct(box(known), answer)


@pytest.mark.parametrize("empty", ["", " ", "$$", r"\text{}", "."])
def test_an_empty_answer_is_never_right(empty):
    assert not is_correct(box(empty), empty)
    assert not is_correct(box(empty), "")
    assert not is_correct("", empty)


@given(st.text(), st.text())
def test_anything_can_be_graded(text, answer):
    assert isinstance(is_correct(text, answer), bool)
    assert isinstance(is_correct(box(text), answer), bool)


LATEX = st.lists(
    st.sampled_from(
        [r"\boxed", r"\boxed{", "{", "}", r"\{", "\\", r"\frac", r"\text{", "1", ",", "000", "</think>", "%"]
    )
).map("".join)


@given(LATEX, LATEX)
def test_broken_latex_can_be_graded(text, answer):
    assert isinstance(is_correct(text, answer), bool)
    answer = boxed_answer(text)
    assert answer is None or answer in text


@given(st.fractions(max_denominator=10**6))
def test_every_fraction_equals_itself(value):
    latex = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    assert is_correct(box(latex), str(value))
    assert not is_correct(box(latex), str(value + 1))


@given(st.integers())
def test_every_integer_equals_itself_with_separators(value):
    assert is_correct(box(f"{value:,}"), str(value))
    assert not is_correct(box(f"{value:,}"), str(value + 1))


@pytest.mark.parametrize(
    "answer",
    ["1e999999999", "-1E+999999999", "1e-999999999", "9" * 5000, "0." + "1" * 5000, "1/" + "9" * 5000,
     rf"\frac{{1}}{{{'9' * 5000}}}", "1" + ",000" * 3000],
    ids=lambda answer: answer[:12],
)  # fmt: skip
def test_numbers_too_large_to_make(answer):
    """Each is itself as text, and equal to no number; made into one, the first would need 400 MB and minutes."""
    tracemalloc.start()
    try:
        assert is_correct(box(answer), answer)
        assert not is_correct(box(answer), "7")
        assert not is_correct(box("7"), answer)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "unit",
    ["\\boxed{", "{", "}", "\\boxed ", "\\boxed{}", "\\{", "<think>", "</think>", "\\text{", "1,", "1,000", "9", " ",
     "$", "\\", ".", "-", "1/", "\\frac{1}", "é", "\x00", "\ud800"],
    ids=ascii,
)  # fmt: skip
def test_a_megabyte_of_garbage(unit):
    """In and out of a box, as the found and as the known answer; anything quadratic in it would take hours."""
    garbage = unit * (1_000_000 // len(unit))
    assert not is_correct(garbage, "7")
    assert isinstance(is_correct(box(garbage), garbage), bool)
    assert not is_correct(rf"\boxed{{{garbage}", "7")


@pytest.mark.parametrize("joint", [r"\pm 1, ", "or ", "and ", "$ $"])
def test_a_long_list_is_not_compared_item_by_item(joint, monkeypatch):
    """However its items are separated: each would be compared with each of the other list."""
    compared = []
    monkeypatch.setattr(equality, "_same_value", lambda *pair: compared.append(pair))
    items = [str(number) for number in range(150)]
    assert equality.equal(joint.join(items), joint.join(reversed(items)), lambda *_: None) is False
    assert not compared
