"""What is saved: a run's checkpoints, whether one is whole, folders written whole, and one message for a full disk."""

import errno
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import TrainerState

from opasd.errors import ConfigError, OpasdError
from opasd.run.folder import STAGED

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_WORDS = ("inline_container", "PytorchStreamWriter", "iostream error", *(f"os error {code})" for code in _FULL))
"""What torch, safetensors and tokenizers say of a write that failed; they do not pass on the system's own error."""
_RESUME = "--resume goes on from the last whole checkpoint (anew if there is none)"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.rsplit("-", 1)[-1].isdigit()]
    return sorted(found, key=step_of)


def set_aside(checkpoint: Path) -> None:
    """Give it a name that nothing goes on from."""
    names = (f"aside{n or ''}-{checkpoint.name}" for n in count())
    checkpoint.rename(next(path for name in names if not (path := checkpoint.with_name(name)).exists()))


def step_of(checkpoint: Path) -> int:
    """The step in its name."""
    return int(checkpoint.name.rsplit("-", 1)[-1])


def check_checkpoint(path: Path, needed: Iterable[str]) -> int:
    """Its step; one of which a part is missing or cut is refused. `needed` are patterns of files it must have."""
    if not path.is_dir():
        raise ConfigError(f"no checkpoint {path}; give the folder of one")
    if damage := _damage(path, ("trainer_state.json", *needed)):
        raise ConfigError(
            f"{path} is damaged: {damage}; delete it, and --resume goes on from the one before (anew if there is none)"
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
        return f"trainer_state.json or an index of it cannot be read ({error})"
    named = re.fullmatch(r"checkpoint-(\d+)", path.name)  # a copy may have another name
    return None if named is None or int(named[1]) == step else f"its trainer_state.json is of step {step}"


@contextmanager
def told_if_full(path: Path, then: str = _RESUME) -> Iterator[None]:
    """A full disk while `path` is written, as one message; other errors stay what they are."""
    try:
        yield
    except OpasdError:
        raise
    except Exception as error:  # tokenizers raises no other
        if not (getattr(error, "errno", None) in _FULL or any(word in str(error) for word in _FULL_WORDS)):
            raise
        reason = getattr(error, "strerror", None) or str(error).strip().splitlines()[0]
        raise ConfigError(f"{path} could not be written: {reason}; free some space, and {then}") from error


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Where to write what is to be in `folder`: it comes there together, and not at all if the writing fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{STAGED}*"):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix=STAGED, dir=folder) as staged:
            yield Path(staged)
            for path in Path(staged).iterdir():
                path.replace(folder / path.name)
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()
