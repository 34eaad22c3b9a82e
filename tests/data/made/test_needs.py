"""What each step of a response needs from the question: against the puzzles' structure, right and wrong responses."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.data.made import arithmetic, counts, ledger, lookup, make_problems, needed_spans
from opasd.data.problems import Problem

seeds = st.integers(0, 10**6)


def needs_of(source, puzzle_or_problem, response=None):
    """The needs as texts: (characters of the response from the step on, copied text, statement)."""
    problem = puzzle_or_problem
    if not isinstance(problem, Problem):
        problem = Problem(problem.question, problem.solution, problem.answer, problem.id)
    response = problem.solution if response is None else response
    return [
        (response[index:], problem.question[slice(*span)], problem.question[slice(*statement)])
        for index, span, statement in needed_spans(source, problem, response)
    ]


@given(seeds)
def test_lookup_needs_each_statement_of_the_chain_part_by_part(seed):
    for puzzle in lookup.make_puzzles("test", 3, seed):
        expected = []
        for one in puzzle.needed:
            text = f"({puzzle.statements.index(one) + 1}) {one.text()}"
            parts = [one.source, one.word, str(one.amount)] if one.source else [str(one.amount)]
            expected += [(part, text) for part in parts]
        needs = needs_of("lookup", puzzle)
        assert [(copied, statement) for _, copied, statement in needs] == expected
        for rest, copied, _ in needs:
            assert rest.startswith({"plus": "+", "minus": "-"}.get(copied, copied))


def test_a_wrong_lookup_needs_the_right_statement_up_to_the_mistake():
    puzzle = lookup.make_puzzles("test", 1, level=2)[0]
    first, second, _ = puzzle.needed
    head, sign = f"{first.person}'s {puzzle.item}: ", {"plus": "+", "minus": "-"}[first.word]
    mended = f"Wait, {head}{first.source}'s {sign} 99\n"
    response = f"{head}Nobody's + 9\n{mended}{head}13 + 4 = 17\n{second.person}'s {puzzle.item}: "
    needs = needs_of("lookup", puzzle, response)
    expected = [("Nobody", first.source), (first.source, first.source), (sign, first.word), ("99", str(first.amount))]
    assert [copied for _, copied, _ in needs] == [copied for _, copied in expected]
    assert all(rest.startswith(written) for (rest, *_), (written, _) in zip(needs, expected, strict=True))


@given(seeds)
def test_ledger_needs_the_next_entry_that_counts_and_its_amount(seed):
    for puzzle in ledger.make_puzzles("test", 2, seed):
        expected = []
        for number, entry in puzzle.needed.items():
            line = f"{number}. {entry.text()}"
            expected += [(str(number), line), (str(entry.amount), line)]
        needs = needs_of("ledger", puzzle)
        assert [(copied, statement) for _, copied, statement in needs] == expected
        assert all(re.match(rf"{copied}\b", rest) for rest, copied, _ in needs)


def test_a_wrong_entry_needs_the_right_one_in_its_place_and_its_own_amount():
    puzzle = next(one for one in ledger.make_puzzles("test", 99) if 3 < list(one.needed)[1] < 30)
    due = list(puzzle.needed)
    other = next(number for number in range(due[0] + 1, 41) if number not in due)
    by_text = "\n".join(f"- {puzzle.entries[number - 1].text()}" for number in due if number > other)
    response = f"1. Look.\n- Entry {other}: {puzzle.entries[other - 1].text()}\n- Entry {other}: $3\n"
    needs = needs_of("ledger", puzzle, f"{response}{by_text}\n- Entry 99: 4 dollars\n- Entry 40: $5")
    amounts = {number: str(entry.amount) for number, entry in enumerate(puzzle.entries, 1)}
    expected = [str(due[0]), amounts[other]]
    for number in due:
        expected += [str(puzzle.entries[number - 1].day), amounts[number]] * (number > other)
    expected += [amounts[40]] * (40 not in (*due, other))
    assert [copied for _, copied, _ in needs] == expected


@given(seeds)
def test_counts_need_start_counts_amounts_and_the_rule(seed):
    for puzzle in counts.make_puzzles("test", 4, seed):
        rule, expected = puzzle.rule.text(puzzle.item), []
        for step, line in zip(puzzle.steps, counts.work(puzzle), strict=True):
            start = f"{{}} starts with {{}} {puzzle.item}."
            if step.source in puzzle.givens:
                expected.append((str(line.left), start.format(step.source, line.left)))
            if step.kind == "both":
                expected.append((str(line.right), start.format(step.other, line.right)))
            else:
                expected.append(("twice" if step.kind == "twice" else str(step.amount), step.text(puzzle.item)))
            if line.final != line.raw:
                expected.append((str(puzzle.rule.amount), rule))
        needs = needs_of("lab", puzzle)
        assert [(copied, statement) for _, copied, statement in needs] == expected
        assert all(rest.startswith("2" if copied == "twice" else copied) for rest, copied, _ in needs)


def test_a_wrong_count_and_a_line_that_breaks_off_need_the_same():
    puzzle = counts.make_puzzles("test", 1)[0]
    step = puzzle.steps[0]
    (rest, copied, _), *others = needs_of("lab", puzzle, f"{step.name}: 99")
    assert (rest, copied, others) == ("99", str(puzzle.givens[step.source]), [])
    assert not needs_of("lab", puzzle, "Nobody: 4 + 3 = 7")


def test_arithmetic_needs_the_number_of_each_statement_in_words_and_in_signs():
    for problem in arithmetic.make_problems("test", 50):
        numbers = re.findall(r"\d+", problem.question)
        needs = needs_of("arithmetic", problem)
        assert [copied for _, copied, _ in needs] == numbers
        assert all(rest.startswith(copied) for rest, copied, _ in needs)
        signs = "\n".join(f"= {part}" for part in re.findall(r"\\\((\d+ \S+ \d+)", problem.solution))
        assert [copied for _, copied, _ in needs_of("arithmetic", problem, signs)] == numbers[1:]


@pytest.mark.parametrize("source", ["lab", "lookup", "ledger", "arithmetic"])
def test_every_gold_step_is_in_order_inside_the_text(source):
    for problem in make_problems(source, "test", 20):
        needs = needed_spans(source, problem, problem.solution)
        assert needs
        assert [need.index for need in needs] == sorted({need.index for need in needs})
        for need in needs:
            assert need.statement[0] <= need.span[0] < need.span[1] <= need.statement[1] <= len(problem.question)
        assert needed_spans(source, problem, "") == []
        assert needed_spans(source, Problem("Another question?"), problem.solution) == []


def test_other_sources_have_none():
    assert needed_spans("train.jsonl", Problem("1 + 1?"), "2") is None
