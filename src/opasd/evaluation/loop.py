"""Every target on every benchmark, resumable: sample, grade, write, and write the results at the end.

The samples of a target on a benchmark are drawn in fixed groups. A group that the file does not hold whole is drawn
again whole. So a resumed evaluation has the batches of an uninterrupted one, and on the same machine the same samples.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from opasd.choices import ENGINES, Engine
from opasd.config import ModelConfig, RolloutConfig, SamplingConfig
from opasd.errors import ConfigError
from opasd.evaluation import folder as folders
from opasd.evaluation import regrading, reuse
from opasd.evaluation.answers import model_marks, readable, thinking_prefix
from opasd.evaluation.benchmarks import LoadedBenchmark
from opasd.evaluation.chat import NOT_GUARANTEED, ChatBase, ChatExam
from opasd.evaluation.comparability import GRADING, GROWING
from opasd.evaluation.costs import Costs
from opasd.evaluation.profiles import ENGINE, GROUP, Profile
from opasd.evaluation.results import SCHEMA, build, gather
from opasd.evaluation.samples import Sample, SampleFile, SampleKey
from opasd.evaluation.targets import Target
from opasd.grading import pool
from opasd.grading.outside import seconds_of
from opasd.grading.reading import KNOWN_MARKS, Reading
from opasd.grading.versions import versions
from opasd.model.checks import context
from opasd.model.loading import load_tokenizer, loading_errors, model_source
from opasd.progress import SampleProgress
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.engine import AdapterEngine, Completion, derive_seed
from opasd.rollout.factory import serve_base
from opasd.run.environment import environment, own_version


class Base:
    """A base model with its tokenizer and context; the engine that `rollout` names swaps adapters on one copy."""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig) -> None:
        self.model, self.rollout = model, rollout
        self.tokenizer = load_tokenizer(model)
        with loading_errors("model", model):
            config = AutoConfig.from_pretrained(
                model_source(model), revision=model.revision, trust_remote_code=model.trust_remote_code
            )
        self.context = rollout.max_model_len or context(config)
        """The most tokens of a prompt with its completion."""

    def engine(self, longest: int, adapters: Sequence[Path]) -> AdapterEngine:
        """Return the engine, for sequences of up to `longest` tokens and for these adapters."""
        return serve_base(self.rollout, self.model, self.tokenizer, longest=longest, adapters=adapters)


OpenBase = Callable[[ModelConfig], Base | ChatBase]


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate, and how."""

    targets: Sequence[Target]
    benchmarks: Sequence[LoadedBenchmark]
    profile: Profile
    engine: Engine = ENGINE
    group: int = GROUP
    """Samples drawn side by side."""
    template_options: Mapping[str, str | int | bool] = field(default_factory=dict)
    """Further variables of the chat template."""
    grader: str = ""
    """`module:function` of a grader from outside."""
    reading: Reading = Reading(marks=())  # noqa: RUF009 (a tuple never changes)
    """How answers are found in completions; the marks are those that were given beside each model's own."""
    server: str = ""
    """Address of a server whose model is known by name alone."""
    reuse: Sequence[Path] = ()
    """Folders of evaluations whose samples are taken over where the same was asked."""
    share: tuple[int, int] = (0, 1)
    """Which of how many processes this is: it draws every so many groups."""

    def settings(self) -> dict[str, Any]:
        """Return the contents of settings.json."""
        return {
            "profile": self.profile.model_dump(mode="json"),
            "engine": self.engine,
            "group": self.group,
            **({"server": self.server} if self.server else {}),
            **({"template_options": dict(self.template_options)} if self.template_options else {}),
            **({"grader": self.grader} if self.grader else {}),
            **({"boxes": self.reading.boxes} if self.reading.boxes != "joined" else {}),
            **({"think_marks": [list(mark) for mark in self.reading.marks]} if self.reading.marks else {}),
            GRADING: versions(self.grader),
            "targets": {target.name: target.describe() for target in self.targets},
            "benchmarks": {benchmark.name: benchmark.describe() for benchmark in self.benchmarks},
        }

    def groups(self, target: Target, benchmark: LoadedBenchmark) -> Iterator[list[SampleKey]]:
        """Yield the keys of the target's samples on the benchmark, a group at a time."""
        keys = [
            SampleKey(target.name, benchmark.name, problem.id, number)
            for problem in benchmark.problems
            for number in range(self.profile.samples)
        ]
        for start in range(0, len(keys), self.group):
            yield keys[start : start + self.group]

    @property
    def gpus(self) -> int | None:
        """GPUs that work here while samples are drawn; None if servers draw them."""
        return None if ENGINES[self.engine].servers else torch.cuda.device_count()

    def all_keys(self) -> list[SampleKey]:
        """Return the keys of all samples, in order."""
        trials = [(target, benchmark) for target in self.targets for benchmark in self.benchmarks]
        return [key for trial in trials for group in self.groups(*trial) for key in group]


