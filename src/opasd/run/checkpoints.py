"""A run's checkpoints, and whether one is whole."""

import json
import re
import zipfile
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import TrainerState

from opasd.errors import ConfigError


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    numbered = (path for path in folder.glob("checkpoint-*") if path.name.rsplit("-", 1)[-1].isdigit())
    return sorted(numbered, key=step_of)


def set_aside(checkpoint: Path) -> None:
    """Rename a checkpoint, so that no run continues from it."""
    names = (f"aside{n or ''}-{checkpoint.name}" for n in count())
    checkpoint.rename(next(path for name in names if not (path := checkpoint.with_name(name)).exists()))


def step_of(checkpoint: Path) -> int:
    """Return the step in the checkpoint's name."""
    return int(checkpoint.name.rsplit("-", 1)[-1])


def check_checkpoint(path: Path, needed: Iterable[str]) -> int:
    """Return the checkpoint's step; refuse it if a file is cut, or if none matches one of the `needed` patterns."""
    if not path.is_dir():
        raise ConfigError(f"no checkpoint {path}; give the folder of one")
    if damage := _damage(path, ("trainer_state.json", *needed)):
        raise ConfigError(
            f"{path} is damaged: {damage}; delete it, and --resume continues from the one before, or starts again"
        )
    return _step(path)


def _step(path: Path) -> int:
    return TrainerState.load_from_json(str(path / "trainer_state.json")).global_step


def _damage(path: Path, needed: Iterable[str]) -> str | None:
    try:
        for index in path.glob("*.index.json"):
            needed = (*needed, *json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if missing := [pattern for pattern in needed if not any(path.rglob(pattern))]:
            return f"it has no {missing[0]}"
        for file in sorted(path.rglob("*")):
            if file.suffix in (".pt", ".pth") and not zipfile.is_zipfile(file):
                return f"{file.name} is cut"
            if file.suffix == ".safetensors":
                try:
                    with safe_open(file, "pt"):
                        pass
                except SafetensorError:
                    return f"{file.name} is cut"
        step = _step(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"trainer_state.json or an index file cannot be read ({error})"
    named = re.fullmatch(r"checkpoint-(\d+)", path.name)  # a copy may have another name
    return None if named is None or int(named[1]) == step else f"its trainer_state.json is of step {step}"
