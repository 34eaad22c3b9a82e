"""A sweep's file ─► the runs it stands for, each with a checked configuration and a name of what differs.

name: mine
recipe: lab-short                                what every run starts from
set: {train.max_steps: 20}                       laid over it, by dotted names
grid: {objective.attention_weight: [0.25, 0.5]}  every combination; or
runs: [base, lab-short, {recipe: lab-short, set: {teacher.update: ema}, name: ema, label: moving average}]
seeds: [1, 42]                                   every run with each of them
with_base: true                                  the model as it is too
evaluate: {benchmarks: [lab], problems: 300}     laid over the recipe's own `evaluate`
table: {title: …, caption: …, first: heading of the first column, metrics: [rollout/accuracy]}
"""

import difflib
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import Field, ValidationError

from opasd.config import RunConfig, Section
from opasd.errors import ConfigError
from opasd.evaluation.profiles import Profile, requested_profile
from opasd.evaluation.targets import LAB
from opasd.recipes import Recipe, laid_over, load_recipe, merged, recipe_names
from opasd.recipes.checking import as_section, explain, to_config
from opasd.recipes.evaluate import EvaluateConfig, to_evaluate
from opasd.recipes.fields import Settings, field_type, nested, section_error
from opasd.recipes.reading import parse_value, read_yaml
from opasd.run.folder import check_name

FILES = Path(__file__).parent / "files"
BASE = "base"
SEED = "train.seed"
EVALUATION = ".evaluation"
"""End of the name of a run's evaluation folder, which lies beside the run's."""
RESERVED = ("logs", "state", "tables", "report")
MAX_RUNS = 1000
OURS = {"name": "runs are named by what differs", "output_dir": "runs are made in the sweep's folder, see --output"}
"""Fields that a sweep sets itself."""
NO_TEXT = ("none", "null")
"""Texts that a command line takes for no value."""
_LONGEST = 120


class Entry(Section):
    """One run of a list."""

    recipe: str | None = None
    """A recipe's name, or a file relative to the sweep's. Unset: the sweep's recipe."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Values by dotted name, laid over the recipe and the sweep's own `set`."""
    name: str | None = None
    """Name of the run's folder. Unset: what differs."""
    label: str | None = None
    """What the table calls it. Unset: the row of its `expects`, or its name."""
    evaluate: dict[str, Any] = Field(default_factory=dict)
    """Laid over the sweep's `evaluate`."""
    evaluate_only: bool | None = None
    """Evaluate the model as it is. Unset: as the recipe says."""


class TableConfig(Section):
    """The table at the end."""

    title: str = ""
    """Heading. Unset: the sweep's description."""
    caption: str = ""
    """Text below it."""
    first: str = "run"
    """Heading of the first column."""
    metrics: tuple[str, ...] = ("rollout/accuracy", "rollout/length_mean", "attention/divergence")
    """Metrics of training to show, as means over its last steps."""


class SweepFile(Section):
    """What a sweep's file may hold."""

    name: str | None = None
    """Name of the sweep's folder. Unset: the file's."""
    description: str = ""
    """One line."""
    recipe: str | None = None
    """A recipe's name, or a file relative to this one: what runs start from."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Values by dotted name for every run."""
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    """Dotted names with lists of values: one run for each combination."""
    runs: list[Any] = Field(default_factory=list)
    """A list of recipes, `base`, or entries with recipe, set, name, label, evaluate, evaluate_only."""
    seeds: tuple[int, ...] = ()
    """Every run is made with each of these. Unset: the recipe's seed."""
    with_base: bool = False
    """Evaluate the recipe's model as it is too."""
    evaluate: dict[str, Any] | None = None
    """How results are evaluated. Unset: as the recipe says."""
    table: TableConfig = TableConfig()
    """The table at the end."""


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    name: str
    group: str
    """Its name without the seed; runs of one group differ in nothing else."""
    label: str
    recipe: str
    """As `opasd train` is given it."""
    settings: Settings
    """Laid over the recipe, by dotted name."""
    config: RunConfig
    evaluate: EvaluateConfig | None = None
    evaluate_only: bool = False
    expects: Any = None
    """The recipe's, where nothing but the seed was changed."""

    @property
    def model(self) -> str:
        return self.config.model.name_or_path

    def asked(self) -> Profile | None:
        """How its model is asked; None: not at all."""
        return None if self.evaluate is None else requested_profile(self.evaluate, lab=self.model == LAB)

    def untrained(self) -> list[str]:
        """The model as it is, as `opasd evaluate` is given it."""
        model = self.config.model
        dtype = [] if model.dtype == "auto" else ["--dtype", model.dtype]
        if model.revision is not None:
            return ["base", "--model", model.name_or_path, "--revision", model.revision, *dtype]
        return [model.name_or_path, *dtype]


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep, in the order of the table."""

    name: str
    description: str
    runs: tuple[Planned, ...]
    table: TableConfig


@dataclass(frozen=True)
class Changes:
    """What the command line lays over a sweep's file."""

    settings: Settings
    evaluate: Mapping[str, Any]
    seeds: tuple[int, ...] = ()
    evaluated: bool = True


