"""The lab task, made by code: chains of counts under a rule that is stated first and applies to every step.

    Rule: whoever gets apples then gives 1 away. Ann gets 3 more apples than Tom. Tom starts with 6 pears. Tom starts
    with 4 apples. Bob gets twice as many apples as Ann. How many apples does Bob have in the end?

    Plan: Bob, Ann, Tom.
    Ann: 4 + 3 = 7, minus 1 = 6.
    Bob: 6 * 2 = 12, minus 1 = 11.
    Answer: \\boxed{11}

Statements come in any order; some are about another item or lead nowhere. Level L has L + 1 dependent steps and L
distractors. A hash of the sorted statements decides a problem's split, so no problem is in two splits.
"""

import random
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from opasd.data.made.needs import Need
from opasd.data.made.splits import Split, seeds, split_of
from opasd.data.problems import Problem

RuleKind = Literal["minus", "plus", "cap"]
StepKind = Literal["more", "fewer", "twice", "both"]
LEVELS = (1, 2, 3, 4)
NAMES = (
    *("Ann", "Bob", "Cal", "Dan", "Eve", "Fay", "Gus", "Ida", "Joe", "Kim"),
    *("Leo", "Mia", "Ned", "Pam", "Ray", "Sue", "Tom", "Uma", "Val", "Zoe"),
)
ITEMS = ("apples", "cards", "coins", "pears", "shells", "stones")
MAX_COUNT = 30
"""The largest count and intermediate count."""
_RULE = re.compile(r"Rule: whoever gets \w+ [a-z ]+(?P<number>\d+)[^.]*\.")
_ASKED = re.compile(r"How many (?P<item>\w+) does \w+ have in the end\?")
_START = re.compile(r"(?P<name>\w+) starts with (?P<number>\d+) (?P<item>\w+)\.")
_STEP = re.compile(
    r"(?P<name>\w+) gets (?:(?P<number>\d+|twice)|as many) (?:(?:more|fewer|as many) )?(?P<item>\w+) "
    r"(?:than|as) (?P<source>\w+)(?: and (?P<other>\w+) together)?\."
)
_LINE = re.compile(
    r"^(?P<name>\w+): (?P<left>\d+)(?: [-+*] (?P<right>\d+)(?: = \d+, \w+ (?P<rule>\d+))?)?", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for every count that is derived from another one."""

    kind: RuleKind
    amount: int

    def apply(self, count: int) -> int:
        if self.kind == "cap":
            return min(count, self.amount)
        return count + self.amount if self.kind == "plus" else count - self.amount

    def text(self, item: str) -> str:
        effect = {
            "minus": f"then gives {self.amount} away",
            "plus": f"then finds {self.amount} more",
            "cap": f"can keep at most {self.amount}",
        }[self.kind]
        return f"Rule: whoever gets {item} {effect}."


@dataclass(frozen=True, slots=True)
class Step:
    """`name` gets a count made from that of `source` and an amount, or from those of `source` and `other`."""

    name: str
    kind: StepKind
    source: str
    amount: int = 2
    other: str = ""

    def text(self, item: str) -> str:
        if self.kind == "twice":
            return f"{self.name} gets twice as many {item} as {self.source}."
        if self.kind == "both":
            return f"{self.name} gets as many {item} as {self.source} and {self.other} together."
        return f"{self.name} gets {self.amount} {self.kind} {item} than {self.source}."


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a worked solution: `left sign right = raw`, then the rule turns `raw` into `final`."""

    name: str
    left: int
    sign: str
    right: int
    raw: int
    final: int
    rule: Rule

    def pieces(self) -> tuple[str, str, str, str]:
        """Return the line in four parts: to its first number, to its result, to the rule, and the rest."""
        end = ".\n"
        if self.final != self.raw:
            kind, amount = self.rule.kind, self.rule.amount
            end = f", so {self.final}.\n" if kind == "cap" else f", {kind} {amount} = {self.final}.\n"
        return f"{self.name}: {self.left}", f" {self.sign} {self.right} =", f" {self.raw}", end

    def text(self) -> str:
        return "".join(self.pieces())


@dataclass(frozen=True)
class Puzzle:
    """A problem with its structure; its question asks for the count of the last step."""

    level: int
    item: str
    rule: Rule
    givens: dict[str, int]
    """Stated counts of the item: the start of the chain first, then those that `both` steps add."""
    steps: tuple[Step, ...]
    decoys: dict[str, int]
    """Stated counts of another item, for people whose count of the item matters."""
    statements: tuple[str, ...]
    """All statements after the rule, in the order of the problem."""
    id: str = field(default="", compare=False)

    @property
    def question(self) -> str:
        query = f"How many {self.item} does {self.steps[-1].name} have in the end?"
        return " ".join((self.rule.text(self.item), *self.statements, query))

    @property
    def plan(self) -> str:
        """The first line of the solution: the people from the last of the chain back to the first."""
        return f"Plan: {', '.join([step.name for step in reversed(self.steps)] + [self.steps[0].source])}.\n"

    @property
    def solution(self) -> str:
        return self.plan + "".join(line.text() for line in work(self)) + answer_text(work(self)[-1].final)

    @property
    def answer(self) -> str:
        return str(work(self)[-1].final)

    @property
    def key(self) -> str:
        """A text that is equal for problems that differ only in the order of their statements."""
        return "|".join((self.rule.text(self.item), *sorted(self.statements), self.steps[-1].name))

    @property
    def split(self) -> Split:
        return split_of(self.key)


def answer_text(count: int) -> str:
    """Return the last line of a response."""
    return f"Answer: \\boxed{{{count}}}"


def work_step(puzzle: Puzzle, step: Step, counts: dict[str, int]) -> Line:
    """Return the correct line of a step, given the counts so far."""
    left = counts[step.source]
    right = counts[step.other] if step.kind == "both" else step.amount
    sign = {"more": "+", "fewer": "-", "twice": "*", "both": "+"}[step.kind]
    raw = {"+": left + right, "-": left - right, "*": left * right}[sign]
    return Line(step.name, left, sign, right, raw, puzzle.rule.apply(raw), puzzle.rule)


def work(puzzle: Puzzle) -> list[Line]:
    """Return the lines of the worked solution."""
    counts, lines = dict(puzzle.givens), []
    for step in puzzle.steps:
        lines.append(work_step(puzzle, step, counts))
        counts[step.name] = lines[-1].final
    return lines


def make_puzzles(split: Split, count: int, seed: int = 0, level: int | None = None) -> list[Puzzle]:
    """Return `count` different problems of a split, of one level or of all in turn.

    Problem i depends only on (split, seed, level, i), unless it would repeat an earlier one, which is rare.
    """
    puzzles: dict[str, Puzzle] = {}
    for rng, own_level, name in seeds("lab", split, count, seed, level, LEVELS):
        while True:
            puzzle = _draw(rng, own_level, name)
            if puzzle is not None and puzzle.split == split and puzzle.key not in puzzles:
                break
        puzzles[puzzle.key] = puzzle
    return list(puzzles.values())


def make_problems(split: Split, count: int, seed: int = 0, level: int | None = None) -> list[Problem]:
    """Return the puzzles of `make_puzzles` as problems."""
    return list(map(as_problem, make_puzzles(split, count, seed, level)))


def as_problem(puzzle: Puzzle) -> Problem:
    """Return the puzzle as a problem."""
    return Problem(puzzle.question, puzzle.solution, puzzle.answer, puzzle.id)


def _draw(rng: random.Random, level: int, name: str) -> Puzzle | None:
    """Return a random puzzle, or None if its counts leave the range or its rule never matters."""
    num_steps = level + 1
    people = rng.sample(NAMES, len(NAMES))
    chain = [people.pop() for _ in range(num_steps + 1)]
    item, other_item = rng.sample(ITEMS, 2)
    kind: RuleKind = rng.choice(get_args(RuleKind))
    rule = Rule(kind, rng.randint(6, 12) if kind == "cap" else rng.randint(1, 3))
    givens = {chain[0]: rng.randint(2, 9)}
    steps: list[Step] = []
    for source, person in pairwise(chain):
        step_kind: StepKind = rng.choices(get_args(StepKind), (4, 3, 1, 2))[0]
        helper = people.pop() if step_kind == "both" else ""
        if helper:
            givens[helper] = rng.randint(2, 9)
        amount = 2 if step_kind == "twice" else rng.randint(1, 6)
        steps.append(Step(person, step_kind, source, amount, helper))
    decoys, distractors = _distract(rng, level, chain, people, item, other_item)
    statements = [f"{person} starts with {count} {item}." for person, count in givens.items()]
    statements += [step.text(item) for step in steps] + distractors
    rng.shuffle(statements)
    puzzle = Puzzle(level, item, rule, givens, tuple(steps), decoys, tuple(statements), id=name)
    lines = work(puzzle)
    in_range = all(0 <= count <= MAX_COUNT for line in lines for count in (line.raw, line.final))
    changed = [line.final != line.raw for line in lines]
    # A cap that applies in the last step gives the answer away, so most must apply only in earlier steps.
    rule_matters = any(changed) and (not changed[-1] or rng.random() < 0.3) if kind == "cap" else all(changed)
    return puzzle if in_range and rule_matters else None


def _distract(
    rng: random.Random, level: int, chain: list[str], people: list[str], item: str, other_item: str
) -> tuple[dict[str, int], list[str]]:
    """Return the decoys' counts and `level` statements that do not matter; the first is always a decoy."""
    decoys: dict[str, int] = {}
    texts: list[str] = []
    sources = chain[:-1]
    while len(texts) < level:
        kind = "decoy" if not texts else rng.choice(("decoy", "decoy", "branch", "stranger", "other chain"))
        person = rng.choice(sources)
        if kind == "decoy" and person not in decoys:
            decoys[person] = rng.randint(2, 9)
            texts.append(f"{person} starts with {decoys[person]} {other_item}.")
        elif kind == "branch":
            texts.append(Step(people.pop(), rng.choice(("more", "fewer")), person, rng.randint(1, 6)).text(item))
        elif kind == "stranger":
            texts.append(f"{people.pop()} starts with {rng.randint(2, 9)} {item}.")
        elif kind == "other chain":
            other = people.pop()
            texts.append(Step(other, rng.choice(("more", "fewer")), person, rng.randint(1, 6)).text(other_item))
    return decoys, texts


def needed_spans(problem: Problem, response: str) -> list[Need]:
    """Return where a response's lines copy numbers of the problem: start counts, amounts, and the rule's number."""
    rule, asked = _RULE.search(problem.question), _ASKED.search(problem.question)
    if rule is None or asked is None:
        return []
    starts, steps = (
        {one["name"]: one for one in kind.finditer(problem.question) if one["item"] == asked["item"]}
        for kind in (_START, _STEP)
    )
    needs: list[Need] = []
    for line in _LINE.finditer(response):
        if (step := steps.get(line["name"])) is None:
            continue
        right = starts.get(step["other"]) if step["other"] else step
        for part, source in (("left", starts.get(step["source"])), ("right", right), ("rule", rule)):
            if source is not None and line[part]:
                needs.append(Need(line.start(part), source.span("number"), source.span()))
    return needs
