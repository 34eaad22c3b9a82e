"""A small reasoning task made by code: chains of counts under a rule that is stated first and holds to the end.

    Rule: whoever gets apples then gives 1 away. Ann gets 3 more apples than Tom. Tom starts with 6 pears. Tom starts
    with 4 apples. Bob gets twice as many apples as Ann. How many apples does Bob have in the end?

    Plan: Bob, Ann, Tom.
    Ann: 4 + 3 = 7, minus 1 = 6.
    Bob: 6 * 2 = 12, minus 1 = 11.
    Answer: \\boxed{11}

Statements stand in any order, some belong to another item or lead nowhere. Level L has L + 1 dependent steps and L
distractors. A problem's split is decided by a hash of what it says, whatever the order of its statements, so no
problem is in two splits. Needs the standard library alone.
"""

import hashlib
import random
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from opasd.data.problems import Problem

Split = Literal["pretrain", "train", "validation", "test"]
RuleKind = Literal["minus", "plus", "cap"]
StepKind = Literal["more", "fewer", "twice", "both"]
LEVELS = (1, 2, 3, 4)
NAMES = (
    *("Ann", "Bob", "Cal", "Dan", "Eve", "Fay", "Gus", "Ida", "Joe", "Kim"),
    *("Leo", "Mia", "Ned", "Pam", "Ray", "Sue", "Tom", "Uma", "Val", "Zoe"),
)
ITEMS = ("apples", "cards", "coins", "pears", "shells", "stones")
DEFAULT_PROBLEMS = 4096
"""Problems of a split where a configuration does not say how many."""
MAX_COUNT = 30
"""No count, right or on the way, is larger."""

_SPLIT_SHARES: dict[Split, range] = {
    "pretrain": range(40),
    "train": range(40, 80),
    "validation": range(80, 90),
    "test": range(90, 100),
}
_BOXED = re.compile(r"\\boxed\{\s*(-?\d+)\s*\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to every count that was got from another one."""

    kind: RuleKind
    amount: int

    def apply(self, count: int) -> int:
        if self.kind == "cap":
            return min(count, self.amount)
        return count + self.amount if self.kind == "plus" else count - self.amount

    def text(self, item: str) -> str:
        what = {
            "minus": f"then gives {self.amount} away",
            "plus": f"then finds {self.amount} more",
            "cap": f"can keep at most {self.amount}",
        }[self.kind]
        return f"Rule: whoever gets {item} {what}."


@dataclass(frozen=True, slots=True)
class Step:
    """`name` gets a count made from `source`'s and an amount, or from `source`'s and `other`'s."""

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
    """One line of a worked solution: `left sign right = raw`, then the rule; without it `final` is `raw`."""

    name: str
    left: int
    sign: str
    right: int
    raw: int
    final: int
    rule: Rule

    def pieces(self) -> tuple[str, str, str, str]:
        """The line's text up to its first number, up to its sum, up to the rule, and the rest."""
        end = ".\n"
        if self.final != self.raw:
            kind, amount = self.rule.kind, self.rule.amount
            end = f", so {self.final}.\n" if kind == "cap" else f", {kind} {amount} = {self.final}.\n"
        return f"{self.name}: {self.left}", f" {self.sign} {self.right} =", f" {self.raw}", end

    def text(self) -> str:
        return "".join(self.pieces())


@dataclass(frozen=True)
class Puzzle:
    """A problem with its structure; the last step's count is asked for."""

    level: int
    item: str
    rule: Rule
    givens: dict[str, int]
    """Counts of the item that are stated: the start of the chain first, then what `both` adds."""
    steps: tuple[Step, ...]
    decoys: dict[str, int]
    """Counts of another item, stated for people whose count of the item is needed."""
    distractors: tuple[str, ...]
    """The statements that do not matter, the decoys' among them."""
    statements: tuple[str, ...]
    """All statements after the rule, in the order of the problem."""
    id: str = field(default="", compare=False)

    @property
    def question(self) -> str:
        asked = f"How many {self.item} does {self.steps[-1].name} have in the end?"
        return " ".join((self.rule.text(self.item), *self.statements, asked))

    @property
    def plan(self) -> str:
        """The plan's line: from who is asked about back to who starts."""
        return f"Plan: {', '.join([step.name for step in reversed(self.steps)] + [self.steps[0].source])}.\n"

    @property
    def solution(self) -> str:
        return self.plan + "".join(line.text() for line in work(self)) + answer_text(work(self)[-1].final)

    @property
    def answer(self) -> str:
        return str(work(self)[-1].final)

    @property
    def key(self) -> str:
        """The same for problems that differ in the order of their statements alone."""
        return "|".join((self.rule.text(self.item), *sorted(self.statements), self.steps[-1].name))

    @property
    def split(self) -> Split:
        share = int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:8], "big") % 100
        return next(split for split, shares in _SPLIT_SHARES.items() if share in shares)

    def row(self) -> dict[str, str | int]:
        """The problem as a row of a data set."""
        return {
            "id": self.id,
            "level": self.level,
            "problem": self.question,
            "solution": self.solution,
            "answer": self.answer,
        }


