"""An evaluation's folder: its settings (settings.json), problems (problems.jsonl), samples (samples.jsonl) and results
(evaluation.json).

    evaluations/base+first-aime24-3f9a12bc/

The same settings lead to the same folder, where the evaluation is resumed. Targets and benchmarks may be added; other
changes are refused once there are samples. The results of a run are copied to the run's folder, as
`evaluations/NAME.json`, or `NAME-DIGEST.json` if that is another evaluation's.
"""

import glob
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from opasd import plugins
from opasd.data.problems import Problem
from opasd.errors import ConfigError
from opasd.evaluation.benchmarks import LoadedBenchmark
from opasd.evaluation.comparability import GRADING, GROWING, combined, conflicts, continues, digest, settings_of
from opasd.files import JsonLines, json_line, read_object, refuse_traps, write_bytes, write_json

SETTINGS, PROBLEMS, SAMPLES, RESULTS = "settings.json", "problems.jsonl", "samples.jsonl", "evaluation.json"
CALLS = "calls.jsonl"
FILES = ("*.json*", "part-*", "part-*/*")
"""Patterns of all that an evaluation writes."""
_OPTIONAL = ("template_options", "grader", "boxes", "think_marks", GRADING)
"""Parts of the settings that older folders, or those with the defaults, do not have."""
_UNSAFE = re.compile(r"[^\w.+-]+")


def default_name(settings: Mapping[str, Any]) -> str:
    """Return a readable name that differs when any setting does."""
    names = "-".join("+".join(settings[part]) for part in GROWING)
    return f"{_UNSAFE.sub('_', names)[:80].strip('.')}-{digest(settings)}"


def make(path: Path) -> None:
    """Make the folder if it is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written to ({error.strerror}); give another --output") from error


def enter(path: Path, requested: dict[str, Any]) -> dict[str, Any]:
    """Start or resume the evaluation in the folder; return the settings of all that it holds from now on."""
    try:
        refuse_traps(path, FILES)
        existing = _existing_settings(path, requested)
        settings = requested if existing is None else combined(existing, requested)
        if settings != existing:
            write_json(path / SETTINGS, settings)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written to ({error.strerror}); give another --output") from error
    except ConfigError:
        raise
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path / SETTINGS} is damaged ({error}); give a new --output") from error
    return settings


def _existing_settings(path: Path, requested: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings of the folder's samples, None if it has no samples; refuse what cannot be resumed."""
    if not (path / SETTINGS).exists():
        if others := [name for name in (SAMPLES, RESULTS, PROBLEMS) if (path / name).exists()]:
            raise ConfigError(f"{path} has {others[0]} but no {SETTINGS}; give a new --output")
        return None
    settings = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
    if missing := [name for name in requested if name not in settings and name not in _OPTIONAL]:
        raise ConfigError(f"{path / SETTINGS} is no evaluation's (no {missing[0]!r}); give a new --output")
    if not (path / SAMPLES).exists() and not (path / RESULTS).exists():
        return None
    if differing := conflicts(settings, requested):
        raise ConfigError(
            f"{path} holds samples of other settings: {'; '.join(differing)}. Give the same ones or another --output"
        )
    return settings


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of an evaluation that has samples; refuse any other folder."""
    if missing := [name for name in (SETTINGS, SAMPLES, PROBLEMS) if not (path / name).is_file()]:
        raise ConfigError(f"{path} is no evaluation's folder (no {missing[0]}); give one that opasd evaluate has made")
    refuse_traps(path, FILES)
    settings = read_object(path / SETTINGS)
    if not all(isinstance(settings.get(part), dict) for part in ("profile", *GROWING)):
        raise ConfigError(f"{path / SETTINGS} is damaged; give another folder")
    if missing := plugins.unnamed_module(settings.get("grader")):
        raise ConfigError(
            f"{path / SETTINGS} names the grader {settings['grader']}, and a folder imports no module; add --plugins "
            f"{missing[0]} if you trust it"
        )
    return settings


def known_problems(path: Path) -> dict[tuple[str, str], Problem]:
    """Return the problems of problems.jsonl by benchmark and id."""
    return {
        (row["benchmark"], row["problem"]): Problem(row["question"], "", row["answer"], row["problem"])
        for row in JsonLines(path / PROBLEMS)
        if row.keys() >= {"benchmark", "problem", "question", "answer"}
    }


def write_problems(path: Path, benchmarks: Iterable[LoadedBenchmark]) -> None:
    """Add the benchmarks' problems to problems.jsonl, for readers of the samples."""
    before = (path / PROBLEMS).read_bytes().split(b"\n") if (path / PROBLEMS).exists() else []
    rows = (
        {"benchmark": benchmark.name, "problem": problem.id, "question": problem.question, "answer": problem.answer}
        for benchmark in benchmarks
        for problem in benchmark.problems
    )
    lines = dict.fromkeys([*(line + b"\n" for line in before if line), *map(json_line, rows)])
    write_bytes(path / PROBLEMS, b"".join(lines))


def write_results(path: Path, evaluation: dict[str, Any], asked: Collection[str] = ()) -> None:
    """Write evaluation.json, and copy it to the folders of the runs among the targets that were `asked` now.

    The folder may be someone else's and name any run: of its other targets only copies that are there are replaced.
    """
    write_json(path / RESULTS, evaluation)
    for name, target in evaluation["targets"].items():
        if target["run"] and Path(target["run"]).is_dir():
            copies = Path(target["run"]) / "evaluations"
            try:
                if name in asked:
                    copies.mkdir(exist_ok=True)
                copy = _copy(copies, path.name, evaluation)
                if name in asked or copy.is_file():
                    write_json(copy, evaluation)
            except OSError:
                continue  # the run's folder may be read-only


def _copy(copies: Path, name: str, evaluation: Mapping[str, Any]) -> Path:
    """Return the path of the copy: its own earlier one, never that of another evaluation with this name."""
    first, settings = copies / f"{name}.json", settings_of(evaluation)
    for copy in (first, *sorted(copies.glob(f"{glob.escape(name)}-{'[0-9a-f]' * 8}.json"))):
        if not copy.exists() or _is_continued(copy, settings):
            return copy
    return copies / f"{name}-{digest(settings)}.json"


def _is_continued(copy: Path, settings: dict[str, Any]) -> bool:
    """Return whether the results in `copy` are of these settings, or of fewer targets and benchmarks."""
    try:
        return continues(settings, settings_of(json.loads(copy.read_text(encoding="utf-8"))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
