"""Hold a folder for one process at a time."""

import fcntl
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opasd.errors import ConfigError

_LOCK = ".lock"


@contextmanager
def hold(path: Path, kind: str) -> Iterator[None]:
    """Lock the folder of one `kind` ("run", "evaluation"); the operating system unlocks it when the process ends."""
    if (path / _LOCK).is_symlink():
        raise ConfigError(f"{path / _LOCK} is a link, and is not followed; remove it")
    try:
        file = open(path / _LOCK, "a+", encoding="utf-8")  # noqa: SIM115 (the `with` below closes it)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written to ({error.strerror}); check its rights") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read(20).strip() or "unknown"
            raise ConfigError(
                f"{kind} folder {path} in use by a live process (pid {pid}); wait for it or start another {kind}"
            ) from None
        except OSError as error:
            warnings.warn(f"{path}: this file system has no locks ({error.strerror})", stacklevel=3)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def in_use(path: Path) -> bool:
    """Return whether a process holds the folder."""
    try:
        with open(path / _LOCK, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