def evaluate(
    evaluation: Evaluation, path: Path, settings: dict[str, Any], open_base: OpenBase, progress: SampleProgress
) -> dict[str, Any]:
    """Draw the samples that the folder `path` lacks, then write and return its results; `settings` are the folder's."""
    samples = SampleFile(path / folders.SAMPLES)
    folders.write_problems(path, evaluation.benchmarks)
    settings = regrading.bring_up_to_date(path, settings, samples, progress.say)
    keys = evaluation.all_keys()
    missing = Counter(key.target for key in keys if key not in samples.keys)
    progress.begin(len(keys), len(keys) - missing.total())
    tokens, seconds = 0, 0.0
    costs = Costs(path / folders.CALLS, evaluation.gpus)
    for drawn in costs.follow(draw_missing(evaluation, samples, missing, open_base, progress)):
        tokens, seconds = tokens + drawn[1], seconds + drawn[2]
    problems = {loaded.name: [problem.id for problem in loaded.problems] for loaded in evaluation.benchmarks}
    results = results_of(evaluation.profile, path.name, settings, samples, problems)
    speed = tokens / seconds if seconds else None
    results["spent"] = {"tokens": tokens, "seconds": seconds, "tokens_per_second": speed, "total": costs.total()}
    if ENGINES[evaluation.engine].texts:
        results["not_guaranteed"] = list(NOT_GUARANTEED)
    results["environment"] = environment()
    results["calls"] = costs.calls()
    if evaluation.reuse or "reused" in results:
        taken = results.get("reused", {})
        sources = ", ".join(f"{count} from {source}" for source, count in taken.items())
        nothing = "no folder has this model asked with these prompts, sampling, seeds, engine and batch"
        progress.say(f"reused: {sum(taken.values())} samples of {len(samples.keys)} ({sources or nothing})")
    folders.write_results(path, results, [target.name for target in evaluation.targets])
    return results


def draw_missing(
    evaluation: Evaluation, samples: SampleFile, missing: Counter[str], open_base: OpenBase, progress: SampleProgress
) -> Iterator[tuple[int, int, float]]:
    """Draw what is missing of each target, as `_draw` does."""
    with pool.Grader(seconds=seconds_of(evaluation.grader), function=evaluation.grader) as grader:
        for model, targets in _by_base_model(evaluation.targets):
            if any(missing[target.name] for target in targets):
                if any(benchmark.entry.kind == "expression" for benchmark in evaluation.benchmarks):
                    grader.start()  # its processes start while the model is loaded
                yield from _draw(evaluation, open_base(model), targets, samples, grader, progress)


def _by_base_model(targets: Sequence[Target]) -> Iterator[tuple[ModelConfig, list[Target]]]:
    """Yield the targets of each base model together, the base alone first."""
    groups: dict[str, list[Target]] = {}
    for target in targets:
        # Models that differ only in the settings of their adapters share a base.
        values = {name: value for name, value in target.model.model_dump().items() if not name.startswith("lora_")}
        values["adaptation"] = target.model.adaptation == "qlora"
        groups.setdefault(json.dumps(values), []).append(target)
    for group in groups.values():
        yield group[0].model, sorted(group, key=lambda target: target.adapter is not None)


