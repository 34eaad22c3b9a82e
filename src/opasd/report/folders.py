"""Read run and evaluation folders, which may be whole, half-written, damaged or still growing.

    run = read_run(Path("runs/first-try"))
    run.notes      # names each file that is missing or damaged

Nothing in a folder is trusted. A line that is no JSON object is counted and skipped, bytes that are no UTF-8 become
replacement characters, and a value of the wrong type counts as missing.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opasd.analysis.curves import number
from opasd.analysis.markers import MARKERS
from opasd.errors import ConfigError, OpasdError
from opasd.evaluation.comparability import Conditions
from opasd.evaluation.folder import FILES
from opasd.evaluation.statistics import Estimate
from opasd.files import refuse_traps
from opasd.recipes.reading import read_yaml
from opasd.report.files import first_few, json_object, json_rows, left_out
from opasd.report.joining import attach, distinguish, join, same_folder, unresolved
from opasd.report.run import ROLLOUT, BenchmarkResult, RecordedSample, Run
from opasd.report.viewer import is_record
from opasd.run.locks import in_use


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs of all folders, each under a name of its own; a folder may hold run folders."""
    folders: dict[Path, Path] = {}
    for path in paths:
        for folder in _run_folders(path):
            folders.setdefault(folder.resolve(), folder)
    trained = [read_run(path) for path in folders.values() if not _is_evaluation(path)]
    runs = [row for run in trained for row in (run, *run.others)]
    for path in folders.values():
        if _is_evaluation(path):
            for model in read_evaluation(path):
                attach(runs, model)
    distinguish(runs)
    return runs


def read_run(path: Path) -> Run:
    """Read a run's folder, whatever is in it but links out of it and pipes."""
    refuse_traps(path)
    run = Run(unresolved(path).name or str(path), path)
    _read_config(run)
    run.environment = json_object(path / "environment.json", run.notes, "the environment is not known")
    run.rows = list(json_rows(path / "metrics.jsonl", run.notes, "there are no curves"))
    _note_unusable_numbers(run)
    samples = [_sample(row, ROLLOUT) for row in json_rows(path / "samples.jsonl", run.notes, "there are no samples")]
    run.samples = [sample for sample in samples if sample is not None]
    if missing := samples.count(None):
        rows = left_out(missing, "row without a completion", "rows without a completion")
        run.notes.append(f"samples.jsonl: {rows}")
    for file in sorted((path / "attention").glob("*.json")):
        record = json_object(file, run.notes, "one attention record is left out")
        if is_record(record):
            run.attention.append(record)
        elif record:
            run.notes.append(f"{file.name} is damaged or of another version: one attention record is left out")
    for copy in sorted((path / "evaluations").glob("*.json"), key=lambda copy: copy.stem):
        _read_copy(run, copy)
    _find_state(run)
    return run


def _read_copy(run: Run, copy: Path) -> None:
    """Add the results of a copied evaluation.json to the run or, if they are not comparable, to its other rows."""
    evaluation = json_object(copy, run.notes, "one evaluation is left out")
    targets = _targets(evaluation)
    # The run may have been moved or renamed after its evaluation.
    runs = [name for name, about in targets.items() if about.get("run")]
    own = (
        [name for name in runs if same_folder(targets[name]["run"], run.path)]
        or [name for name in runs if str(targets[name]["run"]).rstrip("/").endswith(f"/{run.name}")]
        or (runs if len(runs) == 1 else [])
    )
    if evaluation and not own:
        which = f"which of {', '.join(runs)} is this run is not known" if runs else "it names no run"
        run.notes.append(f"evaluations/{copy.name}: {which}: one evaluation is left out")
    for name in own:
        evaluated = Run(
            run.name,
            run.path,
            "evaluated",
            evaluation=copy.with_suffix(""),
            conditions=Conditions.recorded(evaluation, targets[name]),
            origin=str(targets[name]["run"]),
            results=_results(evaluation, name, run.notes, copy.name),
        )
        if not evaluated.results:
            run.notes.append(f"evaluations/{copy.name} has no results of {name}")
        elif not join([run, *run.others], evaluated):
            run.others.append(evaluated)


