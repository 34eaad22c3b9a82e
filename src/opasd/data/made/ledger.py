"""The task `ledger`, made by code: numbered entries of a ledger, of which four are asked for, for a pretrained model.

    1. 14 May: Dana paid 7 dollars for food (bread).
    2. 3 June: Dana paid 4 dollars for food (rice).
    …
    40. 9 May: Omar paid 2 dollars for tools (nails).
    How many dollars did Dana pay for food in May in total? List the entries that count, …

    The entries of Dana for food in May:
    - Entry 1: 7 dollars
    - Entry 12: 5 dollars
    …
    Total: 7 + 5 + 3 + 8 = 23 dollars. The answer is \\boxed{23}.

An entry is needed if its person, its category and its month are those of the question. Near entries have two of the
three, so this task is failed by looking at the wrong entries; the sums are small. Level L has 6 L near entries among
its 40. Pointers ("1, 12, 17, 31") are the numbers of the needed entries and hold no amount. A hash of the sorted
entries decides a problem's split.
"""

import random
import re
from dataclasses import dataclass, field, replace
from functools import cached_property

from opasd.data.made.needs import Need
from opasd.data.made.splits import Split, seeds, split_of
from opasd.data.problems import Problem

LEVELS = (1, 2, 3, 4)
ENTRIES = 40
NEEDED = 4
PEOPLE = ("Anna", "Carlos", "Dana", "Emma", "Henry", "James", "Laura", "Maria", "Omar", "Peter", "Sarah", "Tom")
MONTHS = ("March", "April", "May", "June", "July", "August")
CATEGORIES = {
    "food": ("bread", "rice", "fruit", "cheese"),
    "tools": ("nails", "rope", "paint", "tape"),
    "travel": ("bus", "train", "taxi", "parking"),
    "music": ("strings", "sheets", "drums", "tuning"),
    "books": ("maps", "novels", "comics", "guides"),
}
ASKED = ("person", "category", "month")
FORM = 'List the entries that count, each as a line "- Entry number: amount dollars", and then add the amounts.'
"""Keeps a pretrained model to entries that can be followed; left to itself it names dates."""
_ENTRY = re.compile(
    r"^(?P<number>\d+)\. (?P<day>\d+) (?P<month>\w+): (?P<person>\w+) paid (?P<amount>\d+) dollars "
    r"for (?P<category>\w+) .*\.$",
    re.MULTILINE,
)
_QUESTION = re.compile(r"How many dollars did (?P<person>\w+) pay for (?P<category>\w+) in (?P<month>\w+) in total\?")
_MENTION = re.compile(r"[Ee]ntry #?(?P<number>\d+)|(?P<day>\d+) (?P<month>\w+): (?P<person>\w+) paid\b")
_AMOUNT = re.compile(r"\$(\d+)|(\d+) dollar")


@dataclass(frozen=True, slots=True)
class Entry:
    """Who paid how much, for what, and when."""

    person: str
    category: str
    month: str
    day: int
    item: str
    amount: int

    def text(self) -> str:
        paid = f"{self.person} paid {self.amount} dollars for {self.category} ({self.item})"
        return f"{self.day} {self.month}: {paid}."


@dataclass(frozen=True)
class Puzzle:
    """A problem with its structure; its question asks for a person's sum for a category in a month."""

    entries: tuple[Entry, ...]
    person: str
    category: str
    month: str
    id: str = field(default="", compare=False)

    @property
    def question(self) -> str:
        lines = [f"{number}. {entry.text()}" for number, entry in enumerate(self.entries, 1)]
        asked = f"How many dollars did {self.person} pay for {self.category} in {self.month} in total?"
        return "\n".join([*lines, f"{asked} {FORM}"])

    @cached_property
    def needed(self) -> dict[int, Entry]:
        """The entries that count, by number."""
        return {number: entry for number, entry in enumerate(self.entries, 1) if matches(entry, self) == len(ASKED)}

    @property
    def pointers(self) -> str:
        return ", ".join(map(str, self.needed))

    @property
    def solution(self) -> str:
        lines = [f"- Entry {number}: {entry.amount} dollars" for number, entry in self.needed.items()]
        terms = " + ".join(str(entry.amount) for entry in self.needed.values())
        total = f"Total: {terms} = {self.answer} dollars. The answer is \\boxed{{{self.answer}}}."
        return "\n".join([f"The entries of {self.person} for {self.category} in {self.month}:", *lines, total])

    @property
    def answer(self) -> str:
        return str(sum(entry.amount for entry in self.needed.values()))

    @property
    def split(self) -> Split:
        return split_of("|".join((*sorted(entry.text() for entry in self.entries), *(getattr(self, n) for n in ASKED))))


