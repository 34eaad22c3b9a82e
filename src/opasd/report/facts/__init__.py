"""Files of facts: published numbers, shown in the same tables and figures as one's own.

    source: where the numbers are from
    tables:
      - id: seeds
        title: Robustness across random seeds
        first: Seed                     heading of the first column
        columns: [AIME24, Average]      a last column named Average or Avg is the mean of the others, and checked
        rows: {Seed 1: [63.27, 51.04]}  or groups: {Qwen3-4B: {Base: [58.33, …]}}; null in an average is filled in
        summarise: true                 mean, sample standard deviation, 95 % interval below the rows
    figures:
      - id: budgets
        title: Avg@12 by budget
        kind: bar                       or line (points: [[x, y], …]) or scatter (points: {x, y, size})
        categories: [16K, 28K]
        series: {OPSD: [42.4, 44.1]}

The best number of a column in its group is bold; if several tie, all of them are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

from opasd.analysis.curves import number
from opasd.errors import ConfigError
from opasd.recipes.reading import read_yaml
from opasd.report.figure import Figure, Series
from opasd.report.summary import summary_table
from opasd.report.tables import Cell, Table
from opasd.rounding import fixed

AVERAGES = ("average", "avg", "mean")
DIGITS = 2


@dataclass(frozen=True)
class Facts:
    """The tables and figures of one file."""

    source: str
    tables: list[Table]
    figures: list[Figure]


def read_facts(name: str) -> Facts:
    """Read a file, or one of the package's own by its name."""
    paths = (Path(str(file)) for file in files(__name__).iterdir())
    packaged = {path.stem: path for path in paths if path.suffix == ".yaml"}
    path = packaged.get(name, Path(name))
    if not path.is_file():
        names = ", ".join(sorted(packaged))
        raise ConfigError(f"no file of facts {name}; give a YAML or JSON file, or one of {names}")
    return parse_facts(read_yaml(path), path.name)


def parse_facts(values: Mapping[str, Any], where: str) -> Facts:
    """Check the contents of a file; an error names the place of the mistake."""
    _check(values, where, {"source", "tables", "figures"}, needs=())
    tables = [_table(table, f"{where}, table {n}") for n, table in enumerate(_list(values, "tables", where), 1)]
    figures = [_figure(figure, f"{where}, figure {n}") for n, figure in enumerate(_list(values, "figures", where), 1)]
    return Facts(str(values.get("source") or where), tables, figures)


def _table(values: Any, where: str) -> Table:
    _check(values, where, {"id", "title", "caption", "first", "columns", "rows", "groups", "summarise"})
    columns = [str(name) for name in _list(values, "columns", where)]
    groups = values.get("groups") or {"": values.get("rows") or {}}
    if not columns or not isinstance(groups, dict):
        raise ConfigError(f"{where}: needs columns, and rows or groups")
    header, title = str(values.get("first") or ""), str(values.get("title") or values["id"])
    rows: list[list[Cell]] = []
    numbers: dict[str, list[float]] = {}
    for group, members in groups.items():
        if not isinstance(members, dict) or not members:
            raise ConfigError(f"{where}: {group or 'rows'} must map names to lists of numbers")
        own = {str(name): _numbers(row, columns, f"{where}, {name}") for name, row in members.items()}
        numbers |= own
        best = [max(column) for column in zip(*own.values(), strict=True)]
        rows += [[Cell(str(group))]] if group else []
        rows += [
            [
                Cell(name),
                *(Cell(fixed(value, DIGITS), value, value == top) for value, top in zip(row, best, strict=True)),
            ]
            for name, row in own.items()
        ]
    caption = str(values.get("caption") or "")
    if not values.get("summarise"):
        return Table(str(values["id"]), title, [header, *columns], rows, caption)
    by_column = {column: [row[n] for row in numbers.values()] for n, column in enumerate(columns)}
    return summary_table(str(values["id"]), title, header, list(numbers), by_column, caption)