def read_evaluation(path: Path) -> list[Run]:
    """Read the models of an evaluation's folder, each with its answers and results."""
    refuse_traps(path, FILES)
    folder, notes = unresolved(path).name or str(path), []
    settings = json_object(path / "settings.json", notes, "what was evaluated is known by name alone")
    evaluation = json_object(path / "evaluation.json", notes, "the evaluation is not finished")
    record = evaluation if _targets(evaluation) else settings
    models = {
        name: Run(
            name,
            Path(str(about["run"])) if about.get("run") else path,
            "evaluated",
            origin=str(about.get("run") or about.get("adapter") or ""),
            results=_results(evaluation, name, notes, "evaluation.json"),
            evaluation=path,
            conditions=Conditions.recorded(record, about),
            beside=path.resolve().parent / path.resolve().stem,
        )
        for name, about in _targets(record).items()
    }
    problems = {
        (str(row.get("benchmark")), str(row.get("problem"))): row
        for row in json_rows(path / "problems.jsonl", notes, "questions are shown by their names")
    }
    for row in json_rows(path / "samples.jsonl", notes, "there are no answers"):
        name, dataset = str(row.get("target") or row.get("model") or folder), str(row.get("benchmark") or "evaluation")
        has_text = _first(row, "completion", "text") is not None
        if not has_text and isinstance(row.get("verdict"), str) and number(row.get("tokens")) is not None:
            row["text"] = ""
        if (sample := _sample(row, dataset)) is None:
            continue
        if problem := problems.get((sample.dataset, sample.problem)):
            sample = replace(sample, question=str(problem.get("question") or ""), answer=_text(problem.get("answer")))
        model = models.setdefault(name, Run(name, path, "evaluated"))
        (model.samples if has_text else model.without_text).append(sample)
    if count := sum(len(model.without_text) for model in models.values()):
        notes.append(f"samples.jsonl: {count} answers are without their text: they are counted, and not shown")
    runs = list(models.values()) or [Run(folder, path, "evaluated")]
    runs[0].notes += [f"{folder}/{note}" for note in notes]
    return runs


def _run_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise ConfigError(f"no folder {path}; give run folders, such as runs/NAME, or a folder of them")
    if _is_run(path) or _is_evaluation(path):
        return [path]
    children = (child for child in path.iterdir() if child.is_dir() and (_is_run(child) or _is_evaluation(child)))
    folders = sorted(children, key=lambda child: _by_numbers(child.name))
    if not folders:
        raise ConfigError(
            f"{path} holds no run: no config.yaml, metrics.jsonl or evaluation.json in it or one level below; give the "
            "folder that `opasd train` or `opasd evaluate` made"
        )
    return folders


def _by_numbers(name: str) -> list[tuple[float, str]]:
    """Return a key that sorts seed-42 before seed-123, and 0.25 before 0.5."""
    pieces = re.split(r"([0-9]+(?:\.[0-9]+)?)", name)
    return [(float(piece), "") if index % 2 else (-1.0, piece) for index, piece in enumerate(pieces)]


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in ("config.yaml", "metrics.jsonl", "metrics.jsonl.gz"))


def _is_evaluation(path: Path) -> bool:
    names = ("evaluation.json", "evaluation.json.gz", "settings.json", "settings.json.gz")
    return not _is_run(path) and any((path / name).exists() for name in names)


def _targets(evaluation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    targets = evaluation.get("targets")
    items = targets.items() if isinstance(targets, dict) else ()
    return {str(name): about if isinstance(about, dict) else {} for name, about in items}


def _results(evaluation: dict[str, Any], target: str, notes: list[str], file: str) -> list[BenchmarkResult]:
    """Return the target's results; note how many are damaged and left out."""
    rows = evaluation.get("results")
    results, damaged = [], 0
    for row in rows if isinstance(rows, list) else ():
        try:
            if row["target"] == target:
                results.append(read_result(row))
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError):
            damaged += 1
    if damaged:
        notes.append(f"{file}: {left_out(damaged, 'damaged result', 'damaged results')}")
    return results