NO_CHANGES = Changes({}, {})


def sweep_names() -> list[str]:
    """The sweeps that come with the package."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


def load_sweep(names: Sequence[str], changes: Changes = NO_CHANGES) -> Sweep:
    """A packaged sweep by name, a file, or recipes by name."""
    if len(names) == 1 and names[0] in sweep_names():
        return read_sweep(FILES / f"{names[0]}.yaml", changes)
    path = Path(names[0]).expanduser()
    if len(names) == 1 and path.suffix.lower() in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"no file {path}; give a sweep's file or name (`opasd sweep --list`), or recipes")
        found = read_yaml(path)
        if not set(found) & (set(RunConfig.model_fields) | {"extends", "expects", "evaluate_only"}) - {"name"}:
            return read_sweep(path, changes)
    for name in names:
        if name in sweep_names() and name not in recipe_names():
            raise ConfigError(f"{name} is a sweep, which is given alone; give one sweep, or recipes")
        if name not in recipe_names() and not name.lower().endswith((".yaml", ".yml")):
            near = difflib.get_close_matches(name, [*sweep_names(), *recipe_names()], 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else "a file's name ends in .yaml."
            raise ConfigError(
                f'no sweep "{name[:80]}", and no recipe; {hint} `opasd sweep --list` and `opasd recipes` list them'
            )
    stems = [Path(name).stem if "/" in name or name.endswith((".yaml", ".yml")) else name for name in names]
    return plan(SweepFile(name=safe("+".join(stems)), runs=list(names)), Path(), "command line", changes)


def read_sweep(path: Path, changes: Changes = NO_CHANGES) -> Sweep:
    """A sweep's file."""
    file = _checked(SweepFile, read_yaml(path), str(path))
    if file.name is None:
        file = file.model_copy(update={"name": path.stem})
    return plan(file, path.parent, str(path), changes)


