"""Every target on every benchmark, resumable: sample, grade, write, and in the end the results.

Samples of a target and a benchmark are drawn in fixed groups of `group` requests. A group that is not complete in the
file is drawn again as a whole, so a resumed evaluation has the batches, and on the same machine the very samples, of an
uninterrupted one.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from opasd.choices import Engine
from opasd.config import ModelConfig, SamplingConfig
from opasd.data.problems import Problem
from opasd.errors import ConfigError
from opasd.evaluation import folder as folders
from opasd.evaluation.answers import THINK, opens_thinking, readable
from opasd.evaluation.bases import Base
from opasd.evaluation.benchmarks import LoadedBenchmark
from opasd.evaluation.comparability import GROWING
from opasd.evaluation.profiles import ENGINE, GROUP, Profile
from opasd.evaluation.results import SCHEMA, build, gather
from opasd.evaluation.samples import Key, Sample, SampleFile
from opasd.evaluation.targets import Target
from opasd.grading.pool import Grader, Job
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.engine import Completion, derive_seed

OpenBase = Callable[[ModelConfig], Base]


class Progress(Protocol):
    """Who is told how far it is."""

    def begin(self, total: int, done: int) -> None:
        """`done` of `total` samples are there."""
        ...

    def advance(self, label: str, samples: int, tokens: int, seconds: float) -> None:
        """A group was drawn and written."""
        ...

    def say(self, text: str) -> None:
        """Something to know."""
        ...


@dataclass(frozen=True)
class Request:
    """One sample to draw."""

    key: Key
    problem: Problem
    prompt: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Evaluation:
    """All that is asked for."""

    targets: Sequence[Target]
    benchmarks: Sequence[LoadedBenchmark]
    profile: Profile
    engine: Engine = ENGINE
    group: int = GROUP
    template_options: Mapping[str, str | int | bool] = field(default_factory=dict)
    """Further variables of the chat template."""

    def settings(self) -> dict[str, Any]:
        """What settings.json holds."""
        return {
            "profile": self.profile.model_dump(mode="json"),
            "engine": self.engine,
            "group": self.group,
            **({"template_options": dict(self.template_options)} if self.template_options else {}),
            "targets": {target.name: target.describe() for target in self.targets},
            "benchmarks": {benchmark.name: benchmark.describe() for benchmark in self.benchmarks},
        }


def evaluate(
    asked: Evaluation, path: Path, settings: dict[str, Any], open_base: OpenBase, progress: Progress
) -> dict[str, Any]:
    """Draw what is missing in the folder `path`, whose settings are `settings`, and write and return the results."""
    samples = SampleFile(path / folders.SAMPLES)
    folders.write_problems(
        path,
        (
            {"benchmark": benchmark.name, "problem": p.id, "question": p.question, "answer": p.answer}
            for benchmark in asked.benchmarks
            for p in benchmark.problems
        ),
    )
    missing = {
        (target.name, benchmark.name): _missing(asked, target, benchmark, samples.keys)
        for target in asked.targets
        for benchmark in asked.benchmarks
    }
    total = sum(len(b.problems) for b in asked.benchmarks) * len(asked.targets) * asked.profile.samples
    progress.begin(total, total - sum(missing.values()))
    tokens = seconds = 0.0
    with Grader() as grader:
        for model, targets in _by_model(asked.targets):
            if not any(missing[target.name, b.name] for target in targets for b in asked.benchmarks):
                continue
            if any(benchmark.entry.kind == "expression" for benchmark in asked.benchmarks):
                grader.start()  # while the model is loaded
            for drawn, took in _sample_all(asked, model, targets, samples, grader, open_base, progress):
                tokens, seconds = tokens + drawn, seconds + took
    return _finish(asked, path, settings, samples, {"tokens": int(tokens), "seconds": seconds})


def _missing(asked: Evaluation, target: Target, benchmark: LoadedBenchmark, there: set[Key]) -> int:
    places = ((problem.id, number) for problem in benchmark.problems for number in range(asked.profile.samples))
    return sum(Key(target.name, benchmark.name, *place) not in there for place in places)


def _by_model(targets: Sequence[Target]) -> Iterator[tuple[ModelConfig, list[Target]]]:
    """The targets of each base together, the base alone first."""
    groups: dict[str, list[Target]] = {}
    for target in targets:
        groups.setdefault(_loaded_as(target.model), []).append(target)
    for several in groups.values():
        yield several[0].model, sorted(several, key=lambda target: target.adapter is not None)


def _loaded_as(model: ModelConfig) -> str:
    """What makes two targets' bases two: everything but the adapters' own settings."""
    own = {name for name in ModelConfig.model_fields if name.startswith("lora_")}
    return json.dumps(model.model_dump(exclude=own | {"adaptation"}) | {"four_bit": model.adaptation == "qlora"})


def _sample_all(
    asked: Evaluation,
    model: ModelConfig,
    targets: Sequence[Target],
    samples: SampleFile,
    grader: Grader,
    open_base: OpenBase,
    progress: Progress,
) -> Iterator[tuple[int, float]]:
    """Tokens and seconds of every group that one base model and its adapters draw."""
    base = open_base(model)
    if base.tokenizer.chat_template is None:
        progress.say(f"{model.name_or_path} has no chat template: problems are asked as plain text")
    asking = [_Asking(asked, benchmark, base, progress) for benchmark in asked.benchmarks]
    longest = max(one.longest for one in asking)
    engine = base.engine(longest, [target.adapter for target in targets if target.adapter])
    with ExitStack() as stack:
        stack.callback(engine.close)
        for target in targets:
            engine.use_adapter(target.adapter)
            for one in asking:
                for requests in one.groups(target, asked.group):
                    if all(request.key in samples.keys for request in requests):
                        continue
                    began = time.perf_counter()
                    prompts, seeds = [r.prompt for r in requests], [r.seed for r in requests]
                    completions = engine.generate(prompts, one.sampling, seeds)
                    took = time.perf_counter() - began
                    new = sum(request.key not in samples.keys for request in requests)
                    samples.append(one.graded(requests, completions, grader))
                    drawn = sum(len(completion.ids) for completion in completions)
                    progress.advance(f"{one.benchmark.name} {target.name}", new, drawn, took)
                    yield drawn, took


class _Asking:
    """A benchmark as one base model is asked it."""

    def __init__(self, asked: Evaluation, benchmark: LoadedBenchmark, base: Base, progress: Progress) -> None:
        self.benchmark = benchmark
        self.profile = asked.profile
        self.tokenizer = base.tokenizer
        wording = benchmark.entry.prompts().model_copy(update={"template_options": dict(asked.template_options)})
        builder = PromptBuilder(base.tokenizer, wording)
        self.prompts = [builder.student_ids(p.question, thinking=asked.profile.thinking) for p in benchmark.problems]
        self.thinking = [opens_thinking(base.tokenizer, prompt) for prompt in self.prompts]
        self.sampling = self._fitting(base.context, progress)
        self.longest = max(map(len, self.prompts)) + self.sampling.max_new_tokens

    def _fitting(self, context: int, progress: Progress) -> SamplingConfig:
        """The sampling, within what the model was made for."""
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
        requests = [
            Request(
                Key(target.name, self.benchmark.name, problem.id, number),
                problem,
                prompt,
                derive_seed(self.profile.seed, problem.id, number),
            )
            for problem, prompt in zip(self.benchmark.problems, self.prompts, strict=True)
            for number in range(self.profile.samples)
        ]
        for start in range(0, len(requests), size):
            yield requests[start : start + size]

    def graded(self, requests: list[Request], completions: list[Completion], grader: Grader) -> list[Sample]:
        """The samples of a group, and of each that is longer than a budget, what it was worth when cut there."""
        jobs: dict[tuple[int, int], Job] = {}
        kind = self.benchmark.entry.kind
        opened = {problem.id: open_ for problem, open_ in zip(self.benchmark.problems, self.thinking, strict=True)}
        texts = [readable(self.tokenizer, completion.ids) for completion in completions]
        for index, (request, completion, text) in enumerate(zip(requests, completions, texts, strict=True)):
            before = THINK if opened[request.problem.id] else ""
            gold = str(request.problem.answer)
            jobs[index, 0] = Job(before + text, gold, kind, completion.finish_reason)
            for budget in self.profile.cuts:
                if len(completion.ids) > budget:
                    cut = readable(self.tokenizer, completion.ids[:budget])
                    jobs[index, budget] = Job(before + cut, gold, kind, "length")
        verdicts = dict(zip(jobs, grader.grade_all(jobs.values()), strict=True))
        return [
            Sample(
                *request.key,
                seed=request.seed,
                ids=completion.ids,
                text=text,
                finish_reason=completion.finish_reason,
                verdict=verdicts[index, 0].verdict,
                answer=verdicts[index, 0].answer,
                cuts={
                    str(budget): verdicts[index, budget]._asdict()
                    for budget in self.profile.cuts
                    if (index, budget) in verdicts
                },
            )
            for index, (request, completion, text) in enumerate(zip(requests, completions, texts, strict=True))
        ]


def _finish(
    asked: Evaluation, path: Path, settings: dict[str, Any], samples: SampleFile, spent: dict[str, float]
) -> dict[str, Any]:
    cuts, order = asked.profile.cuts, list(settings["targets"])
    outcomes = [
        (sample.key, {budget: sample.outcome(budget) for budget in cuts})
        for sample in samples
        if sample.target in order and sample.benchmark in settings["benchmarks"]
    ]
    problems: dict[str, dict[str, None]] = {name: {} for name in settings["benchmarks"]}
    for key, _ in outcomes:
        problems[key.benchmark][key.problem] = None
    problems |= {benchmark.name: dict.fromkeys(p.id for p in benchmark.problems) for benchmark in asked.benchmarks}
    whole = {name: list(ids) for name, ids in problems.items() if len(ids) == settings["benchmarks"][name]["problems"]}
    found = gather(outcomes, whole, asked.profile.samples)
    ordered = sorted(found, key=lambda place: (list(problems).index(place[1]), place[2], order.index(place[0])))
    evaluation = {
        "schema": SCHEMA,
        "name": path.name,
        "opasd": metadata.version("opasd"),
        "settings": {name: value for name, value in settings.items() if name not in GROWING},
        "targets": settings["targets"],
        "benchmarks": settings["benchmarks"],
        **build({place: found[place] for place in ordered}),
        "spent": spent | {"tokens_per_second": spent["tokens"] / spent["seconds"] if spent["seconds"] else None},
    }
    folders.write_results(path, evaluation)
    return evaluation
