"""Sweeps for tests: from a text, and with folders as their runs leave them."""

import json
import statistics
from pathlib import Path

from opasd.errors import error_prefix
from opasd.recipes.reading import parse_yaml, write_yaml
from opasd.sweep.job import Job
from opasd.sweep.spec import Sweep, SweepFile, SweepRun, expand


def sweep(text: str) -> Sweep:
    """Return the sweep of a file that is called x.yaml."""
    with error_prefix("x.yaml"):
        return expand(SweepFile.model_validate(parse_yaml(text, "x.yaml")), Path())


def names(text: str) -> list[str]:
    return [run.name for run in sweep(text).runs]


def _estimate(mean: float, width: float = 0.0) -> dict[str, float]:
    return {"mean": mean, "low": mean - width, "high": mean + width}


def make_results(
    folder: Path, run: SweepRun, accuracies: dict[str, list[int]], *, samples: int = 1, budget: int = 160
) -> None:
    """Write a run's folders as training and evaluation do; `accuracies` has the right samples of each problem."""
    path = folder / run.name
    if not run.evaluate_only:
        (path / "final").mkdir(parents=True)
        (path / "final" / "README.md").write_text("")
        config = run.config.model_copy(update={"name": run.name, "output_dir": str(folder)})
        (path / "config.yaml").write_text(write_yaml(config.model_dump()))
        rows = [
            {"step": n, "grad_norm": 1.0, "rollout/accuracy": n / 20, "rollout/length_mean": 60.0} for n in range(1, 11)
        ]
        (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    evaluation = {"results": []}
    for name, correct in accuracies.items():
        mean = statistics.fmean(correct) / samples
        interval = _estimate(mean, 0.1)
        evaluation["results"].append(
            {"target": "t", "benchmark": name, "budget": budget, "samples": samples, "avg": interval}
            | {"pass": {str(samples): interval}, "maj": {}, "tokens": _estimate(50.0), "truncated": _estimate(0.0)}
            | {"per_problem": {f"p{n}": {"correct": c} for n, c in enumerate(correct)}}
        )
    job = Job(run, folder)
    job.evaluation.mkdir(parents=True)
    (job.evaluation / "evaluation.json").write_text(json.dumps(evaluation))
    job.record("evaluate", 0, 1.0, "")
