"""`opasd attend`: load a run or a model, take a trajectory, write its record and its page."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opasd.config import DataConfig, ModelConfig, RunConfig
from opasd.data.problems import Problem
from opasd.data.sets import load_set
from opasd.errors import ConfigError
from opasd.evaluation.benchmarks import packaged
from opasd.grading.verdict import is_correct
from opasd.lab import LAB
from opasd.model.checks import context
from opasd.model.loading import load_model, load_tokenizer
from opasd.model.scoring import Scorer
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.recipes import load_recipe
from opasd.report.attention import Stage, record
from opasd.report.page import GENERATOR, viewer_page
from opasd.report.text import slug
from opasd.report.viewer import is_record
from opasd.rollout.engine import derive_seed
from opasd.rollout.stops import stop_ids
from opasd.rollout.transformers.engine import TransformersEngine
from opasd.run.checkpoints import checkpoints
from opasd.run.folder import RunFolder

BEFORE, AFTER = "before", "after"
GIVEN, SAMPLED = "given", "sampled"


@dataclass(frozen=True)
class Subject:
    """What is looked at: a model before training and, for a run, after."""

    name: str
    config: RunConfig
    folder: Path | None
    """The run's, where there is one."""
    tokenizer: PreTrainedTokenizerBase
    before: PreTrainedModel | PeftModel
    after: PreTrainedModel | PeftModel | None
    without_adapters: Callable[[], AbstractContextManager[Any]] = nullcontext
    """While entered, `before` is the base."""


def attend(
    source: str,
    numbers: Sequence[int],
    *,
    data: str | None = None,
    completion: Path | None = None,
    sampler: Literal["after", "before"] = "after",
    layers: int | None = None,
    seed: int = 0,
    max_new_tokens: int | None = None,
    out: Path | None = None,
) -> Path:
    """Write the page, and the records beside it; gives the page's path."""
    given = _read_completion(completion)
    subject = load(source)
    target = out or _default_target(subject, numbers)
    _check_target(target)
    for number in numbers if subject.folder is not None else ():
        _check_record(target.parent / f"problem-{number}.json")
    chosen = _problems(subject, data, numbers)
    look = subject.config.objective.attention.model_copy(update={"layers": layers} if layers else {})
    stages = _stages(subject, look.layers)
    records = []
    for number, problem in zip(numbers, chosen, strict=True):
        rollout, origin = _trajectory(subject, problem, given, sampler, seed, max_new_tokens)
        text = str(subject.tokenizer.decode(list(rollout.completion_ids), skip_special_tokens=True))
        about = {
            "title": f"{subject.name}, problem {number}",
            "model": subject.config.model.name_or_path,
            "trajectory": f"sampled {sampler} training" if origin == SAMPLED and subject.after else origin,
            "correct": None if problem.answer is None else is_correct(text, problem.answer),
            "teacher_note": _teacher_note(subject),
        }
        teacher = _teacher(subject, stages)
        records.append(record(rollout, stages, teacher, subject.tokenizer, look, about=about))
    _write(target, subject, numbers, records)
    return target


def _default_target(subject: Subject, numbers: Sequence[int]) -> Path:
    """A page among a run's records; a model's in the current folder."""
    name = "-".join(map(str, numbers[:6]))
    if subject.folder is not None:
        return subject.folder / "attention" / f"problem-{name}.html"
    return Path(f"attention-{slug(subject.name)}-{name}.html")


def load(source: str) -> Subject:
    """A run by its folder; else a model by its name."""
    path = Path(source).expanduser()
    if (path / "config.yaml").is_file():
        return _load_run(RunFolder.open(path))
    if path.is_dir() and not (path / "config.json").is_file():
        raise ConfigError(f"{source} is neither a run (no config.yaml) nor a model (no config.json); give one of them")
    config = load_recipe(LAB).config() if source == LAB else RunConfig(model=ModelConfig(name_or_path=source))
    return Subject(
        source if source == LAB else path.name,
        config,
        None,
        load_tokenizer(config.model),
        _ready(load_model(config.model)),
        None,
    )


def _load_run(run: RunFolder) -> Subject:
    trained = next((path for path in (run.path / "final", *reversed(checkpoints(run.path))) if path.is_dir()), None)
    if trained is None:
        raise ConfigError(f"{run.path} has neither a final model nor a checkpoint yet; wait for its first checkpoint")
    config, tokenizer = run.config, load_tokenizer(run.config.model)
    base = load_model(config.model)
    if not (trained / "adapter_config.json").is_file():
        after = _ready(load_model(config.model.model_copy(update={"name_or_path": str(trained)})))
        return Subject(run.path.resolve().name, config, run.path, tokenizer, _ready(base), after)
    try:
        adapted = _ready(PeftModel.from_pretrained(base, str(trained)))
    except SafetensorError as error:
        raise ConfigError(f"the adapter in {trained} is damaged ({error}); give a whole one") from error
    assert isinstance(adapted, PeftModel)
    return Subject(run.path.resolve().name, config, run.path, tokenizer, adapted, adapted, adapted.disable_adapter)