def plan(file: SweepFile, near: Path, where: str, changes: Changes = NO_CHANGES) -> Sweep:
    """The runs that a file stands for; mistakes name the place."""
    name = file.name or "sweep"
    try:
        check_name(name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if bool(file.grid) == bool(file.runs):
        raise ConfigError(f"{where}: give either grid or runs, {'not both' if file.grid else 'and not an empty one'}")
    for field in (*file.set, *file.grid):
        _known(field, where)
    if taken := sorted(set(file.grid) & set(changes.settings)):
        raise ConfigError(f"{', '.join(taken)} is what the sweep varies; leave it out, or change the grid in {where}")
    seeds = changes.seeds or file.seeds
    if seeds and any(SEED in place for place in (file.grid, file.set, changes.settings)):
        raise ConfigError(f"{where}: seeds and {SEED} are both given; keep one")
    _different(seeds, f"{where}: seeds")
    entries = list(_grid(file, where) if file.grid else _list(file, where))
    if file.with_base:
        entries.insert(0, Entry(name=BASE, label=BASE, evaluate_only=True))
    if len(entries) * max(1, len(seeds)) > MAX_RUNS:
        raise ConfigError(f"{where}: more than {MAX_RUNS} runs; make the grid smaller")
    found: list[Planned] = []
    for place, entry in enumerate(entries, 1):
        found += _runs(file, entry, seeds, near, f"{where}: run {place}", changes)
    runs = _with_own_names(found)
    _check(runs, where)
    return Sweep(name, file.description, tuple(runs), file.table)


def _grid(file: SweepFile, where: str) -> Iterator[Entry]:
    if file.recipe is None:
        raise ConfigError(f"{where}: a grid needs the recipe that it varies; add recipe: NAME")
    for field, values in file.grid.items():
        if not values:
            raise ConfigError(f"{where}: grid: {field} has no values; give a list such as [0.5, 1.0]")
        _different(values, f"{where}: grid: {field}")
    short = short_names(list(file.grid))
    for values in itertools.product(*file.grid.values()):
        point = dict(zip(file.grid, values, strict=True))
        yield Entry(set=point, name="-".join(f"{short[field]}-{shown(value)}" for field, value in point.items()))


def _list(file: SweepFile, where: str) -> Iterator[Entry]:
    for place, given in enumerate(file.runs, 1):
        if given == BASE:
            yield Entry(name=BASE, label=BASE, evaluate_only=True)
        elif isinstance(given, str):
            yield Entry(recipe=given)
        elif isinstance(given, Mapping):
            yield _checked(Entry, given, f"{where}: run {place}")
        else:
            raise ConfigError(f"{where}: run {place}: got {given!r:.60}; give a recipe's name, base, or an entry")


def _runs(
    file: SweepFile, entry: Entry, seeds: Sequence[int], near: Path, where: str, changes: Changes
) -> Iterator[Planned]:
    source = entry.recipe or file.recipe
    if source is None:
        missing = "base of which model? Add" if entry.name == BASE and entry.evaluate_only else "no recipe; add"
        raise ConfigError(f"{where}: {missing} recipe: NAME to the sweep or the entry")
    if source not in recipe_names():
        source = str(near / Path(source).expanduser())
    try:
        recipe = load_recipe(source)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    for field, value in {**file.set, **entry.set}.items():
        _known(field, where, value)
    only = recipe.evaluate_only if entry.evaluate_only is None else entry.evaluate_only
    settings = {**file.set, **entry.set, **changes.settings}
    name = safe(entry.name or "-".join([recipe.name, *_parts(entry.set)]))
    evaluate = _evaluation(recipe, file, entry, where, changes)
    if only and evaluate is None:
        raise ConfigError(f"{where}: {name} trains nothing, and nothing says how to evaluate it; add evaluate:")
    expected = recipe.expects if isinstance(recipe.expects, Mapping) else {}
    row = " ".join(str(expected[key]) for key in ("group", "row", "series") if key in expected)
    label = entry.label or (row if not entry.name and not entry.set else "") or entry.name or name
    for seed in (None,) if only else seeds or (None,):
        own = settings if seed is None else {**settings, SEED: seed}
        values = laid_over(recipe.values, nested(own))
        config = to_config(values, f"{where} ({name})")
        untouched = to_config(merged(values, {"train": {"seed": recipe.config().train.seed}}), where) == recipe.config()
        yield Planned(
            name=name if seed is None else safe(f"{name}-seed-{seed}"),
            group=name,
            label=label,
            recipe=source,
            settings=own,
            config=config,
            evaluate=evaluate,
            evaluate_only=only,
            expects=recipe.expects if untouched else None,
        )


def _evaluation(recipe: Recipe, file: SweepFile, entry: Entry, where: str, changes: Changes) -> EvaluateConfig | None:
    given = [recipe.evaluate, file.evaluate, entry.evaluate or None, changes.evaluate or None]
    if not changes.evaluated or all(values is None for values in given):
        return None
    together: dict[str, Any] = {}
    for values in given:
        together = merged(together, values or {})
    return to_evaluate(together, where)


def short_names(fields: Sequence[str]) -> dict[str, str]:
    """The last part of each field's name, with as many parts before it as it takes to tell them apart."""
    found: dict[str, str] = {}
    for field in fields:
        parts = field.split(".")
        others = [other.split(".") for other in fields if other != field]
        count = next((n for n in range(1, len(parts)) if all(o[-n:] != parts[-n:] for o in others)), len(parts))
        found[field] = ".".join(parts[-count:])
    return found


def shown(value: Any) -> str:
    """A value as a name or a table says it; a text that reads like another value is quoted."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, str):
        return value if isinstance(parse_value(value), str) else f'"{value}"'
    return "+".join(map(shown, value)) if isinstance(value, list | tuple) else str(value)


def _parts(settings: Settings) -> list[str]:
    short = short_names(list(settings))
    return [f"{short[field]}-{shown(value)}" for field, value in settings.items()]


def safe(text: str) -> str:
    """The text as a folder's name; where something had to be left out, a digest of the text tells it from others."""
    name = re.sub(r"[^A-Za-z0-9._+=@-]+", "_", text).lstrip(".-_")[:_LONGEST]
    return name if name == text else f"{name or 'run'}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=3).hexdigest()


def _with_own_names(runs: list[Planned]) -> list[Planned]:
    """Names that differ in their case alone would share a folder on some systems: those get a digest."""
    folded = Counter({run.name: run.name.casefold() for run in runs}.values())
    return [
        replace(run, name=f"{run.name}-{_digest(run.name)}") if folded[run.name.casefold()] > 1 else run for run in runs
    ]


def _check(runs: Sequence[Planned], where: str) -> None:
    seen: dict[str, str] = {}
    for run in runs:
        made = run.untrained() if run.evaluate_only else run.config.model_dump(exclude={"name", "output_dir"})
        content = f"{made} {run.evaluate}"
        if content in seen:
            raise ConfigError(f"{where}: {seen[content]} and {run.name} are the same run; leave one of them out")
        seen[content] = run.name
    names = Counter(run.name for run in runs)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ConfigError(f"{where}: two runs are named {', '.join(twice)}; give one of them another name:")
    for run in runs:
        if run.name.lower() in (*RESERVED, *NO_TEXT) or run.name.endswith(EVALUATION):
            raise ConfigError(f"{where}: a run may not be named {run.name}; give it another name:")
        check_name(run.name)


def _different(values: Sequence[Any], where: str) -> None:
    for place, value in enumerate(values):
        if any(value == other and type(value) is type(other) for other in values[:place]):
            raise ConfigError(f"{where}: {value!r:.60} stands twice; give each value once")


def _known(field: str, where: str, value: Any = None) -> None:
    try:
        if field in OURS:
            raise ConfigError(f"{field} cannot be set in a sweep: {OURS[field]}")
        kind = field_type(field)
        if as_section(kind) and value is not None:
            raise section_error(field, kind)
        if isinstance(value, str) and value.lower() in NO_TEXT and {str, NoneType} <= set(get_args(kind)):
            raise ConfigError(f"{field}: the text {value!r} reads as null on a command line; give another text")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _checked(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        lines = explain(error, kind)
        raise ConfigError(f"{where}:\n" + "\n".join(f"  {line}" for line in lines)) from None
