"""List the cells of the paper's tables that 12 answers to 30 problems cannot give.

    python scripts/paper_cells.py

Avg@12 on 30 problems is k/360 for a whole number k. A cell is listed if no k gives its two printed digits, rounded or
cut off. Averages over benchmarks and the statistics of seeds are left out: they are means of cells. A cell that stands
in several tables (the same row, shown again) is listed once, with all its tables.
"""

import sys
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import Any, NamedTuple

import yaml

FACTS = Path(__file__).parents[1] / "src/opasd/report/facts/paper.yaml"
ANSWERS = 12 * 30


class Cell(NamedTuple):
    """One printed number: table, row (with its group), benchmark and value in per cent."""

    table: str
    row: str
    benchmark: str
    value: str


def possible(value: str) -> bool:
    """Return whether some k/360, in per cent, prints as this value, rounded (either way at a half) or cut off."""
    printed = Fraction(value)
    first = ceil((printed - Fraction(1, 200)) * ANSWERS / 100)  # the smallest k that is not below it when rounded
    return Fraction(100 * first, ANSWERS) < printed + Fraction(1, 100)


def cells(facts: dict[str, Any]) -> list[Cell]:
    """Return the benchmarks' cells of all tables, without the averages."""
    found = []
    for table in facts["tables"]:
        groups = table.get("groups") or {"": table["rows"]}
        for group, rows in groups.items():
            for row, values in rows.items():
                name = f"{group} {row}".strip()
                columns = zip(table["columns"][:-1], values[:-1], strict=True)
                found += [Cell(table["id"], name, benchmark, f"{value:.2f}") for benchmark, value in columns]
    return found


def distinct(impossible: list[Cell], facts: dict[str, Any]) -> list[tuple[Cell, list[str]]]:
    """Return each cell once, with the tables that have it: a repeated row repeats all its numbers."""
    numbers = {(cell.table, cell.row): [] for cell in cells(facts)}
    for cell in cells(facts):
        numbers[cell.table, cell.row].append(cell.value)
    merged: dict[tuple[Any, ...], tuple[Cell, list[str]]] = {}
    for cell in impossible:
        key = (cell.benchmark, *numbers[cell.table, cell.row])
        merged.setdefault(key, (cell, []))[1].append(cell.table)
    return list(merged.values())


def main() -> None:
    """Print the list."""
    facts = yaml.safe_load(FACTS.read_text())
    every = cells(facts)
    found = distinct([cell for cell in every if not possible(cell.value)], facts)
    different = distinct(every, facts)
    sys.stdout.write(f"{len(found)} of {len(different)} distinct cells are no multiple of 1/{ANSWERS}:\n")
    for cell, tables in found:
        nearest = [Fraction(100 * k, ANSWERS) for k in (floor(float(cell.value) * 3.6), ceil(float(cell.value) * 3.6))]
        near = " and ".join(f"{float(value):.2f}" for value in nearest)
        where = ", ".join(tables)
        sys.stdout.write(f"{cell.value}  {cell.benchmark}, {cell.row} ({where}); nearest {near}\n")


if __name__ == "__main__":
    main()
