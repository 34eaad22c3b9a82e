"""Could a model have seen a benchmark? Its problems' publication against the end of the model's training data."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

from opasd.errors import ConfigError
from opasd.evaluation.benchmarks import DATE, Benchmark
from opasd.recipes.reading import read_yaml

PACKAGED = Path(__file__).with_name("cutoffs.yaml")


class Cutoff(NamedTuple):
    """The latest that training data can be from."""

    date: str
    """A day, a month or a year; a month means its end."""
    stated: bool
    """Whether it was given or is stated by the model's makers; else the model's release bounds it."""


def cutoff_of(model: str, given: str | None = None) -> Cutoff | None:
    """Return the model's cut-off: the given one, or what is known of a model of this name."""
    if given is not None:
        if not re.fullmatch(DATE, given):
            raise ConfigError(f"--cutoff: got {given!r:.40}; give a day, a month or a year, such as 2025-02-13")
        return Cutoff(given, True)
    name = model.rstrip("/").rpartition("/")[2].casefold()
    if found := max((known for known in _packaged() if fnmatchcase(name, known)), key=len, default=None):
        return _packaged()[found]
    return None


def contamination_notes(models: Iterable[str], entries: Iterable[Benchmark], given: str | None = None) -> list[str]:
    """Say which benchmarks were public before a model's training data ended; one sentence a model."""
    sentences, entries = [], list(entries)
    for model in dict.fromkeys(models):
        cutoff = cutoff_of(model, given)
        if cutoff is None:
            continue
        if seen := [f"{entry.name} ({entry.released})" for entry in entries if _before(entry.released, cutoff.date)]:
            until = f"reaches to {cutoff.date}" if cutoff.stated else f"may reach to its release, {cutoff.date}"
            sentences.append(f"{model}: training data {until}; public before that, possibly in it: {', '.join(seen)}")
    return sentences


def _before(released: str | None, cutoff: str) -> bool:
    """Return whether problems were public before the cut-off's last day."""
    return released is not None and released < (cutoff + "-99-99")[:10]


@cache
def _packaged() -> dict[str, Cutoff]:
    return {
        name: Cutoff(str(about.get("cutoff") or about["released"]), "cutoff" in about)
        for name, about in read_yaml(PACKAGED).items()
    }
