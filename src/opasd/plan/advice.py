"""A whole plan: memory, time, what limits a run, and what to change."""

from collections.abc import Iterator
from dataclasses import dataclass

from opasd.config import RunConfig
from opasd.plan.memory import GIB, Lengths, Memory, memory
from opasd.plan.shapes import Shape
from opasd.plan.speed import Gpu, Seconds, seconds

_ROOM = 0.6
"""Share of a GPU below which a plan advises to use more of it."""


@dataclass(frozen=True)
class Plan:
    """What a run needs on each of `gpus` GPUs."""

    config: RunConfig
    shape: Shape
    lengths: Lengths
    gpu: Gpu
    gpus: int

    @property
    def rollouts(self) -> int:
        """Rollouts of one GPU in a step."""
        train = self.config.train
        problems = train.per_device_train_batch_size * train.gradient_accumulation_steps
        return problems * self.config.rollout.rollouts_per_problem

    @property
    def memory(self) -> Memory:
        return self._memory(self.config)

    @property
    def seconds(self) -> Seconds:
        return seconds(self.config, self.shape, self.lengths, self.rollouts, self.gpu)

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of a step on all GPUs."""
        count = self.rollouts * self.gpus
        return {
            "sampled": count * self.lengths.response,
            "read by the student": count * self.lengths.student,
            "read by the teacher": count * self.lengths.teacher,
        }

    @property
    def fits(self) -> bool:
        return self.memory.needed <= self.gpu.memory

    def advice(self) -> Iterator[str]:
        """Say what limits the run and which setting changes it."""
        if not self.fits:
            yield from self._smaller()
            return
        config, times = self.config, self.seconds
        if times.rollout > times.update and config.rollout.engine == "transformers":
            rows = self._largest("rollout.max_batch", config.rollout.max_batch, self.rollouts)
            if rows > config.rollout.max_batch:
                yield f"sampling takes {times.rollout / times.step:.0%} of a step; rollout.max_batch: {rows} fits too"
            else:
                yield f"sampling takes {times.rollout / times.step:.0%} of a step; more GPUs or vLLM servers share it"
        elif config.train.gradient_checkpointing:
            tokens = self._largest("tokens_per_microbatch", 1024, config.tokens_per_microbatch, checkpointing=False)
            if tokens >= max(8192, self.lengths.teacher):
                yield (
                    "the update recomputes a quarter of its operations; train.gradient_checkpointing: false with "
                    f"tokens_per_microbatch: {tokens} fits too"
                )
        if self.memory.needed < _ROOM * self.gpu.memory and config.tokens_per_microbatch < 65_536:
            yield f"{(self.gpu.memory - self.memory.needed) / GIB:.0f} GiB of a GPU stay free"

    def _smaller(self) -> Iterator[str]:
        memory, config = self.memory, self.config
        over = (memory.needed - self.gpu.memory) / GIB
        yield f"{over:.0f} GiB too much for a {self.gpu.name}; the {memory.phase} needs the most"
        held = sum(memory.held.values())
        if held > 0.9 * self.gpu.memory:
            if config.model.adaptation == "full":
                yield "weights, gradients and AdamW alone do not fit; use model.adaptation: lora, or a larger GPU"
            elif config.model.adaptation == "lora":
                yield "the weights alone do not fit; use model.adaptation: qlora, or a larger GPU"
            return
        if memory.phase == "rollout" and config.rollout.engine == "vllm":
            yield "lower rollout.vllm.memory_share"
        elif memory.phase == "rollout":
            if rows := self._largest("rollout.max_batch", 1, config.rollout.max_batch):
                yield f"rollout.max_batch: {rows} fits"
            else:
                yield "one row of the cache does not fit; lower rollout.max_new_tokens"
        elif not config.train.gradient_checkpointing:
            yield "use train.gradient_checkpointing: true"
        elif tokens := self._largest("tokens_per_microbatch", 1024, config.tokens_per_microbatch):
            yield f"tokens_per_microbatch: {tokens} fits"
        else:
            yield "one rollout at the limit does not fit; lower rollout.max_new_tokens"

    def _largest(self, key: str, low: int, high: int, *, checkpointing: bool | None = None) -> int:
        """Return the largest power of two in the range, or the range's end, with which the run fits; 0 if none does."""
        best, value = 0, max(low, 1)
        while value <= high:
            if self._memory(self._with(key, value, checkpointing)).needed <= self.gpu.memory:
                best = value
            value = high if value < high < 2 * value else 2 * value
        return best

    def _with(self, key: str, value: int, checkpointing: bool | None) -> RunConfig:
        config = self.config
        if checkpointing is not None:
            train = config.train.model_copy(update={"gradient_checkpointing": checkpointing})
            config = config.model_copy(update={"train": train})
        if key == "tokens_per_microbatch":
            return config.model_copy(update={key: value})
        return config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_batch": value})})

    def _memory(self, config: RunConfig) -> Memory:
        return memory(config, self.shape, self.lengths, self.rollouts, self.gpu.memory)