def matches(entry: Entry, puzzle: Puzzle) -> int:
    """Return how many of person, category and month are those of the question."""
    return sum(getattr(entry, name) == getattr(puzzle, name) for name in ASKED)


def make_puzzles(split: Split, count: int, seed: int = 0, level: int | None = None) -> list[Puzzle]:
    """Return `count` problems of a split, of one level or of all in turn; problem i depends on its number alone."""
    puzzles: list[Puzzle] = []
    for rng, own_level, name in seeds("ledger", split, count, seed, level, LEVELS):
        while (puzzle := _draw(rng, own_level, name)).split != split:
            pass
        puzzles.append(puzzle)
    return puzzles


def make_problems(split: Split, count: int, seed: int = 0, level: int | None = None) -> list[Problem]:
    """Return the puzzles of `make_puzzles` as problems with pointers."""
    puzzles = make_puzzles(split, count, seed, level)
    return [Problem(one.question, one.solution, one.answer, one.id, one.pointers) for one in puzzles]


def _draw(rng: random.Random, level: int, name: str) -> Puzzle:
    """Return a random puzzle: four needed entries, 2 L near ones that differ in each of the three, and far ones."""
    choices = {"person": rng.sample(PEOPLE, 5), "category": rng.sample(list(CATEGORIES), 4)}
    choices["month"] = rng.sample(MONTHS, 4)
    asked = Puzzle((), *(choices[field][0] for field in ASKED), id=name)
    values = [tuple(getattr(asked, field) for field in ASKED)] * NEEDED
    for changed in ASKED:
        for _ in range(2 * level):
            values.append(
                tuple(rng.choice(choices[one][1:]) if one == changed else getattr(asked, one) for one in ASKED)
            )
    while len(values) < ENTRIES:
        drawn = tuple(rng.choice(choices[field]) for field in ASKED)
        if sum(value == getattr(asked, field) for value, field in zip(drawn, ASKED, strict=True)) <= 1:
            values.append(drawn)
    rng.shuffle(values)
    entries = (
        Entry(person, category, month, rng.randint(1, 28), rng.choice(CATEGORIES[category]), rng.randint(2, 9))
        for person, category, month in values
    )
    return replace(asked, entries=tuple(entries))


def needed_spans(problem: Problem, response: str) -> list[Need]:
    """Return where a response names an entry or its amount, and what of the question it needs there.

    At an entry that is named for the first time, by its number or by its date and person: the number, or the day, of
    the next entry that counts. At the first amount after it on its line: the amount of the named entry.
    """
    entries = {int(entry["number"]): entry for entry in _ENTRY.finditer(problem.question)}
    asked = _QUESTION.search(problem.question)
    if asked is None:
        return []
    relevant = [number for number, entry in entries.items() if all(entry[name] == asked[name] for name in ASKED)]
    by_date = {entry.group("day", "month", "person"): number for number, entry in entries.items()}
    needs: list[Need] = []
    named: set[int] = set()
    for mention in _MENTION.finditer(response):
        part = "number" if mention["number"] else "day"
        number = int(mention["number"] or by_date.get(mention.group("day", "month", "person"), 0))
        if number not in entries or number in named:
            continue
        following = next((one for one in relevant if one > max(named, default=0)), None)
        if following is not None:
            due = entries[following]
            needs.append(Need(mention.start(part), due.span(part), due.span()))
        named.add(number)
        line_end = response.find("\n", mention.end())
        amount = _AMOUNT.search(response, mention.end(), len(response) if line_end < 0 else line_end)
        if amount:
            entry = entries[number]
            needs.append(Need(amount.start(1 if amount[1] else 2), entry.span("amount"), entry.span()))
    return needs
