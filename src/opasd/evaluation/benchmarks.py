"""Benchmarks: small entries that say where problems come from and how they are asked and graded.

    find_benchmarks(["aime24"])[0] ─► Benchmark ─► load() ─► LoadedBenchmark(problems with answers, and their origin)

A local copy is preferred to the hub. A problem's id is its number in the benchmark, so both give the same samples.
"""

import dataclasses
import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from opasd.config import ColumnConfig, DataConfig, PromptConfig, Section
from opasd.config.run import AnswerPattern
from opasd.data.made import TASKS, make_problems
from opasd.data.problems import Problem, load_problems
from opasd.data.sources import ANSWER_COLUMNS, Origin, files_by_split, listing, read_rows
from opasd.errors import ConfigError, DataError, error_prefix
from opasd.grading.reading import boxed_answer
from opasd.grading.tidying import tidy
from opasd.grading.verdict import AnswerKind, quick_verdict
from opasd.grading.words import choice
from opasd.lab import LAB
from opasd.prompts.wording import Wording
from opasd.recipes.checking import checked
from opasd.recipes.evaluate import EvaluateConfig
from opasd.recipes.reading import read_yaml

PACKAGED = Path(__file__).with_name("benchmarks.yaml")
DATA_DIR = "OPASD_DATA_DIR"
"""Environment variable that names the folder of local copies."""
PAPER = ("aime24", "aime25", "aime26", "hmmt25")
"""Benchmarks of an evaluation that names none."""
QUESTION_COLUMNS = ("problem", "question", "prompt")
"""Columns that may hold the question in a file without an entry."""
_ENDINGS = ("jsonl", "jsonl.gz", "json", "json.gz", "parquet", "csv", "csv.gz")
_TRAINING_ADVICE = re.compile(r" or set data\.| Check data\.")
_INTEGER = re.compile(r"[-+]?\d[\d,]*", re.ASCII)
_ZERO_FRACTION = re.compile(r"(?<=\d)\.0*$")


DATE = r"^\d{4}(-\d{2}(-\d{2})?)?$"
"""A day, a month or a year, as 2025-02-13."""
Released = Annotated[str, BeforeValidator(lambda value: str(value)), Field(pattern=DATE)]


class Benchmark(Section):
    """One entry."""

    name: str
    """Its name on the command line."""
    title: str = ""
    """Its name in a table."""
    source: str
    """A data set on the hub, a file, a folder, or an embedded task."""
    revision: str | None = None
    """Commit of a hub data set. Unset: the newest one; the result records its hash."""
    subset: str | None = None
    """Configuration of a hub data set."""
    split: str = "train"
    """Split that holds the problems."""
    question: str = "problem"
    """Column with the problem."""
    answer: str = "answer"
    """Column with the answer."""
    answer_pattern: AnswerPattern = None
    """Regular expression whose first group extracts the answer. A text that does not match is the answer itself."""
    kind: AnswerKind = "expression"
    """What the answers are."""
    tolerance: float | None = Field(default=None, gt=0, lt=1)
    """How far a number may be from the known one, as a share of it: 0.01 for rounded answers. Unset: not at all."""
    prompt: str = PromptConfig().student
    """The user's message."""
    instruction: str = PromptConfig().instruction
    """What the message asks for."""
    problems: int | None = Field(default=None, gt=0)
    """How many problems there are."""
    licence: str | None = None
    """Licence of the data, as its card states it."""
    released: Released | None = None
    """From when on the problems were public."""
    also: tuple[str, ...] = ()
    """Other names, which a local copy may have too."""

    def prompts(self) -> PromptConfig:
        """Return the wording of its problems."""
        return PromptConfig(student=self.prompt, instruction=self.instruction)


