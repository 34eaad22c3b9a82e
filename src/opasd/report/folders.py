"""Run and evaluation folders as they are found: whole, half-written, damaged or still growing.

    run = read_run(Path("runs/first-try"))
    run.notes      # what is not there, or could not be read, in words

Nothing in a folder is trusted: a line that is no JSON object is counted and passed over, bytes that are no UTF-8 become
replacement characters, and a value of the wrong kind is a missing one.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from opasd.analysis.curves import Point, curve, number, validation_curves
from opasd.analysis.markers import MARKERS, Counted, count_markers
from opasd.analysis.spending import Spending, spending
from opasd.errors import ConfigError, OpasdError
from opasd.evaluation.comparability import Conditions
from opasd.recipes.reading import read_yaml
from opasd.report.files import MAX_NAMED, json_object, json_rows, left_out
from opasd.report.joining import joined
from opasd.report.viewer import is_record
from opasd.run.locks import in_use

State = Literal["finished", "running", "stopped", "evaluated"]
ROLLOUT = "training rollouts"
"""The set that the samples of training belong to."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion, of training or of an evaluation."""

    dataset: str
    step: int | None
    problem: str
    """Names the problem: samples with the same dataset, step, problem and number answer the same thing."""
    number: int
    question: str
    answer: str
    """The known one, where it is on record."""
    text: str
    tokens: int
    correct: bool | None
    truncated: bool
    found: str = ""
    """The answer that the grader read off the text, where it is on record."""
    markers: tuple[tuple[str, int], ...] | None = None
    """How often each marker stands in a text that is not on record itself, where that is."""

    @property
    def key(self) -> tuple[str, int | None, str, int]:
        return self.dataset, self.step if self.dataset == ROLLOUT else None, self.problem, self.number


Interval = tuple[float, float, float]
"""Mean, and the ends of its 95 % interval."""


@dataclass(frozen=True)
class Result:
    """What an evaluation found on one benchmark at one budget of tokens."""

    benchmark: str
    budget: int
    samples: int
    avg: Interval
    passed: dict[int, Interval]
    """Pass@k by k."""
    majority: dict[int, Interval]
    tokens: Interval
    truncated: Interval
    correct: dict[str, float]
    """The share of right samples, by problem."""


