"""`opasd attend`: load a run or a model, take a trajectory, and write its record and its page."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opasd.choices import Layers
from opasd.config import AttentionLossConfig, DataConfig, ModelConfig, RunConfig
from opasd.data.problems import Problem
from opasd.data.sets import load_set
from opasd.errors import ConfigError
from opasd.evaluation.benchmarks import packaged
from opasd.files import read_object, write_text
from opasd.grading.verdict import is_correct
from opasd.lab import LAB
from opasd.model.checks import context
from opasd.model.loading import load_model, load_tokenizer
from opasd.model.scoring import Scorer
from opasd.prompts.contexts import PromptPair
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.recipes import load_recipe
from opasd.recipes.checking import checked
from opasd.report.attention import Stage, make_record
from opasd.report.page import GENERATOR, viewer_page
from opasd.report.picture import both, contexts, projection
from opasd.report.text import slug
from opasd.report.viewer import is_record
from opasd.rollout.engine import derive_seed
from opasd.rollout.stops import stop_ids
from opasd.rollout.transformers.engine import TransformersEngine
from opasd.run.folder import RunFolder
from opasd.run.manifest import newest_result

MOST_BYTES = 16 * 2**20
"""Largest file of a given answer."""


@dataclass(frozen=True)
class Subject:
    """The model whose attention is shown: before training and, for a run, after it."""

    name: str
    config: RunConfig
    folder: Path | None
    """The run's folder; None for a model."""
    tokenizer: PreTrainedTokenizerBase
    before: PreTrainedModel | PeftModel
    after: PreTrainedModel | PeftModel | None
    without_adapters: Callable[[], AbstractContextManager[Any]] = nullcontext
    """While this is entered, `before` is the base model."""


def attend(
    source: str,
    numbers: Sequence[int],
    *,
    data: str | None = None,
    completion: Path | None = None,
    sampler: Literal["after", "before"] = "after",
    layers: Layers | None = None,
    seed: int = 0,
    max_new_tokens: int | None = None,
    heads: bool | None = None,
    out: Path | None = None,
    figures: Path | None = None,
    trust_remote_code: bool = False,
) -> Path:
    """Write the page, and a run's records beside it, and return the page's path."""
    text = _read_completion(completion)
    subject = load(source, trust_remote_code=trust_remote_code)
    target, record_files = _targets(subject, numbers, out)
    problems = _problems(subject, data, numbers)
    config = subject.config.objective.attention
    if layers is not None:
        config = checked(AttentionLossConfig, config.model_dump() | {"layers": layers}, "opasd attend", "--")
    stages = _stages(subject, config.layers)
    teacher = stages[-1] if subject.config.teacher.update == "live" else stages[0]
    sampled = "sampled" if subject.after is None else f"sampled {sampler} training"
    records = []
    for number, problem in zip(numbers, problems, strict=True):
        rollout = _trajectory(subject, problem, text, sampler, seed, max_new_tokens)
        answer = str(subject.tokenizer.decode(list(rollout.completion_ids), skip_special_tokens=True))
        about = {
            "title": f"{subject.name}, problem {number}",
            "run": subject.name,
            "number": number,
            "model": subject.config.model.name_or_path,
            "trajectory": sampled if text is None else "given",
            "correct": None if problem.answer is None else is_correct(answer, problem.answer),
            "teacher_note": _teacher_note(subject),
        }
        records.append(
            make_record(rollout.for_attention, stages, teacher, subject.tokenizer, config, about=about, heads=heads)
        )
    about = f"{subject.config.model.name_or_path} · attention by layer and head"
    page = viewer_page(f"Where {subject.name} looks", about, records)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, page.html(), errors="replace")
        for file, record in zip(record_files, records, strict=False):
            write_text(file, json.dumps(record))
        if figures:
            figures.mkdir(parents=True, exist_ok=True)
            write_text(figures / "method.svg", both(records[0]))
            write_text(figures / "contexts.svg", contexts(records[0]))
            write_text(figures / "projection.svg", projection(records[0]))
    except OSError as error:
        other = "--output or --figures" if figures else "--output"
        raise ConfigError(f"cannot write {error.filename or target}: {error.strerror}; give another {other}") from error
    return target


def load(source: str, *, trust_remote_code: bool = False) -> Subject:
    """Load a run by its folder or a model by its folder or name."""
    path = Path(os.path.expanduser(source))
    trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if (path / "config.yaml").is_file():
        run = RunFolder.open(path)
        config = run.config.model_copy(update={"model": run.config.model.model_copy(update=trust)})
        return _load_run(RunFolder(path, config))
    if path.is_dir() and not (path / "config.json").is_file():
        raise ConfigError(f"{source} is neither a run (no config.yaml) nor a model (no config.json); give one of them")
    named = ModelConfig(name_or_path=source, trust_remote_code=trust_remote_code)
    config = load_recipe(LAB).config() if source == LAB else RunConfig(model=named)
    model = _ready(load_model(config.model))
    return Subject(source if source == LAB else path.name, config, None, load_tokenizer(config.model), model, None)


