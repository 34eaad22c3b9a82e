"""Look into the local data of a configuration as a run will: columns, bad rows, lengths. No torch.

Lengths are in tokens where the model's tokenizer.json is on this machine, else in characters.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opasd.config import RunConfig
from opasd.config.method import shown_fields
from opasd.data.made import TASKS
from opasd.data.problems import Problem
from opasd.data.sets import RunSet, load_set
from opasd.errors import OpasdError, error_prefix
from opasd.lab import LAB, model_path
from opasd.plan.memory import Lengths
from opasd.plan.models import hub_cache

_MEASURED = 400
"""Problems whose tokens are counted for a mean."""
_LONGEST = 20
"""Problems with the most characters whose tokens are counted for the longest."""

Count = Callable[[str], int]


@dataclass(frozen=True)
class Length:
    """Lengths of a text over the problems of a set."""

    mean: float
    longest: int


@dataclass(frozen=True)
class Look:
    """What a set of problems holds."""

    rows: int
    problems: int
    bad: int
    faults: tuple[str, ...]
    left_out: dict[str, int]
    answers: int
    """Problems with an answer."""
    unit: str
    """`tokens` or `characters`."""
    question: Length
    solution: Length

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def look(config: RunConfig) -> tuple[dict[str, Look], list[str], list[str]]:
    """Return what the local sets hold, by their key in the configuration, and the errors and warnings of a run."""
    found: dict[str, Look] = {}
    errors: list[str] = []
    warnings: list[str] = []
    count = counter(config)
    sets = {"data": config.data} | {f"validation_data.{name}": data for name, data in config.validation_data.items()}
    for key, data in sets.items():
        if data.source in TASKS or not Path(data.source).expanduser().exists():
            continue
        try:
            with error_prefix(key):
                problems = load_set(data, "train" if key == "data" else "validation")
        except OpasdError as error:
            errors.append(str(error) if str(error).startswith(key) else f"{key}: {error}")
            continue
        found[key] = measured(problems, count)
        troubles = errors if data.on_bad_row == "stop" else warnings
        troubles += [f"{key}: {text}" for text in _unusable(config, problems, count, training=key == "data")]
        warnings += [f"{key}: {text}" for text in _worth_knowing(config, found[key])]
    return found, errors, warnings


def counter(config: RunConfig) -> Count | None:
    """Return how to count a text's tokens; None if the model's tokenizer.json is not here."""
    name = config.model.name_or_path
    folder = Path(model_path()) if name == LAB else Path(name).expanduser()
    files = [folder / "tokenizer.json"]
    if not folder.is_dir():
        files = sorted(hub_cache("models", name).glob(f"snapshots/{config.model.revision or '*'}/tokenizer.json"))
    if not files or not files[-1].is_file():
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(files[-1]))
    except Exception:  # tokenizers raises bare Exceptions; the run names a broken file
        return None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def measured(problems: RunSet, count: Count | None) -> Look:
    """Return the counts of a set and the lengths of its texts."""
    report = problems.report
    step = -(-len(problems) // _MEASURED)

    def length(text: Callable[[Problem], str]) -> Length:
        texts = [text(problem) for problem in problems[::step]]
        mean = sum(map(count or len, texts)) / max(1, len(texts))
        return Length(round(mean, 1), max(map(count or len, _longest(problems, text)), default=0))

    return Look(
        rows=report.rows,
        problems=len(problems),
        bad=report.bad,
        faults=tuple(map(str, report.faults[:5])),
        left_out=dict(report.left_out),
        answers=sum(problem.answer is not None for problem in problems),
        unit="tokens" if count else "characters",
        question=length(lambda problem: problem.question),
        solution=length(lambda problem: problem.solution),
    )


def mean_lengths(config: RunConfig, found: Look | None) -> Lengths | None:
    """Return the mean lengths of a step's contexts, for a plan; None if the tokens are not known."""
    count = counter(config) if found is not None and found.unit == "tokens" else None
    if found is None or count is None:
        return None
    prompts = config.prompts
    wording = count(prompts.student + prompts.instruction)
    solution = round(found.solution.mean) + count(prompts.reference)
    return Lengths.of(config, round(found.question.mean) + wording, solution)


def _longest(problems: Sequence[Problem], text: Callable[[Problem], str]) -> list[str]:
    return sorted((text(problem) for problem in problems), key=len)[-_LONGEST:]


def _unusable(config: RunConfig, problems: RunSet, count: Count | None, *, training: bool) -> list[str]:
    """Say which problems a run could not use: those too long even without the wording, or without a needed answer."""
    texts, limit = [], config.prompts.max_student_tokens
    longest = sorted(problems, key=lambda problem: len(problem.question))[-_LONGEST:] if count else []
    too_long = [problem.id for problem in longest if count and count(problem.question) > limit]
    if too_long:
        texts.append(
            f"{', '.join(too_long[-3:])}: the question alone has more than prompts.max_student_tokens = {limit} "
            "tokens; raise it, set max_question_chars, or set on_bad_row: skip"
        )
    shows = [(key, name) for key, text in config.prompts.references().items() for name in sorted(shown_fields(text))]
    for key, name in shows if training else ():
        missing = [problem.id for problem in problems if getattr(problem, name) is None]
        if missing:
            texts.append(
                f"{len(missing)} problems have no {name}, such as {missing[0]}, but prompts.{key} shows "
                f"{{{name}}}; name the column in columns.{name}, or set on_bad_row: skip"
            )
    return texts


def _worth_knowing(config: RunConfig, found: Look) -> list[str]:
    texts = []
    if found.bad:
        texts.append(f"{found.bad} of {found.rows} rows are bad and will be skipped, such as {found.faults[0]}")
    room = config.prompts.max_teacher_tokens - config.prompts.max_student_tokens
    if found.unit == "tokens" and found.solution.longest > room > 0:
        texts.append(
            f"the longest solution has {found.solution.longest:,} tokens, and prompts.max_teacher_tokens leaves it "
            f"about {room:,}; prompts.cut_solution: {config.prompts.cut_solution} says what happens then"
        )
    return texts
