"""The time of a step, from operations and bytes and from shares of a GPU's peak that were measured on an H200.

Sampling reads all weights and the cache once a token; the update multiplies. The figures of other GPUs are their
makers'; the shares are assumed to be the same there.
"""

import math
from dataclasses import dataclass

from opasd.config import RunConfig
from opasd.plan.memory import Lengths, attention_pairs, bytes_per_weight, captured, rows, teacher_reads
from opasd.plan.shapes import Shape
from opasd.plan.sharing import ALONE, Sharing


@dataclass(frozen=True)
class Gpu:
    """What one GPU can do."""

    name: str
    memory: float
    """Bytes."""
    operations: float
    """Dense bfloat16 operations a second."""
    bandwidth: float
    """Bytes of its memory a second."""


GPUS = {
    "h200": Gpu("H200", 141e9, 790e12, 4.8e12),
    "h100": Gpu("H100 SXM", 80e9, 790e12, 3.35e12),
    "b200": Gpu("B200", 180e9, 1800e12, 7.7e12),
    "a100": Gpu("A100 80 GB", 80e9, 250e12, 2.0e12),
    "a100-40": Gpu("A100 40 GB", 40e9, 250e12, 1.55e12),
    "l40s": Gpu("L40S", 48e9, 290e12, 0.86e12),
    "rtx-4090": Gpu("RTX 4090", 24e9, 150e12, 1.0e12),
    "rtx-5090": Gpu("RTX 5090", 32e9, 200e12, 1.8e12),
}
"""Memory and bandwidth are the makers' figures; operations are what dense products reach, where it was published."""
UPDATE_SHARE = 0.49
"""Useful operations of an update as a share of the peak, with checkpointing (docs/speed.md: 42 to 58 %)."""
READ_SHARE = 0.79
"""Bytes that a decoding step reads as a share of the bandwidth."""
LAYER_SECONDS = 0.07e-3
"""Time of a layer in a decoding step that is not spent reading."""
ADAPTED_LAYER_SECONDS = 0.12e-3
"""The same with LoRA adapters."""


@dataclass(frozen=True)
class Seconds:
    """One step."""

    rollout: float
    update: float
    """With the exchange between GPUs, which goes on while they compute."""
    exchange: float = 0.0
    """The exchange alone."""

    @property
    def step(self) -> float:
        return self.rollout + self.update


def seconds(
    config: RunConfig, shape: Shape, lengths: Lengths, rollouts: int, gpu: Gpu, sharing: Sharing = ALONE
) -> Seconds:
    """Return the time of a step in which one process has `rollouts`."""
    size = bytes_per_weight(config)
    trained = shape.parameters
    if config.model.adaptation != "full":
        trained = shape.adapters(config.model.lora_r, config.model.lora_target_modules)
    batches = max(1, math.ceil(rollouts * lengths.teacher / config.tokens_per_microbatch))
    exchange = sharing.seconds(config, shape, trained, size, batches)
    update = max(_update(config, shape, lengths, rollouts, gpu), exchange)
    return Seconds(_rollout(config, shape, lengths, rollouts, gpu, sharing), update, exchange)


def _rollout(config: RunConfig, shape: Shape, lengths: Lengths, rollouts: int, gpu: Gpu, sharing: Sharing) -> float:
    """Rows are refilled as they end, so all rows but the last work all the time; the longest rollout ends last."""
    count = max(1, rows(config, shape, lengths, rollouts, gpu.memory, sharing))
    waves = max(rollouts / count, 1) * lengths.response
    several = rollouts * sharing.gpus > 1  # a step waits for the longest rollout of all GPUs
    steps = waves + (config.rollout.max_new_tokens - lengths.response) * several / 2
    context = lengths.prompt + lengths.response / 2
    size = max(bytes_per_weight(config), 2) if config.rollout.engine != "transformers" else bytes_per_weight(config)
    read = (shape.active + shape.table) * size + count * context * shape.cache()
    layer = LAYER_SECONDS if config.model.adaptation == "full" else ADAPTED_LAYER_SECONDS
    return steps * (shape.layers * layer + read / (READ_SHARE * gpu.bandwidth))


def _update(config: RunConfig, shape: Shape, lengths: Lengths, rollouts: int, gpu: Gpu) -> float:
    """A forward of the teacher for each context; the student's forward and gradients; recomputation is part of the
    measured share."""
    student, teacher = lengths.student, teacher_reads(config, lengths)
    trained = shape.active if config.model.adaptation == "full" else 0
    pairs = 4 * shape.layers * shape.queries
    operations = 2 * shape.active * (2 * student + sum(teacher)) + 2 * trained * student
    operations += pairs * (3 * student**2 + sum(n**2 for n in teacher)) / 2 + 6 * shape.table * lengths.response
    # One layer's attention loss is part of the measured share; losses/fused/attention.py counts nine products for it,
    # and four for its forward pass, which chooses steps by ρ.
    layers = len(captured(config, shape))
    products = 9 * max(layers - 1, 0) + 4 * layers * (config.objective.attention.queries == "solution_mass")
    operations += products * 2 * shape.queries * attention_pairs(lengths)
    return rollouts * operations / (UPDATE_SHARE * gpu.operations)