@dataclass
class Run:
    """What is known of one run or evaluated model."""

    name: str
    path: Path
    state: State = "stopped"
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    """Of training and of evaluations."""
    without_text: list[Sample] = field(default_factory=list)
    """Answers of which verdict and length alone are on record: counted, not shown."""
    results: list[Result] = field(default_factory=list)
    """Of evaluations."""
    evaluation: Path | None = None
    """The evaluation's folder, or else its copy without the ending; the first of several."""
    conditions: Conditions = field(default_factory=Conditions)
    """How it was evaluated, as far as that is on record."""
    others: list["Run"] = field(default_factory=list)
    """A run's own copies of evaluations that are not comparable with its results: rows of their own."""
    origin: str = ""
    """What an evaluated model is: its adapter's folder, or nothing for a base."""
    beside: Path | None = None
    """Where a sweep has the run that an evaluation's folder is named after."""
    attention: list[dict[str, Any]] = field(default_factory=list)
    """Records of the attention viewer."""
    notes: list[str] = field(default_factory=list)
    """What is missing or damaged."""

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The rows that training wrote."""
        return [row for row in self.rows if "grad_norm" in row]

    @cached_property
    def spending(self) -> Spending:
        return spending(self.steps)

    @cached_property
    def validation(self) -> dict[str, dict[str, list[Point]]]:
        return validation_curves(self.rows)

    @cached_property
    def answers(self) -> dict[str, list[Sample]]:
        """The samples of evaluations, by data set."""
        found: defaultdict[str, list[Sample]] = defaultdict(list)
        for sample in (*self.samples, *self.without_text):
            if sample.dataset != ROLLOUT:
                found[sample.dataset].append(sample)
        return dict(found)

    @cached_property
    def counted(self) -> dict[str, list[Counted]]:
        """The samples' markers, by data set."""
        found: defaultdict[str, list[Counted]] = defaultdict(list)
        for one in self.samples:
            found[one.dataset].append(Counted(count_markers(one.text), one.tokens, one.correct, one.step))
        for one in self.without_text:
            if one.markers is not None:
                found[one.dataset].append(Counted(dict(one.markers), one.tokens, one.correct, one.step))
        return dict(found)

    def curve(self, name: str) -> list[Point]:
        return curve(self.steps, name)

    def setting(self, *path: str) -> Any:
        """A value of the configuration; None where it is not known."""
        value: Any = self.config
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def method(self) -> str:
        """What was trained, in a word."""
        token = number(self.setting("objective", "token_weight"))
        attention = number(self.setting("objective", "attention_weight"))
        if token is None or attention is None:
            return ""
        return "OPSD" if attention == 0 else "attention only" if token == 0 else "OPASD"


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of all folders, each under a name of its own; a folder of run folders stands for them."""
    once: dict[Path, Path] = {}
    for path in paths:
        for one in _expand(path):
            once.setdefault(one.resolve(), one)
    found = list(once.values())
    trained = [read_run(path) for path in found if not _is_evaluation(path)]
    runs = [one for run in trained for one in (run, *run.others)]
    for path in found:
        if _is_evaluation(path):
            for answered in read_evaluation(path):
                _attach(runs, answered)
    _distinguish(runs)
    return runs


def read_run(path: Path) -> Run:
    """A run's folder, whatever is in it."""
    run = Run(_given(path).name or str(path), path)
    _read_config(run)
    run.environment = json_object(path / "environment.json", run.notes, "the environment is not known")
    run.rows = list(json_rows(path / "metrics.jsonl", run.notes, "there are no curves"))
    _note_odd_numbers(run)
    read = [_sample(row, ROLLOUT) for row in json_rows(path / "samples.jsonl", run.notes, "there are no samples")]
    run.samples = [sample for sample in read if sample is not None]
    if without := len(read) - len(run.samples):
        rows = left_out(without, "row without a completion", "rows without a completion")
        run.notes.append(f"samples.jsonl: {rows}")
    for record in sorted((path / "attention").glob("*.json")):
        if found := json_object(record, run.notes, "one attention record is left out"):
            if is_record(found):
                run.attention.append(found)
            else:
                run.notes.append(f"{record.name} is damaged or of another version: one attention record is left out")
    for copy in sorted((path / "evaluations").glob("*.json"), key=lambda copy: copy.stem):
        whole = json_object(copy, run.notes, "one evaluation is left out")
        targets = _targets(whole)
        # The copy is the run's own, wherever the run has been moved since, and under which name.
        runs = [name for name, about in targets.items() if about.get("run")]
        own = (
            [name for name in runs if same_folder(targets[name]["run"], path)]
            or [name for name in runs if str(targets[name]["run"]).rstrip("/").endswith(f"/{run.name}")]
            or (runs if len(runs) == 1 else [])
        )
        if whole and not own:
            which = f"which of {', '.join(runs)} is this run is not known" if runs else "it names no run"
            run.notes.append(f"evaluations/{copy.name}: {which}: one evaluation is left out")
        for target in own:
            conditions = Conditions.recorded(whole, targets[target])
            one = Run(run.name, path, "evaluated", evaluation=copy.with_suffix(""), conditions=conditions)
            one.origin = str(targets[target]["run"])
            one.results = _results(whole, target, run, copy.name)
            if not one.results:
                run.notes.append(f"evaluations/{copy.name} has no results of {target}")
            elif not joined([run, *run.others], one):
                run.others.append(one)
    _find_state(run)
    return run


def read_evaluation(path: Path) -> list[Run]:
    """The models of an evaluation's folder, each with its answers and what they came to."""
    whole = Run(_given(path).name or str(path), path, "evaluated")
    settings = json_object(path / "settings.json", whole.notes, "what was evaluated is known by name alone")
    evaluation = json_object(path / "evaluation.json", whole.notes, "the evaluation is not finished")
    models: dict[str, Run] = {}
    record = evaluation if _targets(evaluation) else settings
    for name, about in _targets(record).items():
        folder = Path(str(about["run"])) if about.get("run") else path
        models[name] = Run(name, folder, "evaluated", origin=str(about.get("run") or about.get("adapter") or ""))
        models[name].results = _results(evaluation, name, whole, "evaluation.json")
        models[name].evaluation, models[name].conditions = path, Conditions.recorded(record, about)
        models[name].beside = path.resolve().parent / path.resolve().stem
    asked = {
        (str(row.get("benchmark")), str(row.get("problem"))): row
        for row in json_rows(path / "problems.jsonl", whole.notes, "questions are shown by their names")
    }
    for row in json_rows(path / "samples.jsonl", whole.notes, "there are no answers"):
        name = str(row.get("target") or row.get("model") or whole.name)
        sample = _sample(row, str(row.get("benchmark") or "evaluation"), answer_is_known=False)
        if sample is not None:
            if known := asked.get((sample.dataset, sample.problem)):
                question, answer = known.get("question"), known.get("answer")
                sample = replace(sample, question=str(question or ""), answer="" if answer is None else str(answer))
            models.setdefault(name, Run(name, path, "evaluated")).samples.append(sample)
        elif isinstance(row.get("verdict"), str) and number(row.get("tokens")) is not None:
            graded = _sample(row | {"text": ""}, str(row.get("benchmark") or "evaluation"))
            if graded is not None:
                graded = replace(graded, markers=_markers(row.get("markers")))
                models.setdefault(name, Run(name, path, "evaluated")).without_text.append(graded)
    if count := sum(len(model.without_text) for model in models.values()):
        whole.notes.append(f"samples.jsonl: {count} answers are without their text: they are counted, and not shown")
    found = list(models.values()) or [whole]
    found[0].notes += [f"{whole.name}/{note}" for note in whole.notes]
    return found


