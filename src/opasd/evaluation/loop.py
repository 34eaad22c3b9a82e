"""Every target on every benchmark, resumable: sample, grade, write, and write the results at the end.

The samples of a target on a benchmark are drawn in fixed groups. A group that the file does not hold whole is drawn
again whole. So a resumed evaluation has the batches of an uninterrupted one, and on the same machine the same samples.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from opasd.choices import Engine
from opasd.config import ModelConfig, SamplingConfig
from opasd.errors import ConfigError
from opasd.evaluation import folder as folders
from opasd.evaluation.answers import readable, thinking_prefix
from opasd.evaluation.bases import Base
from opasd.evaluation.benchmarks import LoadedBenchmark
from opasd.evaluation.comparability import GROWING
from opasd.evaluation.profiles import ENGINE, GROUP, Profile
from opasd.evaluation.results import SCHEMA, build, gather
from opasd.evaluation.samples import Sample, SampleFile, SampleKey
from opasd.evaluation.targets import Target
from opasd.grading.pool import Grader, Job
from opasd.progress import SampleProgress
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.engine import AdapterEngine, Completion, derive_seed

OpenBase = Callable[[ModelConfig], Base]


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

    def settings(self) -> dict[str, Any]:
        """Return the contents of settings.json."""
        return {
            "profile": self.profile.model_dump(mode="json"),
            "engine": self.engine,
            "group": self.group,
            **({"template_options": dict(self.template_options)} if self.template_options else {}),
            "targets": {target.name: target.describe() for target in self.targets},
            "benchmarks": {benchmark.name: benchmark.describe() for benchmark in self.benchmarks},
        }

    def keys(self, target: Target) -> Iterator[SampleKey]:
        """Yield the keys of a target's samples."""
        for benchmark in self.benchmarks:
            for problem in benchmark.problems:
                for number in range(self.profile.samples):
                    yield SampleKey(target.name, benchmark.name, problem.id, number)


def evaluate(
    evaluation: Evaluation, path: Path, settings: dict[str, Any], open_base: OpenBase, progress: SampleProgress
) -> dict[str, Any]:
    """Draw the samples that the folder `path` lacks, then write and return its results; `settings` are the folder's."""
    samples = SampleFile(path / folders.SAMPLES)
    folders.write_problems(path, evaluation.benchmarks)
    keys = {target.name: list(evaluation.keys(target)) for target in evaluation.targets}
    missing = {name: sum(key not in samples.keys for key in own) for name, own in keys.items()}
    total = sum(map(len, keys.values()))
    progress.begin(total, total - sum(missing.values()))
    with Grader() as grader:
        sampler = _Sampler(evaluation, samples, grader, progress)
        for model, targets in _by_base_model(evaluation.targets):
            if any(missing[target.name] for target in targets):
                if any(benchmark.entry.kind == "expression" for benchmark in evaluation.benchmarks):
                    grader.start()  # its processes start while the model is loaded
                sampler.sample(open_base(model), targets)
    results = _results(evaluation, path.name, settings, samples)
    speed = sampler.tokens / sampler.seconds if sampler.seconds else None
    results["spent"] = {"tokens": sampler.tokens, "seconds": sampler.seconds, "tokens_per_second": speed}
    folders.write_results(path, results)
    return results


def _by_base_model(targets: Sequence[Target]) -> Iterator[tuple[ModelConfig, list[Target]]]:
    """Yield the targets of each base model together, the base alone first."""
    groups: dict[str, list[Target]] = {}
    for target in targets:
        groups.setdefault(_loading(target.model), []).append(target)
    for group in groups.values():
        yield group[0].model, sorted(group, key=lambda target: target.adapter is not None)


def _loading(model: ModelConfig) -> str:
    """Return a text that two models share if the same base is loaded for both: all but the settings of adapters."""
    own = {name for name in ModelConfig.model_fields if name.startswith("lora_")}
    return json.dumps(model.model_dump(exclude=own | {"adaptation"}) | {"four_bit": model.adaptation == "qlora"})


class _Sampler:
    """Draws, grades and writes the samples that are missing, and counts what that takes."""

    def __init__(self, evaluation: Evaluation, samples: SampleFile, grader: Grader, progress: SampleProgress) -> None:
        self.evaluation = evaluation
        self.samples = samples
        self.grader = grader
        self.progress = progress
        self.tokens = 0
        self.seconds = 0.0

    def sample(self, base: Base, targets: Sequence[Target]) -> None:
        """Draw the samples of one base model and its adapters."""
        if base.tokenizer.chat_template is None:
            name = targets[0].model.name_or_path
            self.progress.say(f"{name} has no chat template: problems are asked as plain text")
        exams = [Exam(self.evaluation, benchmark, base, self.progress) for benchmark in self.evaluation.benchmarks]
        adapters = [target.adapter for target in targets if target.adapter]
        with closing(base.engine(max(exam.longest for exam in exams), adapters)) as engine:
            for target in targets:
                engine.use_adapter(target.adapter)
                for exam in exams:
                    for requests in exam.groups(target, self.evaluation.group):
                        self._draw(requests, exam, engine)

    def _draw(self, requests: "list[Request]", exam: "Exam", engine: AdapterEngine) -> None:
        new = sum(request.key not in self.samples.keys for request in requests)
        if new == 0:
            return
        start = time.perf_counter()
        completions = engine.generate(
            [request.prompt for request in requests], exam.sampling, [request.seed for request in requests]
        )
        seconds = time.perf_counter() - start
        tokens = sum(len(completion.ids) for completion in completions)
        self.samples.append(exam.grade(requests, completions, self.grader))
        self.tokens += tokens
        self.seconds += seconds
        self.progress.advance(f"{exam.benchmark.name} {requests[0].key.target}", new, tokens, seconds)