def _numbers(row: Any, columns: Sequence[str], where: str) -> list[float]:
    if not isinstance(row, list) or len(row) != len(columns):
        raise ConfigError(f"{where}: expected {len(columns)} numbers ({', '.join(columns)}), got {row!r:.80}")
    averaged = columns[-1].casefold() in AVERAGES and len(columns) > 1
    filled = [*row[:-1], _average(row[:-1], where)] if averaged and row[-1] is None else row
    values = [value for value in map(number, filled) if value is not None]
    if len(values) < len(columns):
        raise ConfigError(f"{where}: {row!r:.80} holds something that is no number")
    # The others were rounded before they were printed, and so was their mean.
    if averaged and abs(values[-1] - sum(values[:-1]) / (len(values) - 1)) > 10**-DIGITS + 1e-9:
        mean = _average(row[:-1], where)
        raise ConfigError(f"{where}: {columns[-1]} is {values[-1]:g}, and the mean of the others {mean}")
    return values


def _average(values: Sequence[Any], where: str) -> float:
    if any(number(value) is None for value in values):
        raise ConfigError(f"{where}: the average of {list(values)!r:.80} cannot be formed")
    exact = sum((Decimal(str(value)) for value in values), Decimal(0)) / len(values)
    return float(fixed(float(exact), DIGITS).replace(",", "").replace("−", "-"))


def _figure(values: Any, where: str) -> Figure:
    _check(values, where, {"id", "title", "kind", "x_label", "y_label", "caption", "categories", "series", "points"})
    kind = values.get("kind", "bar")
    if kind not in ("bar", "line", "scatter"):
        raise ConfigError(f"{where}: kind is {kind!r}; it is one of bar, line and scatter")
    categories = tuple(map(str, _list(values, "categories", where)))
    key = "points" if kind == "scatter" else "series"
    if not isinstance(by_name := values.get(key), dict) or not by_name:
        raise ConfigError(f"{where}: needs {key}, a mapping from names to numbers")
    series = [
        _series(kind, str(name), n, data, categories, f"{where}, {name}")
        for n, (name, data) in enumerate(by_name.items())
    ]
    return Figure(
        str(values["id"]), str(values.get("title") or values["id"]), kind, str(values.get("x_label") or ""),
        str(values.get("y_label") or ""), series, str(values.get("caption") or ""), categories,
        from_zero=kind == "bar",
    )  # fmt: skip


def _series(kind: str, name: str, slot: int, data: Any, categories: Sequence[str], where: str) -> Series:
    if kind == "scatter":
        _check(data, where, {"x", "y", "size"}, needs=("x", "y"))
        x, y, size = (number(data.get(key)) for key in ("x", "y", "size"))
        if x is None or y is None:
            raise ConfigError(f"{where}: x and y must be numbers")
        return Series(name, slot, [(x, y)], sizes=[] if size is None else [size])
    if not isinstance(data, list):
        raise ConfigError(f"{where}: expected a list")
    if kind == "line":
        pairs = [tuple(map(number, pair)) for pair in data if isinstance(pair, list) and len(pair) == 2]
        points = [(x, y) for x, y in pairs if x is not None and y is not None]
        if len(points) != len(data):
            raise ConfigError(f"{where}: a line is a list of [x, y] pairs of numbers")
        return Series(name, slot, points, marks=True)
    values = [value for value in map(number, data) if value is not None]
    if not len(values) == len(data) == len(categories):
        raise ConfigError(f"{where}: expected {len(categories)} numbers, one for each category")
    return Series(name, slot, [(float(x), y) for x, y in enumerate(values)])


def _check(values: Any, where: str, known: set[str], needs: Sequence[str] = ("id",)) -> None:
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a mapping")
    if unknown := sorted(set(values) - known):
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if missing := [name for name in needs if values.get(name) is None]:
        raise ConfigError(f"{where}: {', '.join(missing)} is missing")


def _list(values: Mapping[str, Any], name: str, where: str) -> list[Any]:
    items = values.get(name) or []
    if not isinstance(items, list):
        raise ConfigError(f"{where}: {name} must be a list")
    return items
