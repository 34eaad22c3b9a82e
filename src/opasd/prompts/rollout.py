"""A response that the student sampled for a problem."""

from dataclasses import dataclass

from opasd.prompts.contexts import PromptPair


@dataclass(frozen=True)
class Rollout:
    """One trajectory: the two contexts of its problem, and the sampled token ids."""

    pair: PromptPair
    completion_ids: tuple[int, ...]
    id: str
    """Names the rollout in errors, samples and metrics."""

    @property
    def num_tokens(self) -> int:
        return len(self.completion_ids)

    @property
    def student_ids(self) -> tuple[int, ...]:
        return (*self.pair.student_ids, *self.completion_ids)

    @property
    def teacher_ids(self) -> tuple[int, ...]:
        return (*self.pair.teacher_ids, *self.completion_ids)