@dataclass(frozen=True)
class Request:
    """One sample to draw."""

    key: SampleKey
    prompt: tuple[int, ...]
    prefix: str
    """The beginning of a thinking block, if the prompt ends inside one."""
    gold: str
    """The known answer."""
    seed: int


class Exam:
    """A benchmark in the wording and the length that fit one base model."""

    def __init__(
        self, evaluation: Evaluation, benchmark: LoadedBenchmark, base: Base, progress: SampleProgress
    ) -> None:
        self.benchmark = benchmark
        self.profile = evaluation.profile
        self.tokenizer = base.tokenizer
        wording = benchmark.entry.prompts().model_copy(update={"template_options": dict(evaluation.template_options)})
        builder = PromptBuilder(base.tokenizer, wording)
        self.prompts = [builder.student_ids(p.question, thinking=self.profile.thinking) for p in benchmark.problems]
        self.prefixes = [thinking_prefix(base.tokenizer, prompt) for prompt in self.prompts]
        self.sampling = self._fitting(base.context, progress)
        self.longest = max(map(len, self.prompts)) + self.sampling.max_new_tokens

    def _fitting(self, context: int, progress: SampleProgress) -> SamplingConfig:
        """Return the profile's sampling, shortened to the model's context."""
        sampling, room = self.profile.sampling, context - max(map(len, self.prompts))
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

    def groups(self, target: Target, size: int) -> Iterator[list[Request]]:
        """Yield the target's requests, `size` at a time."""
        requests = [
            Request(
                SampleKey(target.name, self.benchmark.name, problem.id, number),
                prompt,
                prefix,
                str(problem.answer),
                derive_seed(self.profile.seed, problem.id, number),
            )
            for problem, prompt, prefix in zip(self.benchmark.problems, self.prompts, self.prefixes, strict=True)
            for number in range(self.profile.samples)
        ]
        for start in range(0, len(requests), size):
            yield requests[start : start + size]

    def grade(self, requests: list[Request], completions: list[Completion], grader: Grader) -> list[Sample]:
        """Return the samples of a group with their verdicts, also when cut at each budget that they exceed."""
        kind, budgets = self.benchmark.entry.kind, self.profile.cuts
        texts = [readable(self.tokenizer, completion.ids) for completion in completions]
        drawn = list(zip(requests, completions, texts, strict=True))
        jobs: dict[tuple[int, int | None], Job] = {}
        for index, (request, completion, text) in enumerate(drawn):
            jobs[index, None] = Job(request.prefix + text, request.gold, kind, completion.finish_reason)
            for budget in budgets:
                if len(completion.ids) > budget:
                    cut = readable(self.tokenizer, completion.ids[:budget])
                    jobs[index, budget] = Job(request.prefix + cut, request.gold, kind, "length")
        graded = dict(zip(jobs, grader.grade_all(jobs.values()), strict=True))
        return [
            Sample(
                *request.key,
                seed=request.seed,
                ids=completion.ids,
                text=text,
                finish_reason=completion.finish_reason,
                verdict=graded[index, None].verdict,
                answer=graded[index, None].answer,
                cuts={str(b): graded[index, b]._asdict() for b in budgets if (index, b) in graded},
            )
            for index, (request, completion, text) in enumerate(drawn)
        ]


def _results(evaluation: Evaluation, name: str, settings: dict[str, Any], samples: SampleFile) -> dict[str, Any]:
    """Return the results of all that the folder holds whole, also from earlier commands."""
    targets, benchmarks = list(settings["targets"]), settings["benchmarks"]
    graded = {
        sample.key: {budget: sample.at_budget(budget) for budget in evaluation.profile.cuts}
        for sample in samples
        if sample.target in targets and sample.benchmark in benchmarks
    }
    problems: dict[str, dict[str, None]] = {name: {} for name in benchmarks}
    for key in graded:
        problems[key.benchmark][key.problem] = None
    problems |= {loaded.name: dict.fromkeys(p.id for p in loaded.problems) for loaded in evaluation.benchmarks}
    whole = {name: list(ids) for name, ids in problems.items() if len(ids) == benchmarks[name]["problems"]}
    trials = gather(graded, whole, evaluation.profile.samples)
    order = list(problems)
    ordered = sorted(trials, key=lambda t: (order.index(t.benchmark), t.budget, targets.index(t.target)))
    return {
        "schema": SCHEMA,
        "name": name,
        "opasd": metadata.version("opasd"),
        "settings": {name: value for name, value in settings.items() if name not in GROWING},
        "targets": settings["targets"],
        "benchmarks": benchmarks,
        **build({trial: trials[trial] for trial in ordered}),
    }