@dataclass(frozen=True)
class LoadedBenchmark:
    """A benchmark and its problems, each with an answer."""

    entry: Benchmark
    problems: tuple[Problem, ...]
    source: str
    """The path, hub name or embedded task that was read."""
    revision: str | None
    """The commit that was read from the hub."""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def unmatched(self) -> list[str]:
        """The ids of problems whose known answer, put into a box, would be graded as wrong."""
        kind = self.entry.kind
        boxes = ((problem, boxed_answer(rf"\boxed{{{problem.answer}}}")) for problem in self.problems)
        return [p.id for p, answer in boxes if not answer or not quick_verdict(answer, str(p.answer), kind)]

    @property
    def fingerprint(self) -> str:
        """A digest of the questions, the answers, and how they are asked and graded."""
        wording: list[Any] = [self.entry.prompt, self.entry.instruction, self.entry.kind]
        wording += [self.entry.tolerance] if self.entry.tolerance else []
        rows = [[problem.id, problem.question, problem.answer] for problem in self.problems]
        return hashlib.blake2b(json.dumps([wording, rows]).encode(), digest_size=16).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return what settings and results say about it."""
        return {
            "title": self.entry.title or self.name,
            "source": self.source,
            "revision": self.revision,
            "problems": len(self.problems),
            "kind": self.entry.kind,
            **({"tolerance": self.entry.tolerance} if self.entry.tolerance else {}),
            "prompt": self.entry.prompt,
            "instruction": self.entry.instruction,
            "licence": self.entry.licence,
            "released": self.entry.released,
            "fingerprint": self.fingerprint,
        }


@cache
def packaged() -> dict[str, Benchmark]:
    """Return the entries that come with the package and with plugins, by name."""
    return read_entries(PACKAGED)


def register_benchmark(name: str, source: str, **fields: Any) -> None:
    """Add a benchmark under a name; `fields` are those of an entry, such as `question`, `answer` and `kind`."""
    if name in packaged():
        raise ConfigError(f"there is already a benchmark named {name!r}; choose another name")
    packaged()[name] = checked(Benchmark, {"name": name, "source": source, **fields}, f"benchmark {name}")


def read_entries(path: Path) -> dict[str, Benchmark]:
    """Return the entries of a YAML file, by name; relative sources are relative to the file."""
    entries: dict[str, Benchmark] = {}
    for name, values in read_yaml(path).items():
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {name}: got {values!r:.60}; give an entry's fields, such as `source: …`")
        entry = checked(Benchmark, {"name": name, **values}, f"{path}: {name}")
        with error_prefix(f"{path}: {name}"):
            Wording.parse("prompt", entry.prompt, once={"question"}, optional={"instruction"})
        beside = path.parent / Path(entry.source).expanduser()
        entries[name] = entry.model_copy(update={"source": str(beside)}) if beside.exists() else entry
    if not entries:
        raise ConfigError(f"{path} has no entries; give one, such as `mine: {{source: mine.jsonl}}`")
    return entries


def requested_benchmarks(options: EvaluateConfig, *, lab: bool) -> list[Benchmark]:
    """Return the entries that the options name, or the default ones. `lab`: only the embedded model is evaluated."""
    return find_benchmarks(list(options.benchmarks) or ([LAB] if lab else list(PAPER)))


def find_benchmarks(names: list[str]) -> list[Benchmark]:
    """Return the entries for names, files of entries, data files or folders."""
    chosen: dict[str, Benchmark] = {}
    for name in names:
        for entry in _find(name):
            if entry.name in chosen and chosen[entry.name] != entry:
                raise ConfigError(f'two benchmarks are called "{entry.name}"; rename one file or entry')
            chosen[entry.name] = entry
    return list(chosen.values())


def _find(name: str) -> list[Benchmark]:
    known = packaged()
    for entry in known.values():
        if name.casefold() in {other.casefold() for other in (entry.name, *entry.also)}:
            return [entry]
    path = Path(name).expanduser()
    if path.suffix.lower() in (".yaml", ".yml"):
        return list(read_entries(path).values())
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{path} is no file but a pipe, a socket or a device; give a file")
    if path.exists():
        stem = path.name if path.is_dir() else path.name.removesuffix(".gz").rpartition(".")[0]
        return [Benchmark(name=stem or path.name, source=str(path))]
    close = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {close[0]}?" if close else "a file or folder is given by its path."
    raise ConfigError(f'no benchmark "{name[:80]}"; {hint} The benchmarks are {", ".join(known)}')


def load(entry: Benchmark, data_dir: str | Path | None = None, limit: int | None = None) -> LoadedBenchmark:
    """Return the benchmark with its first `limit` problems, from a copy in `data_dir` if there is one."""
    if entry.source in TASKS:
        made = make_problems(entry.source, "test", min(limit or 10**9, entry.problems or 1200))
        problems = [dataclasses.replace(problem, solution="") for problem in made]
        return LoadedBenchmark(entry, tuple(problems), entry.source, None)
    local = _local_path(entry, data_dir)
    columns = ColumnConfig(**entry.model_dump(include={"question", "answer", "answer_pattern"}), solution=None)
    fields = entry.model_dump(include={"source", "revision", "subset", "split"})
    config = DataConfig(**fields, columns=columns, deduplicate=False)
    if local:
        inner = local / entry.subset if entry.subset and (local / entry.subset).is_dir() else local
        splits = list(files_by_split(inner)) if inner.is_dir() else []
        split = splits[0] if len(splits) == 1 else entry.split
        config = config.model_copy(update={"source": str(inner), "subset": None, "split": split})
        config = config.model_copy(update={"columns": columns.model_copy(update=_usual_columns(config))})
    try:
        rows = load_problems(config=config)
    except DataError as error:
        if local:  # the advice about training data does not apply
            raise DataError(_TRAINING_ADVICE.split(str(error))[0]) from error
        raise DataError(
            f"{entry.name}: {str(error).partition('; ')[0]}. Without network put a copy, {entry.name}.jsonl or what `hf"
            f" download {entry.source} --repo-type dataset --local-dir DIR/{entry.name}` fetches, into DIR and give "
            "--data-dir DIR"
        ) from error
    problems = [_as_benchmark_problem(problem, number, entry) for number, problem in enumerate(rows, 1)]
    if entry.kind == "expression" and all(_INTEGER.fullmatch(problem.answer or "") for problem in problems):
        entry = entry.model_copy(update={"kind": "integer"})
    return LoadedBenchmark(entry, tuple(problems[:limit]), config.source, rows.report.revision)


def _as_benchmark_problem(problem: Problem, number: int, entry: Benchmark) -> Problem:
    """Return the problem under its number, with an answer of the entry's kind."""
    if problem.answer is None:
        pattern = f" (answer_pattern {entry.answer_pattern!r})" if entry.answer_pattern else ""
        raise DataError(
            f'{problem.id}: column "{entry.answer}" has no answer{pattern}; a benchmark needs one in every row'
        )
    answer = problem.answer.strip()
    if entry.kind == "integer" and not _INTEGER.fullmatch(answer := _ZERO_FRACTION.sub("", answer)):  # 27.0 is 27
        raise DataError(f"{problem.id}: the answer is {answer[:60]!r}, not an integer; set kind: expression")
    if entry.kind == "choice" and choice(tidy(answer)) is None:
        raise DataError(f"{problem.id}: the answer is {answer[:60]!r}, not an option's letter; set kind: expression")
    return Problem(problem.question, "", answer, f"{entry.name}/{number}")


