"""A whole plan: memory, time, what limits a run, and what to change."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from opasd.config import RunConfig
from opasd.plan.memory import GIB, Lengths, Memory, memory, rows, teacher_reads
from opasd.plan.shapes import Shape
from opasd.plan.sharing import Kind, Sharing
from opasd.plan.speed import Gpu, Seconds, seconds

LONG_PROMPT = 15_000
"""Tokens of a prompt from which vLLM was faster on an H200 (docs/engines.md)."""


@dataclass(frozen=True)
class Plan:
    """What a run needs on each of `gpus` GPUs."""

    config: RunConfig
    shape: Shape
    lengths: Lengths
    gpu: Gpu
    gpus: int
    kind: Kind = "ddp"
    """How several GPUs share the weights."""

    @property
    def sharing(self) -> Sharing:
        return Sharing(self.kind, self.gpus)

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
        return seconds(self.config, self.shape, self.lengths, self.rollouts, self.gpu, self.sharing)

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of a step on all GPUs."""
        count = self.rollouts * self.gpus
        return {
            "sampled": count * self.lengths.response,
            "read by the student": count * self.lengths.student,
            "read by the teacher": count * sum(teacher_reads(self.config, self.lengths)),
        }

    @property
    def fits(self) -> bool:
        return self.memory.needed <= self.gpu.memory

    def advice(self) -> Iterator[str]:
        """Say what limits the run and which setting changes it."""
        config, times = self.config, self.seconds
        if not self.fits:
            yield from self._smaller()
            return
        if times.rollout > times.update:
            wanted = self._rows(config)
            more = self._rows(self._with("max_batch", self.rollouts))
            text = f"sampling takes {times.rollout / times.step:.0%} of a step"
            if more > wanted:
                yield f"{text}; rollout.max_batch: {more} fits too"
            else:
                yield f"{text}, {wanted} rollouts at a time; more GPUs or vLLM servers share it"
        elif config.train.gradient_checkpointing:
            tokens = self._largest_microbatch(checkpointing=False)
            if tokens >= max(8192, self.lengths.teacher):
                yield (
                    "the update recomputes a quarter of its operations; train.gradient_checkpointing: false with "
                    f"tokens_per_microbatch: {tokens} fits too"
                )
        yield f"{(self.gpu.memory - self.memory.needed) / GIB:.0f} GiB of a GPU stay free"
        if config.rollout.engine == "transformers" and self.lengths.prompt >= LONG_PROMPT:
            yield f"rollout.engine: vllm reads prompts of {LONG_PROMPT:,} tokens and more faster (docs/engines.md)"

    def _smaller(self) -> Iterator[str]:
        memory, config = self.memory, self.config
        over = (memory.needed - self.gpu.memory) / GIB
        yield f"{over:.0f} GiB too much for a {self.gpu.name}; the {memory.phase} needs the most"
        if sum(memory.held.values()) > 0.9 * self.gpu.memory:
            if config.model.adaptation == "full":
                more = "more GPUs" if self.kind == "fsdp2" else "several GPUs with --sharding fsdp2"
                yield f"weights, gradients and AdamW do not fit; use model.adaptation: lora, {more}, or a larger GPU"
            elif config.model.adaptation == "lora":
                yield "the weights alone do not fit; use model.adaptation: qlora, or a larger GPU"
            return
        if config.rollout.engine == "vllm" and memory.phase == "rollout":
            yield "lower rollout.vllm.memory_share"
        if self._rows(config) == 0:
            yield "the cache of one rollout does not fit; lower rollout.max_new_tokens"
        if not config.train.gradient_checkpointing:
            yield "use train.gradient_checkpointing: true"
        elif tokens := self._largest_microbatch(checkpointing=True):
            yield f"the update fits with tokens_per_microbatch: {tokens}"
        else:
            yield "one rollout at the limit does not fit the update; lower rollout.max_new_tokens"

    def _rows(self, config: RunConfig) -> int:
        return rows(config, self.shape, self.lengths, self.rollouts, self.gpu.memory, self.sharing)

    def _largest_microbatch(self, *, checkpointing: bool) -> int:
        """Return the largest power of two up to the present setting with which the update fits; 0 if none does."""
        train = self.config.train.model_copy(update={"gradient_checkpointing": checkpointing})
        best, tokens = 0, 1024
        while tokens <= self.config.tokens_per_microbatch:
            config = self.config.model_copy(update={"train": train, "tokens_per_microbatch": tokens})
            used = self._memory(config)
            if replace(used, rollout={}).needed <= self.gpu.memory:
                best = tokens
            tokens *= 2
        return best

    def _with(self, key: str, value: int) -> RunConfig:
        return self.config.model_copy(update={"rollout": self.config.rollout.model_copy(update={key: value})})

    def _memory(self, config: RunConfig) -> Memory:
        return memory(config, self.shape, self.lengths, self.rollouts, self.gpu.memory, self.sharing)