def _expand(path: Path) -> list[Path]:
    if not path.is_dir():
        raise ConfigError(f"no folder {path}; give run folders, such as runs/NAME, or a folder of them")
    if _is_run(path) or _is_evaluation(path):
        return [path]
    children = (child for child in path.iterdir() if child.is_dir() and (_is_run(child) or _is_evaluation(child)))
    inner = sorted(children, key=lambda child: _by_numbers(child.name))
    if not inner:
        raise ConfigError(
            f"{path} holds no run: no config.yaml, metrics.jsonl or evaluation.json in it or one level below; give the "
            "folder that `opasd train` or `opasd evaluate` made"
        )
    return inner


def _by_numbers(name: str) -> list[tuple[float, str]]:
    """Sorts seed-42 before seed-123, and 0.25 before 0.5."""
    parts = re.split(r"([0-9]+(?:\.[0-9]+)?)", name)
    return [(float(part), "") if place % 2 else (-1.0, part) for place, part in enumerate(parts)]


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in ("config.yaml", "metrics.jsonl", "metrics.jsonl.gz"))


def _is_evaluation(path: Path) -> bool:
    names = ("evaluation.json", "evaluation.json.gz", "settings.json", "settings.json.gz")
    return not _is_run(path) and any((path / name).exists() for name in names)


def _attach(runs: list[Run], answered: Run) -> None:
    """An evaluation of a run that is shown too belongs to it; a base model comes first, for others to compare with."""
    same = [
        run
        for run in runs
        if same_folder(answered.origin, run.path)
        or (run.state == answered.state and (run.name, run.origin) == (answered.name, answered.origin))
    ]
    # A sweep's folder may have been moved: then NAME still lies beside NAME.evaluation.
    if not same and answered.beside and answered.beside.name == Path(answered.origin).name:
        same = [run for run in runs if run.path.resolve() == answered.beside]
    if joined(same, answered):
        return
    if same:
        runs.insert(runs.index(same[-1]) + 1, answered)
    else:
        runs.insert(len(runs) if answered.origin or (answered.samples and not answered.results) else 0, answered)


def _given(path: Path) -> Path:
    """The whole path, a link staying what it is called."""
    return Path(os.path.abspath(path))


def same_folder(origin: Any, path: Path) -> bool:
    """Whether a folder on record is this one; a relative one may be relative to where someone was then."""
    if not origin or not isinstance(origin, str):
        return False
    recorded, here = Path(origin), path.resolve()
    try:
        if recorded.expanduser().resolve() == here:
            return True
    except (OSError, ValueError, RuntimeError):
        return False
    parts = recorded.parts
    return not recorded.is_absolute() and ".." not in parts and here.parts[-len(parts) :] == parts


def _targets(evaluation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    targets = evaluation.get("targets")
    found = targets.items() if isinstance(targets, dict) else ()
    return {str(name): about if isinstance(about, dict) else {} for name, about in found}


def _results(evaluation: dict[str, Any], target: str, run: Run, file: str) -> list[Result]:
    """The target's results; one that is not whole is left out and noted."""
    rows = evaluation.get("results")
    found, damaged = [], 0
    for row in rows if isinstance(rows, list) else ():
        try:
            if row["target"] == target:
                found.append(
                    Result(
                        benchmark=str(row["benchmark"]),
                        budget=int(row["budget"]),
                        samples=int(row["samples"]),
                        avg=_interval(row["avg"]),
                        passed={int(k): _interval(value) for k, value in row["pass"].items()},
                        majority={int(k): _interval(value) for k, value in row["maj"].items()},
                        tokens=_interval(row["tokens"]),
                        truncated=_interval(row["truncated"]),
                        correct={
                            str(problem): float(one["correct"]) / int(row["samples"])
                            for problem, one in row["per_problem"].items()
                        },
                    )
                )
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError):
            damaged += 1
    if damaged:
        run.notes.append(f"{file}: {left_out(damaged, 'damaged result', 'damaged results')}")
    return found


