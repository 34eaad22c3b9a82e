"""A sweep's file, and its runs: each with a checked configuration and a name that says what differs.

    name: mine                                       the sweep's folder; unset: the file's name
    description: One line.
    recipe: lab-short                                a recipe or a file beside this one: what every run starts from
    set: {train.max_steps: 20}                       laid over it, by dotted names
    grid: {objective.attention_weight: [0.25, 0.5]}  every combination; or
    runs: [base, lab-short, {recipe: lab-short, set: {teacher.update: ema}, name: ema, label: moving average}]
    seeds: [1, 42]                                   every run with each seed; unset: the recipe's
    with_base: true                                  the untrained model too
    evaluate: {benchmarks: [lab], problems: 300}     laid over the recipe's own `evaluate`
    table: {title: …, caption: …, first: heading of the first column, metrics: [rollout/accuracy]}

An entry of `runs` is a recipe, `base` for the untrained model, or any of recipe, set, name (of its folder; unset: what
differs), label (in the table; unset: the row of its published number, or its name), evaluate and evaluate_only.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import Field

from opasd.config import RunConfig, Section
from opasd.errors import ConfigError, closest, error_prefix
from opasd.evaluation.profiles import Profile, requested_profile
from opasd.lab import LAB
from opasd.recipes import YAML_ENDINGS, laid_over, load_recipe, merged, recipe_names
from opasd.recipes.checking import as_section, checked, to_config
from opasd.recipes.evaluate import EvaluateConfig, to_evaluate
from opasd.recipes.fields import Settings, field_type, nested, section_error
from opasd.recipes.reading import read_yaml
from opasd.run.folder import check_name
from opasd.sweep.names import folder_name, settings_name, with_digest

FILES = Path(__file__).parent / "files"
BASE = "base"
SEED = "train.seed"
EVALUATION = ".evaluation"
"""End of the name of a run's evaluation folder, which lies beside the run's folder."""
RESERVED = ("logs", "state", "tables", "report")
OWN_FIELDS = {
    "name": "runs are named by what differs",
    "output_dir": "runs are made in the sweep's folder, see --output",
}
"""Fields that a sweep sets itself."""
NULL_TEXTS = ("none", "null")
"""Texts that a command line reads as null."""
MAX_RUNS = 1000
_RECIPE_KEYS = set(RunConfig.model_fields) - {"name"} | {"extends", "expects", "evaluate_only"}
"""Keys that a recipe has and a sweep's file does not."""


class Entry(Section):
    """One run of a list."""

    recipe: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    name: str | None = None
    label: str | None = None
    evaluate: dict[str, Any] = Field(default_factory=dict)
    evaluate_only: bool | None = None


BASE_ENTRY = Entry(name=BASE, label=BASE, evaluate_only=True)


class TableConfig(Section):
    """The table at the end."""

    title: str = ""
    caption: str = ""
    first: str = "run"
    metrics: tuple[str, ...] = ("rollout/accuracy", "rollout/length_mean", "attention/divergence")
    """Metrics of training to show, as means over its last steps."""


class SweepFile(Section):
    """The keys of a sweep's file."""

    name: str | None = None
    description: str = ""
    recipe: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    runs: list[Any] = Field(default_factory=list)
    seeds: tuple[int, ...] = ()
    with_base: bool = False
    evaluate: dict[str, Any] | None = None
    table: TableConfig = TableConfig()


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    group: str
    """Its name without the seed, shared by runs that differ in the seed alone."""
    label: str
    recipe: str
    """As `opasd train` takes it."""
    settings: Settings
    """Laid over the recipe."""
    config: RunConfig
    evaluate: EvaluateConfig | None = None
    evaluate_only: bool = False
    expects: Any = None
    """The recipe's, if nothing but the seed was changed."""

    @property
    def model(self) -> str:
        return self.config.model.name_or_path

    def profile(self) -> Profile | None:
        """Return how the model's answers are sampled, None if it is not evaluated."""
        return self.evaluate and requested_profile(self.evaluate, lab=self.model == LAB)

    def base_target(self) -> list[str]:
        """Return the untrained model as `opasd evaluate` takes it."""
        model = self.config.model
        dtype = [] if model.dtype == "auto" else ["--dtype", model.dtype]
        if model.revision is not None:
            return ["base", "--model", model.name_or_path, "--revision", model.revision, *dtype]
        return [model.name_or_path, *dtype]

    def identity(self, *, with_seed: bool = True) -> str:
        """Return a text that two runs share if they are the same, whatever their names."""
        hidden: dict[str, Any] = dict.fromkeys(OWN_FIELDS, True) | ({} if with_seed else {"train": {"seed"}})
        return f"{self.base_target() if self.evaluate_only else self.config.model_dump(exclude=hidden)} {self.evaluate}"


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep, in the order of the table."""

    name: str
    description: str
    runs: tuple[SweepRun, ...]
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
    """Return the names of the sweeps that come with the package."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


