"""Read and write the records of this folder: one archive (.tar.xz) for each experiment.

An archive holds the folders of the experiment's sweeps as `opasd sweep` wrote them, without weights and logs:
`rates.tar.xz` of arithmetic has `rates/opasd-1e-4-seed-1/metrics.jsonl`, `chosen/opsd-1e-4-seed-1.evaluation/…` and so
on. `python results/pack.py unpack` makes ordinary folders again, and so does `tar -xf`.
"""

import json
import lzma
import tarfile
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    """Write files to an archive. The same files always give the same bytes."""
    # Files of one name are much alike. xz finds that out if they are neighbours.
    ordered = sorted(files, key=lambda name: (name.rpartition("/")[2], name))
    with (
        lzma.open(path, "wb", preset=9 | lzma.PRESET_EXTREME) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for name in ordered:
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            archive.addfile(member, BytesIO(files[name]))


def read_archive(path: Path) -> dict[str, bytes]:
    """Return the files of an archive by their names."""
    with tarfile.open(path) as archive:
        streams = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: stream.read() for name, stream in streams.items() if stream}


@cache
def files_of(task: str) -> dict[str, bytes]:
    """Return the files of all archives of a task, such as `arithmetic`."""
    return {name: data for path in sorted((HERE / task).glob("*.tar.xz")) for name, data in read_archive(path).items()}


def read_rows(path: str) -> list[dict[str, Any]]:
    """Return the rows of a JSON lines file, such as `arithmetic/rates/opasd-1e-4-seed-1/metrics.jsonl`."""
    task, _, name = path.partition("/")
    return [json.loads(line) for line in files_of(task)[name].decode().splitlines()]


def read_document(path: str) -> dict[str, Any]:
    """Return the content of a JSON file."""
    task, _, name = path.partition("/")
    return json.loads(files_of(task)[name])


def training_runs(sweep: str) -> list[str]:
    """Return the names of a sweep's training runs, such as those of `arithmetic/rates`."""
    return sorted(_folders_with("metrics.jsonl", sweep))


def evaluated_models(sweep: str) -> list[str]:
    """Return the names of the models that a sweep evaluated, in the order of their folders."""
    return [name.removesuffix(".evaluation") for name in sorted(_folders_with("settings.json", sweep))]


def _folders_with(file: str, sweep: str) -> list[str]:
    task, _, folder = sweep.partition("/")
    parts = [name.split("/") for name in files_of(task)]
    return [part[1] for part in parts if len(part) == 3 and part[0] == folder and part[2] == file]
