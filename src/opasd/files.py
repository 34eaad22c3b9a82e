"""Write files whole or not at all, and read JSON that may be damaged. Imports no torch.

    write_text(path, text)                    # also write_bytes, write_json: written beside `path`, then renamed
    read_object(path)                         # the JSON object in a file, {} if it is missing or damaged
    with staged_folder(path) as staged: ...   # a new folder appears with all its files
    with staged_files(folder, last="config.json") as staged: ...  # files move into a folder, the named one at the end
    sync(path)                                # on the disk, also after a loss of power
    rows = JsonLines(path)                    # rows.append(row, ...), iteration, rows.replace(rows), rows.set_aside()
    with full_disk_errors(path, "run it again"): ...  # one clear message for a full disk
    refuse_traps(folder)                      # links out of someone else's folder, pipes and devices in it

A file that is being written is called `.NAME.new`, a folder `.new-…`.
"""

import errno
import json
import math
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO

from opasd.errors import ConfigError, OpasdError

STAGED = ".new-"
"""The beginning of a staged folder's name; a killed writer leaves such a folder behind."""
RESUME = "continue with --resume, which starts from the last whole checkpoint"
"""What to do after a full disk stopped a run."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_WORDS = ("inline_container", "PytorchStreamWriter", "iostream error", *(f"os error {code})" for code in _FULL))
"""Parts of the messages of torch, safetensors and tokenizers, which hide the system's error code."""


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file at once."""
    with _replacing(path) as file:
        file.write(content)


def write_text(path: Path, text: str, errors: str = "backslashreplace") -> None:
    """Replace the file at once; `errors` says how a lone surrogate, which UTF-8 does not have, is encoded."""
    write_bytes(path, text.encode(errors=errors))


def write_json(path: Path, value: object, indent: int = 1) -> None:
    """Replace the file at once by the value as indented JSON with a line end."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def write_new(path: Path, text: str) -> None:
    """Write a file that must not exist yet."""
    try:
        with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists and is not overwritten; give another name") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); give a path in an existing folder") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file, or an empty one if the file is missing, unreadable or damaged."""
    try:
        return parse_row(path.read_bytes()) or {} if path.is_file() else {}
    except OSError:
        return {}


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` if the block succeeds and is removed if it fails.

    Only one of several processes can make `path`: for the others the rename fails with OSError, since the folder of the
    first is not empty. The parent folder must exist.
    """
    staged = path.with_name(f"{STAGED}{secrets.token_hex(8)}")
    staged.mkdir()
    try:
        yield staged
        staged.rename(path)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def replace_folder(staged: Path, path: Path) -> None:
    """Let a whole folder take the place of `path`, also after a loss of power; what was there is removed."""
    old = path.with_name(f".old-{path.name}")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    staged.rename(path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def staged_files(folder: Path, last: str = "") -> Iterator[Path]:
    """Yield an empty folder; its files move to `folder` if the block succeeds. `folder` is made if it is missing.

    The file without which the others are of no use is moved `last`: a kill between two moves leaves nothing that loads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for abandoned in folder.glob(f"{STAGED}*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix=STAGED, dir=folder) as staged:
            yield Path(staged)
            let_read(Path(staged))
            for path in Path(staged).iterdir():
                sync(path)
            for path in sorted(Path(staged).iterdir(), key=lambda path: path.name == last):
                path.replace(folder / path.name)
            sync(folder)
    finally:
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()


def let_read(folder: Path) -> None:
    """Let everybody read the folder's files whom the umask lets; safetensors writes for their owner alone."""
    fresh = folder / ".fresh"
    fresh.touch()
    mode = fresh.stat().st_mode
    fresh.unlink()
    for path in folder.rglob("*.safetensors"):
        path.chmod(mode)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot
            raise
    finally:
        os.close(number)


@contextmanager
def full_disk_errors(path: Path, then: str = RESUME) -> Iterator[None]:
    """Turn any library's error about a full disk into one ConfigError; `then` says what to do after freeing space."""
    try:
        yield
    except OpasdError:
        raise
    except Exception as error:  # tokenizers raises nothing more specific
        code, is_full = getattr(error, "errno", None), any(word in str(error) for word in _FULL_WORDS)
        gone = not path.parent.exists() or (code in (errno.ENOENT, errno.ESTALE) and not path.exists())
        if not (gone or is_full or code in (*_FULL, errno.EROFS, errno.EIO)):
            raise
        reason = getattr(error, "strerror", None) or (str(error).strip() or type(error).__name__).splitlines()[0]
        first = "free some space" if is_full or code in _FULL else "see to the folder and its disk"
        raise ConfigError(f"{path} could not be written: {reason}; {first}, and {then}") from error


def refuse_traps(folder: Path, names: Iterable[str] = ("**/*",)) -> None:
    """Refuse a folder, which may be someone else's, with a link out of it, a pipe, a socket or a device in it.

    A write follows such a link, and a read of the others may never end. `names` are patterns of what counts.
    """
    inside = os.path.realpath(folder)
    for path in chain.from_iterable(map(folder.glob, names)):
        with suppress(FileNotFoundError):  # a run that goes on removes files
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode) and not Path(os.path.realpath(path)).is_relative_to(inside):
                raise ConfigError(f"{path} is a link out of {folder} and is not followed; put the file itself there")
            if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise _no_file(path)


def refuse_pipes(folder: Path) -> None:
    """Refuse a model's or an adapter's folder with a pipe, a socket or a device in it; the hub's cache is of links."""
    for path in folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise _no_file(path)


def _no_file(path: Path) -> ConfigError:
    return ConfigError(f"{path} is no file but a pipe, a socket or a device; remove it")


class JsonLines:
    """A file with one JSON object in each line, which survives a kill at any moment.

    NaN and infinity, which JSON does not have, are written as null.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, *rows: dict[str, Any]) -> None:
        """Write rows at the end. A kill can only cut the last one."""
        content = b"".join(map(json_line, rows))
        with self.path.open("ab+") as file:
            if size := file.seek(0, os.SEEK_END):
                file.seek(size - 1)
                if file.read() != b"\n":  # the last row was cut; the next one must not join it
                    content = b"\n" + content
            file.write(content)

    def replace(self, rows: Iterable[dict[str, Any]]) -> None:
        """Replace all rows at once; holds one row at a time and may read this very file."""
        with _replacing(self.path) as file:
            file.writelines(map(json_line, rows))
            file.flush()
            os.fsync(file.fileno())

    def set_aside(self) -> None:
        """Rename the file to `NAME.before-NUMBER`, so that the next row begins a new one."""
        names = (f"{self.path.name}.before-{number}" for number in count(1))
        if self.path.exists():
            self.path.rename(next(path for name in names if not (path := self.path.with_name(name)).exists()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the whole rows; skip cut and damaged ones."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            for line in file:
                if (row := parse_row(line)) is not None:
                    yield row
                if not line.endswith(b"\n"):
                    return  # the writer is still at this row; the next read would give its rest


def json_line(row: dict[str, Any]) -> bytes:
    """Return the row as one line of JSON, with null for NaN and infinity."""
    # A lone surrogate has no UTF-8; its backslash form is JSON's escape for it.
    return f"{json.dumps(_finite(row), ensure_ascii=False, allow_nan=False)}\n".encode(errors="backslashreplace")


def parse_row(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object, or None if the bytes are cut, damaged or another value."""
    try:
        value = json.loads(content.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    staged = path.with_name(f".{path.name}.new")
    try:
        if staged.is_symlink():  # in someone else's folder it may lead anywhere
            staged.unlink()
        with staged.open("wb") as file:
            yield file
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value
