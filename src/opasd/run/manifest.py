"""Whether a folder that a run wrote is whole: a manifest with the size and the digest of every file, written last.

    write_manifest(folder, run_id)      # after the last file; everything is on the disk when it returns
    damage_of(folder, run_id)           # "optimizer.pt has changed since it was written", or None if all is as it was
    newest_result(run)                  # `final`, or the newest checkpoint, that is whole

A digest costs about a second for each gigabyte and core; several files are read at once. Imports no torch.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from opasd.errors import ConfigError
from opasd.files import let_read, read_object, refuse_traps, sync, write_json
from opasd.progress import say

MANIFEST = "manifest.json"
FINAL, CARD = "final", "README.md"
"""A run's result, and the last file that a version without manifests wrote into it."""
_READERS = 4
_LOADED = (".bin", ".jinja", ".json", ".model", ".pt", ".pth", ".py", ".safetensors")
"""Endings of files that a loader may take for its own."""
_LOADED_BELOW = (".bin", ".distcp", ".pt", ".pth", ".safetensors")
"""The same of files in folders of the folder: a loader looks there for weights alone."""


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    numbered = (path for path in folder.glob("checkpoint-*") if re.fullmatch("checkpoint-[0-9]+", path.name))
    return sorted((path for path in numbered if path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the step in the checkpoint's name."""
    return int(checkpoint.name.rsplit("-", 1)[-1])


def write_manifest(folder: Path, run_id: str | None) -> None:
    """Write the sizes and digests of the folder's files; `run_id` says which run they are of."""
    let_read(folder)
    files = list(_files(folder))
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(sync, files))
        digests = list(pool.map(_digest, files))
    entries = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in zip(files, digests, strict=True)
    }
    write_json(folder / MANIFEST, {"run": run_id, "files": entries})
    sync(folder / MANIFEST)
    sync(folder)


def damage_of(folder: Path, run_id: str | None = None, *, digests: bool = True) -> str | None:
    """Return how the folder differs from its manifest, None if it does not.

    With `run_id` there must be a manifest, and of that run: versions that name their runs write one. Without `digests`
    only the sizes are compared.
    """
    if not (folder / MANIFEST).exists():
        return f"it has no {MANIFEST}, which is written last" if run_id else None
    manifest = read_object(folder / MANIFEST)
    entries = manifest.get("files")
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        return f"{MANIFEST} cannot be read"
    if run_id and manifest.get("run") and manifest["run"] != run_id:
        return "it is of another run"
    there = {str(path.relative_to(folder)): path for path in _files(folder)}
    if name := next((name for name in there if name not in entries and _may_be_loaded(name)), None):
        return f"it has {name}, which the run did not write"
    present: list[tuple[Path, Any]] = []
    for name, entry in entries.items():
        if (path := there.get(name)) is None:
            return f"it has no {name[:200]}"
        if path.stat().st_size != entry.get("bytes"):
            return f"{name} is cut or has grown"
        present.append((path, entry.get("sha256")))
    if not digests:
        return None
    with ThreadPoolExecutor(_READERS) as pool:
        for (path, expected), digest in zip(present, pool.map(_digest, (path for path, _ in present)), strict=True):
            if digest != expected:
                return f"{path.name} has changed since it was written"
    return None


def newest_result(run: Path) -> Path | None:
    """Return the run's result, or else its newest checkpoint, that is whole; say what is passed over.

    None if the run has neither. Refuse a run in which none is whole.
    """
    refuse_traps(run)
    final = run / FINAL
    found = [*([final] if final.is_dir() else []), *reversed(checkpoints(run))]
    faults: list[str] = []
    for path in found:
        fault = damage_of(path, run_id(run))
        if path == final and fault is None and len(found) > 1 and not _ended(final):
            fault = f"it has neither {MANIFEST} nor {CARD}, which are written last"
        if fault is None:
            for line in faults:
                say(f"{line}; {path.name} is used")
            return path
        faults.append(f"{path} is damaged: {fault}")
    if faults:
        raise ConfigError(f"{'; '.join(faults)}; continue the run with --resume, or give a whole copy")
    return None


def is_finished(run: Path) -> bool:
    """Return whether the run's result is there; files of other sizes than written do not count."""
    return (run / FINAL / CARD).is_file() and damage_of(run / FINAL, run_id(run), digests=False) is None


def run_id(run: Path) -> str | None:
    """Return the name that tells a run's checkpoints from another's; None for a run of an older version."""
    value = read_object(run / "environment.json").get("run")
    return value if isinstance(value, str) else None


def _ended(final: Path) -> bool:
    return (final / MANIFEST).exists() or (final / CARD).exists()


def _may_be_loaded(name: str) -> bool:
    """Return whether a loader may take the file; it looks no deeper than one folder down."""
    if "/" in name:
        return name.count("/") == 1 and name.endswith(_LOADED_BELOW)
    return name.endswith(_LOADED) and not name.startswith(".")


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MANIFEST:
            yield path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return hashlib.file_digest(file, "sha256").hexdigest()
