"""Pack a sweep's folder into an archive of this folder, and unpack an archive into ordinary folders.

    python results/pack.py pack SWEEP ARCHIVE.tar.xz [--name NAME] [--counts] [--unfinished]
    python results/pack.py unpack ARCHIVE.tar.xz FOLDER

`pack` adds the sweep to the archive under the name of its folder or under NAME, and replaces what the archive has under
that name. It leaves out weights, logs, tables, the seeds and the tokens of answers, and all of a model card but its
head. The first answer to each problem keeps its text, or with --counts only what reading.py counts in it; all answers
keep their verdicts and lengths. Paths of the machine are cut to their last part. JSON lines files at the top of the
folder are packed unchanged.

`unpack` makes the folders again. `opasd report FOLDER/SWEEP` reads them.
"""

import argparse
import json
import re
import tarfile
from pathlib import Path

from reading import count_text
from records import read_archive, write_archive

PACKED = {
    *("config.yaml", "environment.json", "metrics.jsonl", "samples.jsonl", "README.md"),
    *("settings.json", "evaluation.json", "probe.json"),
}
PARENT_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.-]+/)+(?=[\w.-]+)")


def pack(sweep: Path, *, counts: bool = False, unfinished: bool = False) -> dict[str, bytes]:
    """Return the files of a sweep that an archive keeps, by their paths in the sweep's folder."""
    files = {}
    for path in sorted(sweep.rglob("*")):
        inner = path.relative_to(sweep)
        if not path.is_file() or any(part.startswith(("checkpoint-", ".")) or part == "logs" for part in inner.parts):
            continue
        if inner.suffix == ".jsonl" and len(inner.parts) == 1:
            files[inner.name] = path.read_bytes()
            continue
        if path.name not in PACKED and inner.parts[0] != "state":
            continue
        cut_short = (path.parent / "settings.json").exists() and not (path.parent / "evaluation.json").exists()
        if cut_short and not unfinished:
            continue
        text = path.read_text(encoding="utf-8")
        if path.name == "samples.jsonl":
            text = strip_answers(text, counts and path.parent.name.endswith(".evaluation"))
        elif path.name == "README.md":
            text = PARENT_FOLDERS.sub("", text.split("\n## ")[0].rstrip() + "\n")
        elif path.suffix != ".jsonl":
            text = PARENT_FOLDERS.sub("", text)
        files[inner.as_posix()] = text.encode()
    return files


def strip_answers(text: str, counts: bool) -> str:
    """Return a samples file without tokens, seeds and the texts of further answers to a problem."""
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows:
        ids = row.pop("ids", None) or row.pop("completion_ids", None)
        if ids:
            row["tokens"] = len(ids)
        row.pop("seed", None)
        if row.get("sample"):
            row.pop("text", None)
    if counts:
        rows = [count_text(row, arithmetic=row.get("benchmark") == "arithmetic") for row in rows]
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def pack_into(archive: Path, name: str, files: dict[str, bytes]) -> None:
    """Write a sweep's files to an archive under a name, beside the other sweeps that it has."""
    others = read_archive(archive) if archive.exists() else {}
    others = {path: data for path, data in others.items() if not path.startswith(f"{name}/")}
    archive.parent.mkdir(parents=True, exist_ok=True)
    write_archive(archive, others | {f"{name}/{path}": data for path, data in files.items()})


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of an archive to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack a sweep's folder into an archive, or unpack an archive.")
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="add a sweep's folder to an archive")
    packing.add_argument("sweep", type=Path)
    packing.add_argument("archive", type=Path)
    packing.add_argument("--name", help="the sweep's name in the archive (default: its folder's name)")
    packing.add_argument("--counts", action="store_true", help="replace the texts of answers by their counts")
    packing.add_argument("--unfinished", action="store_true", help="also pack evaluations that were cut short")
    unpacking = commands.add_parser("unpack", help="write the files of an archive to a folder")
    unpacking.add_argument("archive", type=Path)
    unpacking.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "unpack":
        unpack(options.archive, options.folder)
        return
    files = pack(options.sweep, counts=options.counts, unfinished=options.unfinished)
    if not files:
        parser.error(f"{options.sweep} has nothing to pack; give the folder of a sweep")
    pack_into(options.archive, options.name or options.sweep.resolve().name, files)


if __name__ == "__main__":
    main()
