"""Grade an evaluation's kept samples anew, and list the verdicts that changed.

Nothing is drawn, and no model but a judge is loaded. The new results are written beside the old ones; --write puts them
in place.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opasd import plugins
from opasd.cli._parser import Parser

if TYPE_CHECKING:
    from opasd.evaluation.regrading import Change
    from opasd.evaluation.samples import Sample

_SHOWN = 20
"""Changed verdicts that are printed; the file has all."""


def parser() -> Parser:
    """Return the command's parser."""
    command = Parser("regrade", __doc__, usage="opasd regrade FOLDER [options]")
    command.add_argument("folder", metavar="FOLDER", type=Path, help="Folder of an evaluation, with its samples.jsonl.")
    command.add_argument("--write", action="store_true", help="Put the new verdicts and results in place of the old.")
    command.add_argument(
        "--judge", metavar="URL|MODEL", help="Ask this model about answers that no rule can settle; see opasd evaluate."
    )
    command.add_argument(
        "--plugins", metavar="A,B", default="", help="Modules to import first; a folder's own grader is in one of them."
    )
    command.add_argument("--json", action="store_true", help="Print the changes as one JSON object.")
    return command


def run(args: list[str]) -> int:
    """Run the command."""
    options = parser().parse_args(args)
    plugins.load_installed()
    plugins.load([name for name in options.plugins.split(",") if name])
    from opasd.config import RolloutConfig
    from opasd.evaluation import folder as folders
    from opasd.evaluation import judging, regrading
    from opasd.evaluation.comparability import GRADING
    from opasd.evaluation.samples import SampleFile
    from opasd.files import write_json
    from opasd.grading.versions import in_words, versions
    from opasd.run.locks import hold

    path = options.folder
    settings = folders.read_settings(path)
    before, now = settings.get(GRADING), versions(settings.get("grader", ""))
    written = folders.RESULTS if options.write else regrading.BESIDE
    listed = regrading.CHANGES if options.write else regrading.CHANGES_BESIDE
    with hold(path, "evaluation"):
        samples = SampleFile(path / folders.SAMPLES)
        kept = list(samples)
        changes = regrading.regraded(path, settings, kept)
        regraded = _with(changes, kept)
        results = _results(path, settings | {GRADING: now}, regraded)
        if options.judge:
            judge = judging.open_judge(options.judge, RolloutConfig())
            results["judge"] = judging.judged(path, judge, regraded, settings)
        if options.write:
            regrading.write_changes(path / listed, changes, before, now)
            regrading.apply(samples, changes)
            write_json(path / folders.SETTINGS, settings | {GRADING: now})
            folders.write_results(path, results)
            for beside in (regrading.BESIDE, regrading.CHANGES_BESIDE):
                (path / beside).unlink(missing_ok=True)
        else:
            write_json(path / regrading.BESIDE, results)
            (path / listed).unlink(missing_ok=True)
            regrading.write_changes(path / listed, changes, before, now)
    rows = [row for change in changes for row in change.rows()]
    if options.json:
        about = {"samples": len(kept), "changed": rows, "old_grading": before, GRADING: now, "written": options.write}
        sys.stdout.write(json.dumps(about, ensure_ascii=False) + "\n")
        return 0
    sys.stdout.write(f"before: {in_words(before)}\nnow:    {in_words(now)}\n")
    sys.stdout.write(f"\n{_changes(rows)}\n" if rows else "")
    sys.stdout.write(f"{len(changes)} of {len(kept)} samples changed")
    sys.stdout.write(f": {path / listed}\n" if rows else "\n")
    if options.judge:
        sys.stdout.write(judging.in_words(results["judge"]))
    sys.stdout.write(f"{path / written}\n")
    if not options.write:
        sys.stdout.write(f"{path / folders.RESULTS} and the samples are as they were; --write replaces them\n")
    return 0


def _with(changes: "list[Change]", kept: "list[Sample]") -> "list[Sample]":
    new = {change.new.key: change.new for change in changes}
    return [new.get(sample.key, sample) for sample in kept]


def _results(path: Path, settings: dict[str, Any], samples: "list[Sample]") -> dict[str, Any]:
    """Return evaluation.json as it is with the new verdicts."""
    from opasd.evaluation import folder as folders
    from opasd.evaluation.loop import results_of
    from opasd.evaluation.profiles import Profile
    from opasd.files import JsonLines, read_object
    from opasd.recipes.checking import checked

    problems: dict[str, list[str]] = {}
    for row in JsonLines(path / folders.PROBLEMS):
        problems.setdefault(row.get("benchmark", ""), []).append(row.get("problem", ""))
    profile = checked(Profile, settings["profile"], str(path / folders.SETTINGS), "profile.")
    ordered = {name: ids for name, ids in problems.items() if name in settings["benchmarks"]}
    results = results_of(profile, path.name, settings, samples, ordered)
    return read_object(path / folders.RESULTS) | results


def _changes(rows: list[dict[str, Any]]) -> str:
    counts = Counter((row["old_verdict"], row["verdict"]) for row in rows)
    lines = [f"{old} → {new}: {count}" for (old, new), count in counts.most_common()]
    for row in rows[:_SHOWN]:
        budget = f" at {row['budget']} tokens" if row["budget"] else ""
        answer = row["answer"] if row["answer"] == row["old_answer"] else f"{row['old_answer']} → {row['answer']}"
        lines.append(
            f"  {row['target']} {row['problem']} #{row['sample']}{budget}: {row['old_verdict']} → {row['verdict']}   "
            f"known {row['gold']!r:.60}, answer {answer!r:.80}"
        )
    lines += [f"  … {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return "".join(f"{line}\n" for line in lines)
