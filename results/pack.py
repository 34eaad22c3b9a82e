"""A sweep's folder as it is kept here: python results/pack.py SWEEP TARGET [--unfinished] [--counts]

Records are compressed; weights, logs, tables and all but the head of a card are left out. Of several answers to a
problem the first keeps its text, or with --counts what reading.py reads in it; all keep verdict and length. Folders of
the machine that it ran on are cut to their last part. Evaluations that were not finished are left out unless asked for.
"""

import gzip
import json
import re
import sys
from pathlib import Path

from reading import counted

KEPT = {"config.yaml", "environment.json", "settings.json", "README.md"}
RECORDS = {"metrics.jsonl", "samples.jsonl", "evaluation.json"}
FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.-]+/)+(?=[\w.-]+)")


def answers(text: str, counts: bool) -> str:
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows:
        ids = row.pop("ids", None) or row.pop("completion_ids", None)
        if ids:
            row["tokens"] = len(ids)
        row.pop("seed", None)
        if row.get("sample"):
            row.pop("text", None)
    rows = [counted(row, row.get("benchmark") == "arithmetic") for row in rows] if counts else rows
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    unfinished = {path.parent for path in source.glob("*/settings.json")} - {
        path.parent for path in source.glob("*/evaluation.json")
    }
    if "--unfinished" in sys.argv:
        unfinished = set()
    for path in sorted(source.rglob("*")):
        inner = path.relative_to(source)
        if path.parent in unfinished or not path.is_file():
            continue
        if any(part.startswith(("checkpoint-", ".")) or part == "logs" for part in inner.parts):
            continue
        records = path.name in RECORDS
        if not records and path.name not in KEPT and "state" not in inner.parts:
            continue
        text = path.read_text(encoding="utf-8")
        if path.name == "samples.jsonl":
            text = answers(text, "--counts" in sys.argv and path.parent.name.endswith(".evaluation"))
        elif path.name == "README.md":
            text = FOLDERS.sub("", text.split("\n## ")[0].rstrip() + "\n")
        elif path.suffix != ".jsonl":
            text = FOLDERS.sub("", text)
        to = target / inner
        to.parent.mkdir(parents=True, exist_ok=True)
        if records:
            to = to.with_name(to.name + ".gz")
            to.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        else:
            to.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