def _draw(
    evaluation: Evaluation,
    base: Base | ChatBase,
    targets: Sequence[Target],
    samples: SampleFile,
    grader: pool.Grader,
    progress: SampleProgress,
) -> Iterator[tuple[int, int, float]]:
    """Draw, grade and write the missing samples of one base model and its adapters.

    Yield the samples, the tokens and the seconds of each group.
    """
    if isinstance(base, ChatBase):
        yield from _draw_texts(evaluation, base, targets, samples, grader, progress)
        return
    if base.tokenizer.chat_template is None:
        progress.say(f"{targets[0].model.name_or_path} has no chat template: problems are asked as plain text")
    exams = [Exam(evaluation, benchmark, base, progress) for benchmark in evaluation.benchmarks]
    adapters = [target.adapter for target in targets if target.adapter]
    shelf = reuse.Shelf([*evaluation.reuse, samples.path.parent])
    base_digest = reuse.base_digest(base.model, base.rollout)
    with ExitStack() as stack:
        engine: AdapterEngine | None = None
        for target in targets:
            model, loaded = reuse.model_digest(base_digest, target.adapter), False
            for exam, keys, missing in _unfinished(evaluation, target, exams, samples):
                asked = exam.asked(keys, model)
                if taken := shelf.take(asked, missing):
                    samples.append(exam.grade_again(missing, taken, grader))
                    progress.skip(len(missing))
                    continue
                if engine is None:
                    engine = stack.enter_context(closing(base.engine(max(e.longest for e in exams), adapters)))
                if not loaded:
                    engine.use_adapter(target.adapter)
                    loaded = True
                start = time.perf_counter()
                completions = exam.sample(keys, engine)
                seconds = time.perf_counter() - start
                tokens = sum(len(completion.ids) for completion in completions)
                samples.append([replace(new, asked=asked) for new in exam.grade(keys, completions, grader)])
                progress.advance(f"{exam.benchmark.name} {target.name}", len(missing), tokens, seconds)
                yield len(missing), tokens, seconds


def _unfinished(
    evaluation: Evaluation, target: Target, exams: Sequence["Exam"], samples: SampleFile
) -> Iterator[tuple["Exam", list[SampleKey], list[SampleKey]]]:
    """Yield the target's groups that are not whole and are this process's, with the keys that they lack."""
    rank, world = evaluation.share
    groups = ((exam, keys) for exam in exams for keys in evaluation.groups(target, exam.benchmark))
    for number, (exam, keys) in enumerate(groups):
        missing = [key for key in keys if key not in samples.keys]
        if missing and number % world == rank:
            yield exam, keys, missing


def _draw_texts(
    evaluation: Evaluation,
    base: ChatBase,
    targets: Sequence[Target],
    samples: SampleFile,
    grader: pool.Grader,
    progress: SampleProgress,
) -> Iterator[tuple[int, int, float]]:
    """Do as `_draw` with a server that returns texts."""
    exams = [ChatExam(benchmark, evaluation.profile, evaluation.reading) for benchmark in evaluation.benchmarks]
    options = dict(evaluation.template_options) | ({} if evaluation.profile.thinking else {"enable_thinking": False})
    engine = base.engine(options)
    for target in targets:
        engine.use_adapter(target.adapter)
        for exam in exams:
            for group in evaluation.groups(target, exam.benchmark):
                if keys := exam.missing(group, samples):
                    start = time.perf_counter()
                    answers = exam.sample(keys, engine)
                    seconds = time.perf_counter() - start
                    tokens = sum(answer.tokens or 0 for answer in answers)
                    samples.append(exam.grade(keys, answers, grader))
                    progress.advance(f"{exam.benchmark.name} {target.name}", len(keys), tokens, seconds)
                    yield len(keys), tokens, seconds