def load_sweep(names: Sequence[str], changes: Changes = NO_CHANGES) -> Sweep:
    """Return the sweep that is a packaged one's name, a sweep's file, or a list of recipes."""
    for name in names:
        path = FILES / f"{name}.yaml" if name in sweep_names() and len(names) == 1 else Path(name).expanduser()
        if path.suffix.lower() not in YAML_ENDINGS:
            continue
        if not path.is_file():
            raise ConfigError(f"no file {path}; give a sweep's file or name (`opasd sweep --list`), or recipes")
        values = read_yaml(path)
        if _RECIPE_KEYS & set(values):
            continue
        if len(names) > 1:
            raise ConfigError(f"{name} is a sweep's file, which is given alone; give one sweep, or recipes")
        file = checked(SweepFile, values, str(path))
        with error_prefix(str(path)):
            return expand(file.model_copy(update={"name": file.name or path.stem}), path.parent, changes)
    for name in names:
        if name in sweep_names() and name not in recipe_names():
            raise ConfigError(f"{name} is a sweep, which is given alone; give one sweep, or recipes")
        if name not in recipe_names() and not name.lower().endswith(YAML_ENDINGS):
            hint = closest(name, [*sweep_names(), *recipe_names()]) or "a file's name ends in .yaml."
            raise ConfigError(
                f'no sweep "{name[:80]}", and no recipe; {hint} `opasd sweep --list` and `opasd recipes` list them'
            )
    stems = [Path(name).stem if "/" in name or name.endswith(YAML_ENDINGS) else name for name in names]
    with error_prefix("command line"):
        return expand(SweepFile(name=folder_name("+".join(stems)), runs=list(names)), Path(), changes)


def expand(file: SweepFile, folder: Path, changes: Changes = NO_CHANGES) -> Sweep:
    """Return the sweep of a file in `folder`, with all its runs."""
    name = file.name or "sweep"
    check_name(name)
    for field in (*file.set, *file.grid, *changes.settings):
        _check_field(field)
    if taken := sorted(set(file.grid) & set(changes.settings)):
        raise ConfigError(f"{', '.join(taken)} is what the sweep varies; leave it out, or change the grid")
    seeds = changes.seeds or file.seeds
    if seeds and any(SEED in fields for fields in (file.grid, file.set, changes.settings)):
        raise ConfigError(f"seeds and {SEED} are both given; keep one")
    entries = list(_entries(file))
    if len(entries) * max(1, len(seeds)) > MAX_RUNS:
        raise ConfigError(f"more than {MAX_RUNS} runs; make the grid smaller")
    runs: list[SweepRun] = []
    for number, entry in enumerate(entries, 1):
        with error_prefix(f"run {number}"):
            runs += _runs(file, entry, seeds, folder, changes)
    # Names that differ in their case alone would share a folder on some systems.
    folded = Counter({run.name: run.name.casefold() for run in runs}.values())
    runs = [
        replace(run, name=with_digest(run.name, run.name)) if folded[run.name.casefold()] > 1 else run for run in runs
    ]
    _check_runs(runs)
    return Sweep(name, file.description, tuple(runs), file.table)


