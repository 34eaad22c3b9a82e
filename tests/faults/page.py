"""docs/reliability.md: what the long suite did and what a run promises."""

from collections.abc import Iterable


def page(lines_of_results: Iterable[str]) -> str:
    """Return the page with a line for each fault."""
    lines = [
        "# Reliability",
        "",
        "`make test-faults` does each of these faults to real runs and writes this page. A short form is part of",
        "`make test`. All of it ran on a CPU with a model of two layers, or with the embedded one where that is said.",
        "",
        "| fault | times tried | promise | what happened |",
        "|---|---|---|---|",
        *lines_of_results,
    ]
    return "\n".join([*lines, "", GUARANTEES.strip(), ""])


GUARANTEES = """
## What a run promises

- **Checkpoints and `final` are whole.** Each is written in a hidden folder, with `manifest.json` (sizes and SHA-256
  digests) as its last file, synced to the disk, and renamed. A digest costs about a second for each gigabyte and
  core, when it is written and when a run resumes. Folders of older versions have no manifest and stay usable.
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
- **One rollout too long does not end a run.** Out of memory, micro-batches shrink; a rollout that does not fit alone
  is left out, kept in `set_aside.jsonl` and counted (`rollout/set_aside`). With several processes the error ends the
  run.
"""