def _interval(value: Any) -> Interval:
    mean, low, high = (number(value[name]) for name in ("mean", "low", "high"))
    if mean is None or low is None or high is None:
        raise ValueError("not a number")
    return mean, low, high


def _distinguish(runs: list[Run]) -> None:
    """Names that occur twice get their folder's parent in front, their evaluation behind, or else a number."""
    ways: list[Callable[[Run, int], str]] = [
        lambda run, _: f"{_given(run.path).parent.name}/{run.name}",
        lambda run, _: f"{run.name} ({_given(run.evaluation).name})" if run.evaluation else run.name,
        lambda run, _: f"{run.name} ({'/'.join(_given(run.evaluation).parts[-2:])})" if run.evaluation else run.name,
        lambda run, n: f"{run.name} ({n})",
    ]
    for rename in ways:
        groups: defaultdict[str, list[Run]] = defaultdict(list)
        for run in runs:
            groups[run.name].append(run)
        for group in groups.values():
            names = [rename(run, n) for n, run in enumerate(group, 1)]
            if len(set(names)) > 1:
                for run, name in zip(group, names, strict=True):
                    run.name = name


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
    asked = number(run.setting("train", "max_steps"))
    done = int(max((step for step, _ in run.curve("grad_norm")), default=0))
    of = f"step {done}" + (f" of {asked:.0f}" if asked else "")
    if (run.path / "final").is_dir():
        run.state = "finished"
    elif in_use(run.path):
        run.state = "running"
        run.notes.append(f"still running: {of} when this was made")
    else:
        run.notes.append(f"not finished: {of}, and no `final` folder")
    if run.state == "finished" and asked and run.rows and done < asked:
        run.notes.append(f"metrics.jsonl ends at {of}: the curves are not whole")


def _note_odd_numbers(run: Run) -> None:
    """Say which values are left out for being no number, such as the NaN of a run that went astray."""
    odd = [
        (name, number(row.get("step")))
        for row in run.rows
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and number(value) is None
    ]
    if odd:
        names = sorted({name for name, _ in odd})
        named = ", ".join(name[:60] for name in names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
        steps = [step for _, step in odd if step is not None]
        first = f", first at step {min(steps):.0f}" if steps else ""
        values = left_out(len(odd), "value that is no usable number", "values that are no usable numbers")
        run.notes.append(f"metrics.jsonl: {values} ({named}){first}")


def _sample(row: dict[str, Any], dataset: str, *, answer_is_known: bool = True) -> Sample | None:
    """A row of samples.jsonl; None where it holds no text. `answer` is the known one, or else what was read off."""
    text = _first(row, "completion", "text")
    if text is None:
        return None
    ids = _first(row, "completion_ids", "ids")
    tokens = len(ids) if isinstance(ids, list) else number(_first(row, "tokens", "num_tokens"))
    step = number(row.get("step"))
    correct = row.get("correct")
    if correct is None and isinstance(row.get("verdict"), str):
        correct = row["verdict"] == "correct"
    answer = str(row["answer"]) if row.get("answer") is not None else ""
    return Sample(
        dataset=dataset,
        step=None if step is None else int(step),
        problem=str(_first(row, "problem_id", "problem", "id") or row.get("question") or ""),
        number=int(number(row.get("sample")) or 0),
        question=str(row.get("question") or ""),
        answer=answer if answer_is_known else "",
        found="" if answer_is_known else answer,
        text=str(text),
        # Without token ids a word count stands in: densities stay of the right order.
        tokens=int(tokens) if tokens is not None else len(str(text).split()),
        correct=bool(correct) if isinstance(correct, bool | int | float) else None,
        truncated=row.get("finish_reason") == "length",
    )


def _markers(counts: Any) -> tuple[tuple[str, int], ...] | None:
    """Counts of markers as a record has them; None where it has none, or something else."""
    if not isinstance(counts, dict):
        return None
    return tuple((name, int(count)) for name in MARKERS if (count := number(counts.get(name))) is not None)


def _first(row: dict[str, Any], *names: str) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)
