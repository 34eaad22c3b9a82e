"""A benchmark asked of a server that takes messages and returns texts, where nothing is known of its tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opasd.config import ModelConfig, RolloutConfig
from opasd.errors import ConfigError
from opasd.evaluation.benchmarks import LoadedBenchmark
from opasd.evaluation.profiles import Profile
from opasd.evaluation.samples import Sample, SampleFile, SampleKey
from opasd.grading import pool
from opasd.grading.reading import KNOWN_MARKS, Reading
from opasd.prompts.wording import Wording
from opasd.rollout.engine import derive_seed
from opasd.rollout.openai import ChatAnswer, ChatClient

NOT_GUARANTEED = (
    "seeds: a server may ignore them, and a resumed evaluation is then no repetition",
    "the chat template: the server applies its own, and thinking is its own default unless it was turned off",
    "cut reasoning: it reads as an answer if the template opens it and the server has no reasoning parser",
    "the model: its weights, number format and version are known by name alone",
    "token counts: they are the server's, or 0 where it gives none",
    "sampling: a server may ignore top_k and min_p",
)
"""What an evaluation through an OpenAI-compatible server cannot promise."""


class ChatBase:
    """A model behind a server."""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig) -> None:
        self.model, self.rollout = model, rollout

    def engine(self, template_options: dict[str, Any]) -> "ChatEngine":
        """Return what answers."""
        (url,) = self.rollout.servers.urls
        client = ChatClient(
            url, self.model.name_or_path, self.rollout.servers, self.rollout.max_batch, template_options
        )
        return ChatEngine(client)


class ChatEngine:
    """A client that takes no adapters."""

    def __init__(self, client: ChatClient) -> None:
        self.client = client

    def use_adapter(self, path: Path | None) -> None:
        """Refuse an adapter."""
        if path is not None:
            raise ConfigError(f"engine openai cannot put the adapter {path} on a server's model; serve it by a name")

    def close(self) -> None:
        """Do nothing: connections are closed after each call."""


class ChatExam:
    """A benchmark as messages."""

    def __init__(self, benchmark: LoadedBenchmark, profile: Profile, reading: Reading) -> None:
        if profile.budgets:
            raise ConfigError(
                "--budgets: texts of engine openai cannot be cut at tokens; evaluate each budget by itself"
            )
        self.benchmark, self.profile = benchmark, profile
        self.reading = reading._replace(marks=(*reading.marks, *KNOWN_MARKS))  # no template says which
        entry = benchmark.entry
        wording = Wording.parse("prompt", entry.prompt, once={"question"}, optional={"instruction"})
        self.messages = {
            problem.id: wording.fill({"question": problem.question, "instruction": entry.instruction}).text
            for problem in benchmark.problems
        }

    def missing(self, keys: Sequence[SampleKey], samples: SampleFile) -> list[SampleKey]:
        """Return the samples that the file does not have: an answer does not depend on the rest of its group."""
        return [key for key in keys if key not in samples.keys]

    def sample(self, keys: Sequence[SampleKey], engine: ChatEngine) -> list[ChatAnswer]:
        """Return an answer for each key."""
        seeds = [self._seed(key) for key in keys]
        return engine.client.answer([self.messages[key.problem] for key in keys], self.profile.sampling, seeds)

    def grade(self, keys: Sequence[SampleKey], answers: Sequence[ChatAnswer], grader: pool.Grader) -> list[Sample]:
        """Return the samples of a group with their verdicts."""
        problems, entry = {problem.id: problem for problem in self.benchmark.problems}, self.benchmark.entry
        jobs = [
            pool.Job(
                answer.text, str(problems[key.problem].answer), entry.kind, answer.finish_reason,
                problems[key.problem], self.reading, entry.tolerance or 0.0,
            )
            for key, answer in zip(keys, answers, strict=True)
        ]  # fmt: skip
        return [
            Sample(
                *key, seed=self._seed(key), ids=(), text=answer.text, finish_reason=answer.finish_reason,
                verdict=graded.verdict, answer=graded.answer, cuts={}, tokens=answer.tokens or 0,
            )
            for key, answer, graded in zip(keys, answers, grader.grade_all(jobs), strict=True)
        ]  # fmt: skip

    def _seed(self, key: SampleKey) -> int:
        return derive_seed(self.profile.seed, key.problem, key.sample)