def read_result(row: dict[str, Any]) -> BenchmarkResult:
    """Return one result of an evaluation.json; a damaged one is a KeyError, TypeError, ValueError or the like."""
    samples = int(row["samples"])
    return BenchmarkResult(
        benchmark=str(row["benchmark"]),
        budget=int(row["budget"]),
        samples=samples,
        avg=_estimate(row["avg"]),
        passed={int(k): _estimate(value) for k, value in row["pass"].items()},
        majority={int(k): _estimate(value) for k, value in row["maj"].items()},
        tokens=_estimate(row["tokens"]),
        truncated=_estimate(row["truncated"]),
        correct={str(problem): float(counts["correct"]) / samples for problem, counts in row["per_problem"].items()},
    )


def _estimate(value: Any) -> Estimate:
    mean, low, high = (number(value[name]) for name in Estimate._fields)
    if mean is None or low is None or high is None:
        raise ValueError("not a number")
    return Estimate(mean, low, high)


def _read_config(run: Run) -> None:
    path = run.path / "config.yaml"
    try:
        run.config = read_yaml(path) if path.exists() else {}
    except (OpasdError, OSError, RecursionError, ValueError) as error:
        run.notes.append(f"config.yaml cannot be read ({str(error).splitlines()[0][:200]}): settings are not known")
        return
    if not run.config:
        run.notes.append(f"config.yaml is {'empty' if path.exists() else 'missing'}: settings are not known")


def _find_state(run: Run) -> None:
    planned = number(run.setting("train", "max_steps"))
    done = int(max((step for step, _ in run.curve("grad_norm")), default=0))
    progress = f"step {done}" + (f" of {planned:.0f}" if planned else "")
    if (run.path / "final").is_dir():
        run.state = "finished"
        if planned and run.rows and done < planned:
            run.notes.append(f"metrics.jsonl ends at {progress}: the curves are not whole")
    elif in_use(run.path):
        run.state = "running"
        run.notes.append(f"still running: {progress} when this was made")
    else:
        run.notes.append(f"not finished: {progress}, and no `final` folder")


def _note_unusable_numbers(run: Run) -> None:
    """Note which values are left out for not being finite, such as the NaN of a run that diverged."""
    unusable = [
        (name, number(row.get("step")))
        for row in run.rows
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and number(value) is None
    ]
    if unusable:
        named = first_few([name[:60] for name in sorted({name for name, _ in unusable})])
        steps = [step for _, step in unusable if step is not None]
        first = f", first at step {min(steps):.0f}" if steps else ""
        values = left_out(len(unusable), "value that is no usable number", "values that are no usable numbers")
        run.notes.append(f"metrics.jsonl: {values} ({named}){first}")


def _sample(row: dict[str, Any], dataset: str) -> RecordedSample | None:
    """Return a row of samples.jsonl, or None if it has no text.

    Its `answer` is the known one in training, and the one that the grader read off the text in an evaluation."""
    text = _first(row, "completion", "text")
    if text is None:
        return None
    ids = _first(row, "completion_ids", "ids")
    tokens = len(ids) if isinstance(ids, list) else number(_first(row, "tokens", "num_tokens"))
    step = number(row.get("step"))
    correct = row.get("correct")
    if correct is None and isinstance(row.get("verdict"), str):
        correct = row["verdict"] == "correct"
    answer = _text(row.get("answer"))
    return RecordedSample(
        dataset=dataset,
        step=None if step is None else int(step),
        problem=str(_first(row, "problem_id", "problem", "id") or row.get("question") or ""),
        number=int(number(row.get("sample")) or 0),
        question=str(row.get("question") or ""),
        answer=answer if dataset == ROLLOUT else "",
        extracted="" if dataset == ROLLOUT else answer,
        text=str(text),
        # Without token ids, the number of words keeps densities of the right order.
        tokens=int(tokens) if tokens is not None else len(str(text).split()),
        correct=bool(correct) if isinstance(correct, bool | int | float) else None,
        truncated=row.get("finish_reason") == "length",
        markers=_markers(row.get("markers")),
    )


def _markers(counts: Any) -> dict[str, int] | None:
    """Return recorded counts of markers; None if there are none or they are something else."""
    if not isinstance(counts, dict):
        return None
    return {name: int(count) for name in MARKERS if (count := number(counts.get(name))) is not None}


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _first(row: dict[str, Any], *names: str) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)
