"""docs/reliability.md: what the long suite did and what a run promises."""

from collections.abc import Iterable
from typing import Any

from tests.faults.common import Result


def results_of(record: dict[str, Any]) -> list[Result]:
    """Return the results that a part of the suite has left."""
    return [Result(**values) for values in record.get("results", [])]


def page(records: Iterable[dict[str, Any]]) -> str:
    """Return the page: a line for each fault, whoever tried it, and what a run promises."""
    records = list(records)
    faults: dict[str, Result] = {}
    for result in (result for record in records for result in results_of(record)):
        if result.fault in faults:
            faults[result.fault].add(result)
        else:
            faults[result.fault] = result
    minutes = sum(record["seconds"] for record in records) / 60
    lines = [
        "# Reliability",
        "",
        "`make test-faults` does each of these faults to real runs and writes this page. A short form is part of",
        "`make test`. All of it ran on a CPU with a model of two layers, or with the embedded one where that is said.",
        f"Its parts took {minutes:.0f} minutes in all; `JOBS=16` runs as many at a time.",
        "",
        "| fault | times tried | promise | what happened |",
        "|---|---|---|---|",
        *(result.line() for result in faults.values()),
    ]
    return "\n".join([*lines, "", GUARANTEES.strip(), ""])


GUARANTEES = """
## What a run promises

- **Checkpoints and `final` are whole.** Each is written in a hidden folder, with `manifest.json` (sizes and SHA-256
  digests) as its last file, synced to the disk, and renamed. A digest costs about a second for each gigabyte and
  core, when it is written and when a run resumes. Runs of older versions have no manifests and stay
  usable; resuming says so. In a run of this version a checkpoint without one is damaged, unless it is given by its
  own path in Python (`resume_from_checkpoint`).
- **The newest whole checkpoint is used.** A damaged one is named, passed over and set aside (`aside-checkpoint-N`).
  If none is whole, the run is refused and nothing is changed. `evaluate`, `merge` and `attend` choose in the same way
  between `final` and the checkpoints.
- **Metrics come back.** Rows that `metrics.jsonl` lost are taken from the checkpoint. Samples do not; the run says
  so.
- **A stop saves.** SIGTERM, SIGINT and SIGHUP give up rollouts between two tokens, save and end with code 75. A step
  that is in its update is finished first. A second SIGINT, or a second SIGTERM a second later, ends at once. A closed
  terminal and the end of a pipe's reader (`| head`) count as a request to stop.
- **Several processes end together.** If one is killed, the launcher ends the others within 35 s (30 s of grace) and
  prints which one it was and how to resume. If the command itself is killed, its processes get SIGTERM from the
  kernel, save and end.
- **A long run stays flat.** Memory grows by the metrics of each step, about 3 KB, or 0.3 MiB in 100 steps. Trainer
  holds them, and each checkpoint has them in `trainer_state.json`, 2 KB a step: 20 MB after 10,000 steps. Nothing else
  grows: with these rows thrown away, what was allocated after 400 steps equals that after 150 within 2 KB.
- **One rollout too long does not end a run.** Out of memory, micro-batches shrink; a rollout that does not fit alone
  is left out, kept in `set_aside.jsonl` and counted (`rollout/set_aside`). With several processes the error ends the
  run.
"""
