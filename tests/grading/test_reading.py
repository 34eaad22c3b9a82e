r"""Where a completion has its answer: the boxes that belong together, and the marks of reasoning."""

import pytest

from opasd.errors import ConfigError
from opasd.grading.pool import Grader, Job
from opasd.grading.reading import KNOWN_MARKS, Mark, Reading, boxed_answer, marks_of, open_mark, parse_marks


@pytest.mark.parametrize(
    ("text", "joined", "last"),
    [
        (r"\boxed{-2} and \boxed{1}", "-2, 1", "1"),
        (r"$x = \boxed{-2}$, $y = \boxed{1}$", "1", "1"),
        (r"$\boxed{-2}$, $\boxed{1}$", "-2, 1", "1"),
        (r"\boxed{1}, \boxed{2}, and \boxed{3}", "1, 2, 3", "3"),
        (r"\boxed{1} \text{ or } \boxed{2}", "1, 2", "2"),
        (r"\(\boxed{1}\); \(\boxed{2}\)", "1, 2", "2"),
        (r"\boxed{\boxed{1}, \boxed{2}}", "1, 2", "2"),
        (r"\boxed{5}, \boxed{5}", "5", "5"),
        (r"\boxed{1} \boxed{2}", "2", "2"),
        (r"\boxed{1}. Therefore \boxed{2}", "2", "2"),
        (r"\boxed{1}, or rather \boxed{2}", "2", "2"),
        (r"\boxed{1}, no, wait: \boxed{2}", "2", "2"),
        (r"\boxed{1}, \boxed{2", "1", "1"),
        (r"\boxed{1}, \boxed{}", "", ""),
        (r"\boxed{}, \boxed{1}", "1", "1"),
        ("<|begin_of_box|>5<|end_of_box|>", "5", "5"),
        (r"<|begin_of_box|>\frac{1}{2}<|end_of_box|> done", r"\frac{1}{2}", r"\frac{1}{2}"),
        ("<|begin_of_box|>5", None, None),
    ],
)
def test_boxes_that_belong_together(text, joined, last):
    assert boxed_answer(text) == joined
    assert boxed_answer(text, Reading(boxes="last")) == last


def test_the_policy_is_the_jobs():
    job = Job(r"\boxed{-2} and \boxed{1}", "1, -2", reading=Reading(boxes="joined"))
    with Grader(workers=1) as grader:
        assert grader.grade(job).verdict == "correct"
        assert grader.grade(job._replace(reading=Reading(boxes="last"))).verdict == "wrong"


@pytest.mark.parametrize("mark", KNOWN_MARKS)
def test_a_box_inside_reasoning_is_no_answer(mark):
    opens, closes = mark
    assert boxed_answer(rf"{opens} perhaps \boxed{{1}}") is None
    assert boxed_answer(rf"{opens} perhaps \boxed{{1}} {closes} I do not know") is None
    assert boxed_answer(rf"{opens} \boxed{{1}} {closes} so \boxed{{2}}") == "2"
    assert boxed_answer(rf"\boxed{{1}} {closes} so \boxed{{2}}") == "2"
    assert boxed_answer(rf"so \boxed{{2}} {opens} or \boxed{{1}}") == "2"
    assert open_mark(f"a question {opens}\n", KNOWN_MARKS) == opens
    assert open_mark(f"a question {opens} none {closes}\n", KNOWN_MARKS) == ""


def test_channels_as_a_model_writes_them():
    start = r"<|channel|>analysis<|message|>Maybe \boxed{1}"
    assert boxed_answer(start) is None
    assert boxed_answer(rf"{start}<|end|><|start|>assistant<|channel|>commentary<|message|>\boxed{{3}}") is None
    assert boxed_answer(rf"{start}<|end|><|start|>assistant<|channel|>final<|message|>\boxed{{2}}<|return|>") == "2"


def test_marks_of_a_template():
    template = "{% if thinking %}{{ '<own:think>' }}{% else %}<own:think></own:think>{% endif %}[half_thought] <b></b>"
    own = [mark for mark in marks_of(template) if mark not in KNOWN_MARKS]
    assert own == [Mark("<own:think>", "</own:think>")]
    assert marks_of(None) == KNOWN_MARKS
    assert boxed_answer(r"<own:think>\boxed{1}", Reading(marks_of(template))) is None


@pytest.mark.parametrize(
    ("opens", "closes"),
    [
        ("<|think_start|>", "<|think_end|>"),
        ("<|begin_of_reasoning|>", "<|end_of_reasoning|>"),
        ("<|THINKING_OPEN|>", "<|THINKING_CLOSE|>"),
        ("<REASON>", "</REASON>"),
    ],
)
def test_marks_of_a_template_that_names_the_beginning_and_the_end(opens, closes):
    assert marks_of(f"{{{{ '{closes}' }}}} {opens}")[len(KNOWN_MARKS) :] == (Mark(opens, closes),)


def test_marks_by_flag():
    assert parse_marks(["BEGIN", "END"]) == (Mark("BEGIN", "END"),)
    assert boxed_answer(r"BEGIN \boxed{1} END \boxed{2} BEGIN \boxed{3}", Reading(parse_marks(["BEGIN", "END"]))) == "2"
    with pytest.raises(ConfigError, match="give OPEN,CLOSE"):
        parse_marks(["[THINK]"])