def _ready(model: Any) -> Any:
    if getattr(model, "is_quantized", False):  # it is where it is
        return model.eval()
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _stages(subject: Subject, depth: int) -> list[Stage]:
    before = Scorer(subject.before, depth)
    stages = [Stage(BEFORE if subject.after is not None else "as it is", before, subject.without_adapters)]
    if subject.after is not None:
        stages.append(Stage(AFTER, before if subject.after is subject.before else Scorer(subject.after, depth)))
    return stages


def _teacher(subject: Subject, stages: Sequence[Stage]) -> Stage:
    return stages[-1] if subject.config.teacher.update == "live" else stages[0]


def _teacher_note(subject: Subject) -> str:
    update = subject.config.teacher.update
    if subject.after is None or update == "frozen":
        return "the initial weights, with the solution in view"
    if update == "live":
        return "the trained weights, with the solution in view"
    return f"the initial weights, with the solution in view; in training it was updated ({update})"


def _trajectory(
    subject: Subject, problem: Problem, given: str | None, sampler: str, seed: int, max_new_tokens: int | None
) -> tuple[Rollout, str]:
    pair = PromptBuilder(subject.tokenizer, subject.config.prompts).pair(problem)
    most = context(subject.before.config)
    room = most - max(len(pair.student_ids), len(pair.teacher_ids))
    if room < 1:
        raise ConfigError(
            f"the problem has {most - room} tokens with its solution, and the model's context is {most}; give another "
            "--problem"
        )
    if given is not None:
        ids = tuple(subject.tokenizer(given, add_special_tokens=False, verbose=False)["input_ids"])  # pyright: ignore[reportArgumentType]
        if not ids:
            raise ConfigError("--completion: the file holds no text")
        if len(ids) > room:
            raise ConfigError(
                f"--completion: the text has {len(ids)} tokens, of which at most {room} fit the model's context of "
                f"{most} beside the problem and its solution; give a shorter one"
            )
        return Rollout(pair, ids, problem.id), GIVEN
    model, entered = subject.before, subject.without_adapters
    if sampler == AFTER and subject.after is not None:
        model, entered = subject.after, nullcontext
    longest = min(max_new_tokens or subject.config.rollout.max_new_tokens, room)
    sampling = subject.config.rollout.model_copy(update={"max_new_tokens": longest})
    engine = TransformersEngine(model, stop_ids(model, subject.tokenizer))
    with entered():
        found = engine.generate([pair.student_ids], sampling, [derive_seed(seed, problem.id or problem.question, 0)])[0]
    return Rollout(pair, found.ids, problem.id), SAMPLED


def _problems(subject: Subject, data: str | None, numbers: Sequence[int]) -> list[Problem]:
    """The asked-for problems; of the lab those that no run has trained on."""
    config = DataConfig(source=data) if data else subject.config.data
    if config.source == LAB:
        config = DataConfig(source=LAB, sample=min(max(numbers), packaged()[LAB].problems or 0), seed=0)
    found = load_set(config, "test")
    if max(numbers) > len(found):
        raise ConfigError(f"--problem {max(numbers)}: {config.source} has {len(found)} problems")
    return [found[number - 1] for number in numbers]


def _read_completion(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--completion {path}: cannot be read as UTF-8 text ({error})") from error


def _check_target(target: Path) -> None:
    """A page is replaced by a newer one of its kind, and nothing else is."""
    if target.is_dir():
        raise ConfigError(f"{target} is a folder; give the page's file name as --output")
    if target.exists():
        with target.open("rb") as file:
            if f'content="{GENERATOR}"'.encode() not in file.read(4000):
                raise ConfigError(
                    f"{target} exists and is no page of ours, and is not overwritten; give another --output"
                )


def _check_record(file: Path) -> None:
    """So are the records beside it."""
    try:
        ours = not file.exists() or is_record(json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError):
        ours = False
    if not ours:
        raise ConfigError(f"{file} exists and is no record of ours, and is not overwritten; give another --output")


def _write(target: Path, subject: Subject, numbers: Sequence[int], records: Sequence[dict[str, Any]]) -> None:
    about = f"{subject.config.model.name_or_path} · the last layers' attention, averaged over heads"
    page = viewer_page(f"Where {subject.name} looks", about, records)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.html(), encoding="utf-8", errors="replace")
        if subject.folder is not None:
            for number, found in zip(numbers, records, strict=True):
                file = target.parent / f"problem-{number}.json"
                file.write_text(json.dumps(found), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}; give another --output") from error
