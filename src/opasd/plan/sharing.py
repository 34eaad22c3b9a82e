"""Several GPUs: which part of the memory each holds, and the time of what they exchange.

    ddp      every GPU holds everything; gradients are added up once a step
    zero2    the weights are whole; gradients and optimizer are divided
    fsdp2    everything is divided; a layer's weights are gathered when it computes, the output head for the losses, and
             all weights while the transformers engine samples

Nothing here was measured: the links' rates are their makers' figures, and what is exchanged is counted.
"""

from dataclasses import dataclass
from typing import Literal

from opasd.config import RunConfig
from opasd.plan.shapes import Shape

Kind = Literal["ddp", "zero2", "fsdp2"]
KINDS: tuple[Kind, ...] = ("ddp", "zero2", "fsdp2")
NODE = 8
"""GPUs of a machine."""
LINK = 300e9
"""Bytes a second that a GPU exchanges with the others of its machine (NVLink, as far as it is reached)."""
NETWORK = 40e9
"""Bytes a second that a GPU exchanges with other machines (400 Gb/s for each GPU, as far as it is reached)."""


@dataclass(frozen=True)
class Sharing:
    """How many GPUs share a run, and how."""

    kind: Kind = "ddp"
    gpus: int = 1

    def held(self, parts: dict[str, float]) -> dict[str, float]:
        """Return what one GPU holds of the parts between the phases."""
        if self.kind == "fsdp2":
            return {name: size / self.gpus for name, size in parts.items()}
        if self.kind == "zero2":
            divided = {"gradients and AdamW": 1 / self.gpus, "adapters, gradients and AdamW": (1 + 3 / self.gpus) / 4}
            return {name: size * divided.get(name, 1) for name, size in parts.items()}
        return parts

    def rollout(self, config: RunConfig, parts: dict[str, float]) -> dict[str, float]:
        """Return what sampling needs beside its share of the weights; `parts` are held by one GPU alone."""
        if self.kind != "fsdp2" or config.rollout.engine != "transformers":
            return {}
        return {"weights of the others": parts["weights"] * (1 - 1 / self.gpus)}

    def update(self, shape: Shape, size: float) -> dict[str, float]:
        """Return what an update needs beside its share: two layers' weights and the output head of both roles."""
        return {"gathered weights": size * 2 * (shape.layer + shape.table)} if self.kind == "fsdp2" else {}

    def seconds(self, config: RunConfig, shape: Shape, trained: float, size: float, microbatches: int) -> float:
        """Return the time of a step's exchange on one GPU, if nothing else happened meanwhile.

        Gradients are added up and given back. FSDP2 gathers all weights for the teacher, the student and the backward
        pass of each micro-batch, and once to sample.
        """
        if self.gpus == 1:
            return 0.0
        gradients = 2 * trained * (size if config.model.adaptation == "full" else 4)
        weights = 0.0
        if self.kind == "fsdp2":
            weights = shape.parameters * size * (3 * microbatches + (config.rollout.engine == "transformers"))
        rate = LINK if self.gpus <= NODE else NETWORK
        return (gradients + weights) * (1 - 1 / self.gpus) / rate


ALONE = Sharing()
