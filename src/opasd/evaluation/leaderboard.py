"""One table over many evaluations: a row for each target and way of asking, a column for each benchmark and budget.

Targets are ordered by their mean over the benchmarks that all of them have. What was asked differently stands apart:
evaluations in one table share the problems of a benchmark and the way it was sampled, or a note names the difference.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from opasd.errors import ConfigError
from opasd.evaluation.comparability import Conditions
from opasd.evaluation.folder import RESULTS
from opasd.files import read_object
from opasd.rounding import fixed, per_cent, with_interval


class Entry(NamedTuple):
    """One target's result on one benchmark at one budget."""

    place: str
    """The folder, or the file in a run's folder."""
    evaluation: str
    target: str
    model: str
    benchmark: str
    budget: int
    samples: int
    result: Mapping[str, Any]
    conditions: Conditions


def read_entries(paths: Sequence[Path]) -> list[Entry]:
    """Return the results of evaluations, given as folders, as evaluation.json or as a folder of evaluations."""
    entries: list[Entry] = []
    places: dict[str, set[str]] = {}
    files = {found.resolve(): found for given in paths for found in result_files(given)}
    for path in files.values():
        evaluation, place = read_object(path), str(path.parent if path.name == RESULTS else path)
        try:
            for result in evaluation["results"]:
                about = evaluation["targets"][result["target"]]
                names = (evaluation.get("name") or path.parent.name, result["target"], about["model"])
                counts = result["budget"], result["samples"]
                figures = (result["avg"][part] for part in ("mean", "low", "high"))
                if not all(isinstance(text, str) for text in (*names, result["benchmark"])):
                    raise TypeError
                if not all(type(number) in (int, float) and isfinite(number) for number in (*counts, *figures)):
                    raise TypeError
                conditions = Conditions.recorded(evaluation, about)
                entries.append(Entry(place, *names, result["benchmark"], *counts, result, conditions))
                places.setdefault(names[0], set()).add(place)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
            raise ConfigError(f"{path} is no evaluation's results, or damaged; give an evaluation's folder") from None
    # Evaluations of one name are told apart by where they lie.
    return [own if len(places[own.evaluation]) == 1 else own._replace(evaluation=own.place) for own in entries]


def result_files(path: Path) -> list[Path]:
    """Return the evaluation.json of a folder, or those of the evaluations in it; a file stands for itself."""
    if path.is_file():
        return [path]
    if (path / RESULTS).is_file():
        return [path / RESULTS]
    if found := sorted(file for file in path.glob(f"*/{RESULTS}") if file.is_file()):
        return found
    raise ConfigError(f"{path} has no {RESULTS}, nor a folder with one; give folders of finished evaluations")


def leaderboard(entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows, best first, and notes on what is not comparable.

    A row: rank, target, model, evaluation, average (of the benchmarks that all rows have) and `scores` by column.
    """
    columns = sorted({(entry.benchmark, entry.budget) for entry in entries})
    budgets = {benchmark: len({b for name, b in columns if name == benchmark}) for benchmark, _ in columns}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    first: dict[tuple[str, int], Entry] = {}
    notes: list[str] = []
    for entry in entries:
        row = rows.setdefault(
            (entry.evaluation, entry.target),
            {"target": entry.target, "model": entry.model, "evaluation": entry.evaluation, "scores": {}},
        )
        column = entry.benchmark + (f" ({entry.budget:,})" if budgets[entry.benchmark] > 1 else "")
        row["scores"][column] = {"samples": entry.samples, **entry.result["avg"]}
        reference = first.setdefault((entry.benchmark, entry.budget), entry)
        if words := entry.conditions.differences_from(reference.conditions, entry.benchmark):
            notes.append(
                f"{entry.target} ({entry.evaluation}) on {entry.benchmark} is not comparable with {reference.target} "
                f"({reference.evaluation}): {', '.join(words)}."
            )
    shared = [
        name
        for name in dict.fromkeys(name for row in rows.values() for name in row["scores"])
        if all(name in row["scores"] for row in rows.values())
    ]
    for row in rows.values():
        row["average"] = fmean(row["scores"][name]["mean"] for name in shared) if shared else None
    ranked = sorted(rows.values(), key=lambda row: -1.0 if row["average"] is None else -row["average"])
    if len(shared) < len({name for row in ranked for name in row["scores"]}):
        notes.append(f"The average is over what all have: {', '.join(shared) or 'nothing'}.")
    return [{"rank": rank, **row} for rank, row in enumerate(ranked, 1)], list(dict.fromkeys(notes))


def cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return header and rows as text, in per cent with 95 % intervals."""
    names = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    several = len({row["evaluation"] for row in rows}) > 1
    header = ["", "target", *(["evaluation"] if several else []), "average", *names]
    table = [header]
    for row in rows:
        average = "–" if row["average"] is None else fixed(per_cent(row["average"]), 1)
        line = [str(row["rank"]), row["target"], *([row["evaluation"]] if several else []), average]
        for name in names:
            score = row["scores"].get(name)
            line.append(
                "" if score is None else with_interval(per_cent(score[part]) for part in ("mean", "low", "high"))
            )
        table.append(line)
    return table


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one line for each score: rank, target, model, evaluation, benchmark, samples, mean, low, high."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "target", "model", "evaluation", "benchmark", "samples", "mean", "low", "high"])
    for row in rows:
        for name, score in row["scores"].items():
            own = [row["rank"], row["target"], row["model"], row["evaluation"], name, score["samples"]]
            writer.writerow([*own, *(score[part] for part in ("mean", "low", "high"))])
    return text.getvalue()


def as_json(rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> str:
    """Return rows and notes as one JSON object."""
    return json.dumps({"rows": list(rows), "notes": list(notes)}, ensure_ascii=False, indent=1) + "\n"