class Exam:
    """A benchmark in the wording and the length that fit one base model."""

    def __init__(
        self, evaluation: Evaluation, benchmark: LoadedBenchmark, base: Base, progress: SampleProgress
    ) -> None:
        self.benchmark = benchmark
        self.profile = evaluation.profile
        self.tokenizer = base.tokenizer
        marks = model_marks(base.tokenizer, evaluation.reading.marks)
        self.reading = evaluation.reading._replace(marks=marks)
        wording = benchmark.entry.prompts().model_copy(update={"template_options": dict(evaluation.template_options)})
        builder = PromptBuilder(base.tokenizer, wording)
        self.prompts = {
            problem.id: builder.student_ids(problem.question, thinking=self.profile.thinking)
            for problem in benchmark.problems
        }
        """The prompt of each problem, by its id."""
        self.sampling = self._fitting(base.context, progress)
        self.longest = max(map(len, self.prompts.values())) + self.sampling.max_new_tokens

    def _fitting(self, context: int, progress: SampleProgress) -> SamplingConfig:
        """Return the profile's sampling, shortened to the model's context."""
        sampling, room = self.profile.sampling, context - max(map(len, self.prompts.values()))
        if room < 1:
            raise ConfigError(
                f"{self.benchmark.name}: a problem has {context - room} tokens, and the model's context is {context}; "
                "evaluate another benchmark or model"
            )
        if sampling.max_new_tokens > room and self.profile.budgets:
            raise ConfigError(
                f"{self.benchmark.name}: a budget of {sampling.max_new_tokens}, but at most {room} new tokens fit the "
                f"model's context of {context}; give budgets up to that"
            )
        if sampling.max_new_tokens > room:
            progress.say(f"{self.benchmark.name}: at most {room} new tokens fit the model's context of {context}")
        return sampling.model_copy(update={"max_new_tokens": min(sampling.max_new_tokens, room)})

    def sample(self, keys: Sequence[SampleKey], engine: AdapterEngine) -> list[Completion]:
        """Return a completion for each key."""
        return engine.generate([self.prompts[key.problem] for key in keys], self.sampling, list(map(self._seed, keys)))

    def asked(self, keys: Sequence[SampleKey], model: str) -> str:
        """Return the digest of the call that samples the keys from the model with this digest."""
        prompts = [self.prompts[key.problem] for key in keys]
        return reuse.question(model, prompts, self.sampling, list(map(self._seed, keys)))

    def grade_again(self, keys: Sequence[SampleKey], taken: Sequence[Sample], grader: pool.Grader) -> list[Sample]:
        """Return samples of other folders or targets under these keys, with verdicts of their own."""
        completions = [Completion(tuple(sample.ids), sample.finish_reason) for sample in taken]
        return [
            replace(new, asked=old.asked, source=old.source)
            for new, old in zip(self.grade(keys, completions, grader), taken, strict=True)
        ]

    def grade(self, keys: Sequence[SampleKey], completions: Sequence[Completion], grader: pool.Grader) -> list[Sample]:
        """Return the samples of a group with their verdicts, also when cut at each budget that they exceed."""
        problems = {problem.id: problem for problem in self.benchmark.problems}
        jobs: dict[tuple[SampleKey, int | None], pool.Job] = {}
        for key, completion in zip(keys, completions, strict=True):
            # A prompt may end inside a thinking block.
            prefix = self._opened(key)
            for budget in (None, *self.profile.cuts):
                if budget is None or len(completion.ids) > budget:
                    text = prefix + self._text(completion, budget)
                    reason = completion.finish_reason if budget is None else "length"
                    problem = problems[key.problem]
                    entry = self.benchmark.entry
                    jobs[key, budget] = pool.Job(
                        text, str(problem.answer), entry.kind, reason, problem, self.reading, entry.tolerance or 0.0
                    )
        graded = dict(zip(jobs, grader.grade_all(jobs.values()), strict=True))
        return [
            Sample(
                *key,
                seed=self._seed(key),
                ids=completion.ids,
                text=self._text(completion),
                finish_reason=completion.finish_reason,
                verdict=graded[key, None].verdict,
                answer=graded[key, None].answer,
                cuts={
                    str(b): graded[key, b]._asdict() | {"chars": len(self._text(completion, b))}
                    for b in self.profile.cuts
                    if (key, b) in graded
                },
                opened=self._opened(key),
                marks=tuple(mark for mark in self.reading.marks if mark not in KNOWN_MARKS),
            )
            for key, completion in zip(keys, completions, strict=True)
        ]

    def _text(self, completion: Completion, budget: int | None = None) -> str:
        return readable(self.tokenizer, completion.ids[:budget], self.reading.marks)

    def _opened(self, key: SampleKey) -> str:
        return thinking_prefix(self.tokenizer, self.prompts[key.problem], self.reading.marks)

    def _seed(self, key: SampleKey) -> int:
        return derive_seed(self.profile.seed, key.problem, key.sample)


def results_of(
    profile: Profile,
    name: str,
    settings: dict[str, Any],
    samples: Iterable[Sample],
    ordered: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return the results of all that the folder holds whole, also from earlier commands.

    `ordered` has the ids of a benchmark's problems in their order.
    """
    targets, benchmarks = settings["targets"], settings["benchmarks"]
    graded, reused = {}, Counter[str]()
    for sample in samples:
        if sample.target in targets and sample.benchmark in benchmarks:
            graded[sample.key] = {budget: sample.at_budget(budget) for budget in profile.cuts}
            reused.update([sample.source] if sample.source else [])
    problems: dict[str, dict[str, None]] = {name: {} for name in benchmarks}
    for key in graded:
        problems[key.benchmark][key.problem] = None
    problems |= {name: dict.fromkeys(ids) for name, ids in ordered.items()}
    whole = {name: list(ids) for name, ids in problems.items() if len(ids) == benchmarks[name]["problems"]}
    return {
        "schema": SCHEMA,
        "name": name,
        "opasd": own_version(),
        "settings": {name: value for name, value in settings.items() if name not in GROWING},
        "targets": targets,
        "benchmarks": benchmarks,
        **({"reused": dict(reused)} if reused else {}),
        **build(gather(graded, whole, list(targets), profile.samples)),
    }