def _local_path(entry: Benchmark, data_dir: str | Path | None) -> Path | None:
    """Return the benchmark's copy in `data_dir`, or else its source if that is a path here.

    A copy is called NAME.jsonl (json, csv, parquet), or it is a folder NAME as on the hub.
    """
    source = Path(entry.source).expanduser()
    existing = source if source.exists() else None
    if not (data_dir := data_dir or os.environ.get(DATA_DIR)):
        return existing
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder} with local copies of benchmarks; give an existing one")
    paths = {path.name.casefold(): path for path in folder.iterdir()}
    for name in (entry.name, *entry.also, entry.source.rpartition("/")[2], entry.source.replace("/", "--")):
        for candidate in (*(f"{name}.{ending}" for ending in _ENDINGS), name):
            if path := paths.get(candidate.casefold()):
                return path
    nested = folder / entry.source  # organisation/name, as on the hub
    return nested if "/" in entry.source and not Path(entry.source).is_absolute() and nested.is_dir() else existing


def is_local(entry: Benchmark, data_dir: str | Path | None = None) -> bool:
    """Return whether `load` reads it from this machine."""
    return entry.source in TASKS or _local_path(entry, data_dir) is not None


def _usual_columns(config: DataConfig) -> dict[str, str]:
    """Return the configured columns, or in their place the usual ones, that the first row of a local file has."""
    _, _, row = next(read_rows(config.source, config, Origin()), ("", 0, None))
    if not isinstance(row, Mapping):
        return {}
    usual = {"question": QUESTION_COLUMNS, "answer": ANSWER_COLUMNS}
    columns: dict[str, str] = {}
    for part, names in usual.items():
        column = next((name for name in (getattr(config.columns, part), *names) if name in row), None)
        if column is None:
            file = Path(config.source)
            raise DataError(
                f"{file}: no column for the {part}; there is {listing(row)}. Describe it in a YAML entry: "
                f"`NAME: {{source: {file.name}, question: …, answer: …}}`"
            )
        columns[part] = column
    return columns
