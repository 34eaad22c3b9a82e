"""A response that the student sampled for a problem."""

from dataclasses import dataclass, replace

from opasd.prompts.contexts import PromptPair


@dataclass(frozen=True)
class Rollout:
    """One trajectory: the two contexts of its problem, and the sampled token ids."""

    pair: PromptPair
    completion_ids: tuple[int, ...]
    id: str
    """Names the rollout in errors, samples and metrics."""
    correct: bool | None = None
    """Whether its answer is right; None if that is not known."""

    @property
    def num_tokens(self) -> int:
        return len(self.completion_ids)

    @property
    def for_attention(self) -> "Rollout":
        """The rollout as the attention loss reads it: after the teacher's context for it, if it has one of its own."""
        return self if self.pair.attention is None else replace(self, pair=self.pair.attention)

    @property
    def teacher_tokens(self) -> int:
        """The tokens of the teacher's longest sequence."""
        return self.pair.teacher_tokens + self.num_tokens

    @property
    def student_ids(self) -> tuple[int, ...]:
        return (*self.pair.student_ids, *self.completion_ids)

    @property
    def teacher_ids(self) -> tuple[int, ...]:
        return (*self.pair.teacher_ids, *self.completion_ids)