def answer_text(count: int) -> str:
    """The last line of a response."""
    return f"Answer: \\boxed{{{count}}}"


def work_step(puzzle: Puzzle, step: Step, counts: dict[str, int]) -> Line:
    """The right line of a step, given the counts so far."""
    left = counts[step.source]
    right = counts[step.other] if step.kind == "both" else step.amount
    sign = {"more": "+", "fewer": "-", "twice": "*", "both": "+"}[step.kind]
    raw = {"+": left + right, "-": left - right, "*": left * right}[sign]
    return Line(step.name, left, sign, right, raw, puzzle.rule.apply(raw), puzzle.rule)


def work(puzzle: Puzzle) -> list[Line]:
    """The lines of the worked solution."""
    counts, lines = dict(puzzle.givens), []
    for step in puzzle.steps:
        lines.append(work_step(puzzle, step, counts))
        counts[step.name] = lines[-1].final
    return lines


def read_answer(response: str) -> str | None:
    """The number in the last `\\boxed{}` of a response, without leading zeros."""
    found = _BOXED.findall(response)
    return str(int(found[-1])) if found else None


def is_right(response: str, answer: str) -> bool:
    """Whether the response's final boxed number is the answer."""
    return read_answer(response) == answer


def make_puzzles(split: Split, count: int, seed: int = 0, level: int | None = None) -> list[Puzzle]:
    """`count` different problems of a split; of all levels in turn where none is named.

    Problem i depends on (split, seed, level, i) alone, but for the rare one that repeats an earlier one."""
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
    if level is not None and level not in LEVELS:
        raise ValueError(f"level must be one of 1 to {LEVELS[-1]}, got {level!r}")
    puzzles: dict[str, Puzzle] = {}
    for index in range(count):
        own_level = level or LEVELS[index % len(LEVELS)]
        name = f"lab-{split}-{seed}-{index}-level{own_level}"
        rng = random.Random(name)
        while True:
            puzzle = _draw(rng, own_level, name)
            if puzzle is not None and puzzle.split == split and puzzle.key not in puzzles:
                break
        puzzles[puzzle.key] = puzzle
    return list(puzzles.values())


def make_problems(split: Split, count: int, seed: int = 0, level: int | None = None) -> list["Problem"]:
    """`make_puzzles` as the problems that the rest of the package works on."""
    from opasd.data.problems import Problem

    puzzles = make_puzzles(split, count, seed, level)
    return [Problem(puzzle.question, puzzle.solution, puzzle.answer, puzzle.id) for puzzle in puzzles]


def _draw(rng: random.Random, level: int, name: str) -> Puzzle | None:
    """A random puzzle, or None where its counts leave the range or its rule never matters."""
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
    puzzle = Puzzle(level, item, rule, givens, tuple(steps), decoys, tuple(distractors), tuple(statements), id=name)
    lines = work(puzzle)
    in_range = all(0 <= count <= MAX_COUNT for line in lines for count in (line.raw, line.final))
    changed = [line.final != line.raw for line in lines]
    # A cap that bites last gives its answer away; most caps must be carried through a step that they leave alone.
    bites_right = any(changed) and (not changed[-1] or rng.random() < 0.3) if kind == "cap" else all(changed)
    return puzzle if in_range and bites_right else None


def _distract(
    rng: random.Random, level: int, chain: list[str], people: list[str], item: str, other_item: str
) -> tuple[dict[str, int], list[str]]:
    """The decoys' counts, and `level` statements that do not matter; the first one is always a decoy."""
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
