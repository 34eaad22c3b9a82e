"""The task `lookup`, made by code: numbered statements, of which few are needed, and others that look like them.

    (1) Ann's coins: 14. (2) Val's cards: Bob's minus 3. (3) Val's coins: Ann's plus 4. (4) Bob's cards: 17. …
    How many coins does Val have?

    Val's coins: Ann's + 4
    Ann's coins: 14
    Val's coins: 14 + 4 = 18
    Answer: \\boxed{18}

Every person has one statement about every item, so a statement about the right person and the wrong item is always at
hand: this task is failed by looking at the wrong place. A statement refers to the same item of another person. Pointers
("3, 1") name the needed statements in the order of the solution and hold no value. Level L needs L + 1 statements. A
hash of the sorted statements decides a problem's split.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from opasd.data.made.counts import ITEMS, NAMES, answer_text
from opasd.data.made.needs import Need
from opasd.data.made.splits import Split, seeds, split_of
from opasd.data.problems import Problem

LEVELS = (1, 2, 3)
SHAPES = ((8, 3), (10, 3), (8, 4), (12, 3), (10, 4))
"""Numbers of people and items; their product is the number of statements, 24 to 40."""
_SIGNS = {"plus": "+", "minus": "-"}
_STATED = re.compile(
    r"\(\d+\) (?P<person>\w+)'s (?P<item>\w+): "
    r"(?:(?P<count>\d+)|(?P<source>\w+)'s (?P<word>plus|minus) (?P<amount>\d+))\."
)
_TAKEN_UP = re.compile(r"^(Wait, )?(\w+)'s (\w+): ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One person's count of one item: `amount`, or that of `source` plus or minus `amount`."""

    person: str
    item: str
    amount: int
    source: str = ""
    word: str = ""

    def text(self) -> str:
        value = f"{self.source}'s {self.word} {self.amount}" if self.source else f"{self.amount}"
        return f"{self.person}'s {self.item}: {value}."

    def line(self, item: str) -> str:
        """Return the line of a solution that takes the statement up, as one about `item`."""
        value = f"{self.source}'s {_SIGNS[self.word]} {self.amount}" if self.source else f"{self.amount}"
        return f"{self.person}'s {item}: {value}\n"

    def result(self, count: int) -> int:
        """Return the person's count, given that of the source."""
        return count + self.amount if self.word == "plus" else count - self.amount


@dataclass(frozen=True)
class Puzzle:
    """A problem with its structure; its question asks for one person's count of one item."""

    statements: tuple[Statement, ...]
    person: str
    item: str
    id: str = field(default="", compare=False)

    @property
    def question(self) -> str:
        numbered = [f"({number}) {statement.text()}" for number, statement in enumerate(self.statements, 1)]
        return " ".join([*numbered, f"How many {self.item} does {self.person} have?"])

    def find(self, person: str, item: str) -> Statement:
        """Return the statement about a person's count of an item."""
        return next(one for one in self.statements if (one.person, one.item) == (person, item))

    @property
    def needed(self) -> list[Statement]:
        """The statements of the solution, in its order: the asked one first."""
        chain = [self.find(self.person, self.item)]
        while chain[-1].source:
            chain.append(self.find(chain[-1].source, self.item))
        return chain

    @property
    def pointers(self) -> str:
        return ", ".join(str(self.statements.index(statement) + 1) for statement in self.needed)

    @property
    def solution(self) -> str:
        return "".join([*(statement.line(self.item) for statement in self.needed), *work(self.needed, self.item)])

    @property
    def answer(self) -> str:
        return str(final_count(self.needed))

    @property
    def split(self) -> Split:
        key = "|".join((*sorted(statement.text() for statement in self.statements), self.person, self.item))
        return split_of(key)


def work(chain: list[Statement], item: str) -> list[str]:
    """Return the lines that compute the counts of a chain, from its end to its first statement, and the answer."""
    count, lines = chain[-1].amount, []
    for statement in reversed(chain[:-1]):
        total = statement.result(count)
        lines.append(f"{statement.person}'s {item}: {count} {_SIGNS[statement.word]} {statement.amount} = {total}\n")
        count = total
    return [*lines, answer_text(count)]


def final_count(chain: list[Statement]) -> int:
    """Return the count that the first statement of a chain gives."""
    count = chain[-1].amount
    for statement in reversed(chain[:-1]):
        count = statement.result(count)
    return count


def make_puzzles(
    split: Split, count: int, seed: int = 0, level: int | None = None, shapes: Sequence[tuple[int, int]] = SHAPES
) -> list[Puzzle]:
    """Return `count` problems of a split, of one level or of all in turn; problem i depends on its number alone.

    `shapes` are the numbers of people and items to draw from."""
    puzzles: list[Puzzle] = []
    for rng, own_level, name in seeds("lookup", split, count, seed, level, LEVELS):
        while (puzzle := _draw(rng, own_level, name, shapes)) is None or puzzle.split != split:
            pass
        puzzles.append(puzzle)
    return puzzles


def make_problems(split: Split, count: int, seed: int = 0, level: int | None = None) -> list[Problem]:
    """Return the puzzles of `make_puzzles` as problems with pointers."""
    puzzles = make_puzzles(split, count, seed, level)
    return [Problem(one.question, one.solution, one.answer, one.id, one.pointers) for one in puzzles]


def _draw(rng: random.Random, level: int, name: str, shapes: Sequence[tuple[int, int]]) -> Puzzle | None:
    """Return a random puzzle, or None if it has no chain of the level's length.

    A person's depth bounds every chain that begins with the person, whichever items its statements are about.
    """
    num_people, num_items = rng.choice(shapes)
    people, items = rng.sample(NAMES, num_people), rng.sample(ITEMS, num_items)
    depths = {person: min(number * (LEVELS[-1] + 1) // num_people, LEVELS[-1]) for number, person in enumerate(people)}
    statements: list[Statement] = []
    for person, depth in depths.items():
        sources = [other for other in people if depths[other] == depth - 1]
        for item in items:
            if depth and rng.random() < 0.8:
                word = rng.choice(("plus", "minus"))
                statements.append(Statement(person, item, rng.randint(1, 4), rng.choice(sources), word))
            else:
                statements.append(Statement(person, item, rng.randint(12, 20)))
    rng.shuffle(statements)
    order = [(one.person, one.item) for one in statements]
    rng.shuffle(order)
    for person, item in order:
        puzzle = Puzzle(tuple(statements), person, item, id=name)
        if len(puzzle.needed) == level + 1:
            return puzzle
    return None


def needed_spans(problem: Problem, response: str) -> list[Need]:
    """Return where a response takes a statement up, and which of its parts it needs there.

    The first line about a person's item takes the statement up, and so does a line that puts it right ("Wait, …");
    others compute. A line's later parts count as long as the earlier ones are right.
    """
    stated = {(one["person"], one["item"]): one for one in _STATED.finditer(problem.question)}
    needs: list[Need] = []
    seen: set[tuple[str, str]] = set()
    for line in _TAKEN_UP.finditer(response):
        key = line[2], line[3]
        if key not in stated or (key in seen and not line[1]):
            continue
        seen.add(key)
        statement, index = stated[key], line.end()
        source = [("source", "{}'s "), ("word", "{} "), ("amount", "{}")]
        for part, form in source if statement["source"] else [("count", "{}")]:
            copy = form.format(_SIGNS.get(statement[part], statement[part]))
            if index < len(response):
                needs.append(Need(index, statement.span(part), statement.span()))
            if not response.startswith(copy, index):
                break
            index += len(copy)
    return needs