def _entries(file: SweepFile) -> Iterator[Entry]:
    """Yield the points of the grid or the entries of the list, after the base."""
    if bool(file.grid) == bool(file.runs):
        raise ConfigError(f"give either grid or runs, {'not both' if file.grid else 'and not an empty one'}")
    if file.grid and file.recipe is None:
        raise ConfigError("a grid needs the recipe that it varies; add recipe: NAME")
    if empty := [field for field, values in file.grid.items() if not values]:
        raise ConfigError(f"grid: {', '.join(empty)} has no values; give a list such as [0.5, 1.0]")
    if file.with_base:
        yield BASE_ENTRY
    for values in itertools.product(*file.grid.values()) if file.grid else ():
        point = dict(zip(file.grid, values, strict=True))
        yield Entry(set=point, name=settings_name(point))
    for number, entry in enumerate(file.runs, 1):
        if entry == BASE:
            yield BASE_ENTRY
        elif isinstance(entry, str):
            yield Entry(recipe=entry)
        elif isinstance(entry, Mapping):
            yield checked(Entry, entry, f"run {number}")
        else:
            raise ConfigError(f"run {number}: got {entry!r:.60}; give a recipe's name, base, or an entry")


def _runs(file: SweepFile, entry: Entry, seeds: Sequence[int], folder: Path, changes: Changes) -> Iterator[SweepRun]:
    """Yield the entry's run with each seed."""
    source = entry.recipe or file.recipe
    if source is None:
        missing = "base of which model? Add" if entry == BASE_ENTRY else "no recipe; add"
        raise ConfigError(f"{missing} recipe: NAME to the sweep or the entry")
    if source not in recipe_names():
        source = str(folder / Path(source).expanduser())
    recipe = load_recipe(source)
    for field, value in {**file.set, **entry.set}.items():
        _check_field(field, value)
    evaluate_only = recipe.evaluate_only if entry.evaluate_only is None else entry.evaluate_only
    name = folder_name(entry.name or "-".join(filter(None, [recipe.name, settings_name(entry.set)])))
    layers = (recipe.evaluate, file.evaluate, entry.evaluate or None, changes.evaluate or None)
    layers = [layer for layer in layers if changes.evaluated and layer is not None]
    evaluate = to_evaluate(functools.reduce(merged, layers), "this run") if layers else None
    if evaluate_only and evaluate is None:
        raise ConfigError(f"{name} trains nothing, and nothing says how to evaluate it; add evaluate:")
    expects = recipe.expects if isinstance(recipe.expects, Mapping) and not entry.name and not entry.set else {}
    published = " ".join(str(expects[key]) for key in ("group", "row", "series") if key in expects)
    for seed in (None,) if evaluate_only else seeds or (None,):
        settings = {**file.set, **entry.set, **changes.settings} | ({} if seed is None else {SEED: seed})
        config = to_config(laid_over(recipe.values, nested(settings)), name)
        unchanged = config.train.model_copy(update={"seed": recipe.config().train.seed})
        yield SweepRun(
            name=name if seed is None else folder_name(f"{name}-seed-{seed}"),
            group=name,
            label=entry.label or published or entry.name or name,
            recipe=source,
            settings=settings,
            config=config,
            evaluate=evaluate,
            evaluate_only=evaluate_only,
            expects=recipe.expects if config.model_copy(update={"train": unchanged}) == recipe.config() else None,
        )


def _check_runs(runs: Sequence[SweepRun]) -> None:
    names: dict[str, str] = {}
    for run in runs:
        if other := names.get(run.identity()):
            raise ConfigError(f"{other} and {run.name} are the same run; leave one of them out")
        names[run.identity()] = run.name
    if repeated := [name for name, count in Counter(names.values()).items() if count > 1]:
        raise ConfigError(f"two runs are named {', '.join(repeated)}; give one of them another name:")
    for run in runs:
        if run.name.lower() in (*RESERVED, *NULL_TEXTS) or run.name.endswith(EVALUATION):
            raise ConfigError(f"a run may not be named {run.name}; give it another name:")
        check_name(run.name)


def _check_field(field: str, value: Any = None) -> None:
    """Refuse a field that a sweep cannot set, a value for a whole section, and a text that reads as null in a flag."""
    if field in OWN_FIELDS:
        raise ConfigError(f"{field} cannot be set in a sweep: {OWN_FIELDS[field]}")
    kind = field_type(field)
    if as_section(kind) and value is not None:
        raise section_error(field, kind)
    if isinstance(value, str) and value.lower() in NULL_TEXTS and {str, NoneType} <= set(get_args(kind)):
        raise ConfigError(f"{field}: the text {value!r} reads as null on a command line; give another text")