def _load_run(run: RunFolder) -> Subject:
    trained = newest_result(run.path)
    if trained is None:
        raise ConfigError(f"{run.path} has neither a final model nor a checkpoint yet; wait for its first checkpoint")
    config, tokenizer, name = run.config, load_tokenizer(run.config.model), run.path.resolve().name
    base = load_model(config.model)
    if not (trained / "adapter_config.json").is_file():
        after = _ready(load_model(config.model.model_copy(update={"name_or_path": str(trained)})))
        return Subject(name, config, run.path, tokenizer, _ready(base), after)
    try:
        adapted = _ready(PeftModel.from_pretrained(base, str(trained)))
    except (SafetensorError, UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"the adapter in {trained} is damaged ({reason}); give a whole one") from error
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ConfigError(
            f"the adapter in {trained} does not fit its base model: {reason}; give a whole one"
        ) from error
    assert isinstance(adapted, PeftModel)
    return Subject(name, config, run.path, tokenizer, adapted, adapted, adapted.disable_adapter)


def _ready(model: Any) -> Any:
    if getattr(model, "is_quantized", False):  # its device is decided when it is loaded
        return model.eval()
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _stages(subject: Subject, layers: Layers) -> list[Stage]:
    """Return the model as it is, or before and after training."""
    before = Scorer(subject.before, layers)
    stages = [Stage("before" if subject.after else "as it is", before, subject.without_adapters)]
    if subject.after is not None:
        same_model = subject.after is subject.before
        stages.append(Stage("after", before if same_model else Scorer(subject.after, layers)))
    return stages


def _teacher_note(subject: Subject) -> str:
    update = subject.config.teacher.update
    if subject.after is None or update == "frozen":
        return "the initial weights, with the solution in view"
    if update == "live":
        return "the trained weights, with the solution in view"
    return f"the initial weights, with the solution in view; in training it was updated ({update})"


def _trajectory(
    subject: Subject, problem: Problem, text: str | None, sampler: str, seed: int, max_new_tokens: int | None
) -> Rollout:
    """Return the given text, or else a sampled answer, as a rollout that fits the model's context."""
    pair = PromptBuilder(subject.tokenizer, subject.config.prompts).pair(problem)
    most = context(subject.before.config)
    room = most - max(len(pair.student_ids), pair.teacher_tokens)
    if room < 1:
        raise ConfigError(
            f"the problem has {most - room} tokens with its solution, and the model's context is {most}; give another "
            "--problem"
        )
    if text is None:
        longest = min(max_new_tokens or subject.config.rollout.max_new_tokens, room)
        return Rollout(pair, _sampled(subject, pair, sampler, seed, longest), problem.id)
    ids = tuple(subject.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])  # pyright: ignore[reportArgumentType]
    if not ids:
        raise ConfigError("--completion: the file holds no text")
    if len(ids) > room:
        raise ConfigError(
            f"--completion: the text has {len(ids)} tokens, of which at most {room} fit the model's context of "
            f"{most} beside the problem and its solution; give a shorter one"
        )
    return Rollout(pair, ids, problem.id)


def _sampled(subject: Subject, pair: PromptPair, sampler: str, seed: int, longest: int) -> tuple[int, ...]:
    model, entered = subject.before, subject.without_adapters
    if sampler == "after" and subject.after is not None:
        model, entered = subject.after, nullcontext
    sampling = subject.config.rollout.model_copy(update={"max_new_tokens": longest})
    engine = TransformersEngine(model, stop_ids(model, subject.tokenizer))
    seeds = [derive_seed(seed, pair.problem.id or pair.problem.question, 0)]
    with entered():
        (completion,) = engine.generate([pair.student_ids], sampling, seeds)
    return completion.ids


def _problems(subject: Subject, data: str | None, numbers: Sequence[int]) -> list[Problem]:
    """Return the problems with these numbers; the lab's are such that no run has trained on."""
    config = DataConfig(source=data) if data else subject.config.data
    if config.source == LAB:
        config = DataConfig(source=LAB, sample=min(max(numbers), packaged()[LAB].problems or 0), seed=0)
    problems = load_set(config, "test")
    if max(numbers) > len(problems):
        raise ConfigError(f"--problem {max(numbers)}: {config.source} has {len(problems)} problems")
    return [problems[number - 1] for number in numbers]


def _read_completion(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--completion {str(path)[:200]}: cannot be read as UTF-8 text ({reason})") from error
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"--completion {path}: larger than {MOST_BYTES // 2**20} MiB; give one answer's text")
    return text


def _is_ours(page: Path) -> bool:
    with page.open("rb") as file:
        return f'content="{GENERATOR}"'.encode() in file.read(4000)


def _targets(subject: Subject, numbers: Sequence[int], out: Path | None) -> tuple[Path, list[Path]]:
    """Return where the page and a run's records go; refuse to overwrite anything but those of this package."""
    name = "-".join(map(str, numbers[:6]))
    in_run = subject.folder and subject.folder / "attention" / f"problem-{name}.html"
    target = out or in_run or Path(f"attention-{slug(subject.name)}-{name}.html")
    if target.is_dir():
        raise ConfigError(f"{target} is a folder; give the page's file name as --output")
    if target.exists() and not (target.is_file() and _is_ours(target)):
        raise ConfigError(f"{target} exists and is no page of ours, and is not overwritten; give another --output")
    record_files = [target.parent / f"problem-{number}.json" for number in numbers] if subject.folder else []
    for file in record_files:
        if file.exists() and not is_record(read_object(file)):
            raise ConfigError(f"{file} exists and is no record of ours, and is not overwritten; give another --output")
    return target, record_files
