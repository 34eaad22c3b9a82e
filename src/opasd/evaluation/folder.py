"""An evaluation's folder: what was asked (settings.json, problems.jsonl), every sample (samples.jsonl), the results
(evaluation.json).

    evaluations/base+first-aime24-3f9a12bc/

The same settings find the same folder again and go on in it; targets and benchmarks may be added, anything else is
refused once there are samples. Results of a target that is a run are copied to the run's folder, as
`evaluations/NAME.json`, or `NAME-DIGEST.json` where that is another evaluation's.
"""

import glob
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from opasd.errors import ConfigError
from opasd.evaluation.comparability import GROWING, combined, conflicts, continues, digest, settings_of

SETTINGS, SAMPLES, RESULTS = "settings.json", "samples.jsonl", "evaluation.json"
PROBLEMS = "problems.jsonl"
_UNSAFE = re.compile(r"[^\w.+-]+")


def default_name(settings: Mapping[str, Any]) -> str:
    """A readable name that differs when any setting does."""
    names = "-".join("+".join(settings[part]) for part in GROWING)
    return f"{_UNSAFE.sub('_', names)[:80].strip('.')}-{digest(settings)}"


def make(path: Path) -> None:
    """Make the folder, if it is not there yet."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written to ({error.strerror}); give another --output") from error


def enter(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Begin in the folder or go on in it: the settings of all that is in it now."""
    there = None
    try:
        if (path / SETTINGS).exists():
            there = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
            if missing := [name for name in settings if name not in there and name != "template_options"]:
                raise ConfigError(f"{path / SETTINGS} is no evaluation's (no {missing[0]!r}); give a new --output")
            begun = (path / SAMPLES).exists() or (path / RESULTS).exists()
            if begun and (differing := conflicts(there, settings)):
                raise ConfigError(
                    f"{path} holds samples of other settings: {'; '.join(differing)}. Give the same ones or another "
                    "--output"
                )
            together = combined(there, settings) if begun else settings
        elif others := [name for name in (SAMPLES, RESULTS, PROBLEMS) if (path / name).exists()]:
            raise ConfigError(f"{path} has {others[0]} but no {SETTINGS}; give a new --output")
        else:
            together = settings
        if together != there:
            write_json(path / SETTINGS, together)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written to ({error.strerror}); give another --output") from error
    except ConfigError:
        raise
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path / SETTINGS} is damaged ({error}); give a new --output") from error
    return together


def write_problems(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add problems to problems.jsonl, for whoever reads the samples; those of other benchmarks stay."""
    there = (path / PROBLEMS).read_text(encoding="utf-8", errors="replace") if (path / PROBLEMS).exists() else ""
    lines = dict.fromkeys([*there.split("\n"), *(json.dumps(row, ensure_ascii=False) for row in rows)])
    _write(path / PROBLEMS, "".join(f"{line}\n" for line in lines if line))


def write_results(path: Path, evaluation: dict[str, Any]) -> None:
    """Write evaluation.json, and copy it to the runs it is about."""
    write_json(path / RESULTS, evaluation)
    for target in evaluation["targets"].values():
        if target["run"] and Path(target["run"]).is_dir():
            copies = Path(target["run"]) / "evaluations"
            try:
                copies.mkdir(exist_ok=True)
                write_json(_copy(copies, path.name, evaluation), evaluation)
            except OSError:
                continue  # a run that is only to be read


def _copy(copies: Path, name: str, evaluation: Mapping[str, Any]) -> Path:
    """Where the copy belongs: over its own earlier one, never over that of another evaluation of this name."""
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


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write the file at once."""
    _write(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    staged = path.with_name(f".{path.name}.new")
    staged.write_text(text, encoding="utf-8", errors="backslashreplace")
    os.replace(staged, path)
