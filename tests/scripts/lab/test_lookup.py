"""Demonstrations of the task `lookup`: right with a reference, wrong at the set rate without, no mistake learned."""

import json
import random
import re
from dataclasses import asdict

import pytest

from opasd.data.made.lookup import make_puzzles
from scripts.lab.lookup import CONTEXTS, MIXTURE, Rates, _drill_question, main, response
from scripts.lab.measure import is_right

PUZZLES = make_puzzles("pretrain", 300)


@pytest.mark.parametrize(
    ("kind", "wrong_item", "low", "high"),
    [("student", 0.6, 0.2, 0.4), ("thinking", 0.6, 0.6, 0.9), ("student", 0.95, 0.08, 0.24), ("student", 0.0, 1, 1)],
)
def test_students_are_right_as_often_as_their_rates_say(kind, wrong_item, low, high):
    rng, rates = random.Random(0), Rates(wrong_item=wrong_item)
    texts = ["".join(text for text, _ in response(puzzle, kind, rates, rng)) for puzzle in PUZZLES]
    right = sum(is_right(text, puzzle.answer) for text, puzzle in zip(texts, PUZZLES, strict=True))
    assert low <= right / len(PUZZLES) <= high


def test_privileged_responses_learn_no_mistake():
    rng = random.Random(0)
    for puzzle in PUZZLES:
        segments = response(puzzle, "pointers before", Rates(unnoticed=0.0), rng)
        assert is_right("".join(text for text, _ in segments), puzzle.answer)
        needed = {one.line(puzzle.item) for one in puzzle.needed}
        # A line that takes up a statement is learned whole only if the statement is needed, or after a mistake.
        for text in (text for text, learned in segments[:1] if learned):
            assert set(re.findall(r"^\w+'s \w+: (?:\w+'s [+-] \d+|\d+)\n", text, flags=re.MULTILINE)) <= needed


def test_the_mixture_is_whole_and_has_a_context_for_each_kind():
    assert sum(MIXTURE.values()) == pytest.approx(1.0)
    assert set(MIXTURE) == {"student", "thinking", "drill", *CONTEXTS}


def test_a_drill_repeats_the_statements_that_it_asks_for():
    puzzle = PUZZLES[0]
    ((text, learned),) = response(puzzle, "drill", Rates(), random.Random(0))
    question = _drill_question(puzzle)
    asked = [part.strip(" .") for part in question.split(" Repeat ")[1].split(",")]
    assert learned
    assert asked == [line.split(":")[0] for line in text.splitlines()]
    assert all(line in question for line in text.splitlines())


def test_a_share_of_mistakes_above_one_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--output", str(tmp_path / "model"), "--wrong-item", "1.5"])
    assert stopped.value.code == 2
    assert "--wrong-item is 1.5; give a share from 0 to 1" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_the_record_of_a_model_says_how_often_its_student_goes_wrong(tmp_path):
    tiny = ["--steps", "1", "--batch", "2", "--examples", "8", "--measured", "0", "--wrong-item", "0.95"]
    main(["--output", str(tmp_path / "model"), *tiny])
    record = json.loads((tmp_path / "model/TRAINING.json").read_text(encoding="utf-8"))
    assert record["rates"] == {**asdict(Rates()), "wrong_item": 0.95}
    assert record["command"].endswith("--wrong-item 0.95")
