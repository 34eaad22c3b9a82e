"""Whether an engine with weights of its own still has the student's: its log-probabilities against ours.

Both are of the model's own distribution at temperature 1. Two exact engines differ by rounding alone; one that missed
an update differs by what the update changed, for as long as that is more than rounding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opasd.config import DriftConfig
from opasd.errors import EngineError
from opasd.models import unwrap
from opasd.rollout.engine import Completion

FLOAT32_TOLERANCE, HALF_TOLERANCE = 1e-3, 5e-2


@dataclass(frozen=True)
class Drift:
    """Differences of log-probabilities over some tokens, without sign."""

    mean: float
    largest: float
    tokens: int

    def metrics(self) -> dict[str, float]:
        return {"rollout/drift": self.mean, "rollout/drift_max": self.largest}


class DriftCheck:
    """Compares an engine with the model that trains; `half`: one of the two computes in a format of 16 bits."""

    def __init__(self, model: nn.Module, config: DriftConfig, *, half: bool) -> None:
        self.model = model
        self.config = config
        self.tolerance = config.tolerance or (HALF_TOLERANCE if half else FLOAT32_TOLERANCE)

    def measured(self, step: int) -> int:
        """How many completions of step `step`, counted from 0, are to be compared."""
        return self.config.rollouts if self.config.every and step % self.config.every == 0 else 0

    def __call__(self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> Drift | None:
        """The drift over the completions that have log-probabilities, None where none has; too much is an error."""
        gaps = [
            (self._own(prompt, completion.ids[: self.config.tokens]) - _given(completion.logprobs, self.config)).abs()
            for prompt, completion in zip(prompts, completions, strict=True)
            if completion.logprobs
        ]
        if not gaps:
            return None
        gap = torch.cat(gaps)
        drift = Drift(float(gap.mean()), float(gap.max()), len(gap))
        # NaN must not pass for agreement.
        if not (math.isfinite(drift.mean) and drift.mean <= self.tolerance):
            raise EngineError(
                f"the rollout engine does not serve the student's weights: over {drift.tokens} sampled tokens its "
                f"log-probabilities differ from the trainer's by {drift.mean:.2g} on average (at most "
                f"{drift.largest:.2g}), more than rollout.drift.tolerance, {self.tolerance:g}; check that it loads the "
                "same base model in the same precision and takes every update"
            )
        return drift

    @torch.no_grad()
    def _own(self, prompt: Sequence[int], ids: Sequence[int]) -> Tensor:
        was_training = self.model.training
        self.model.eval()
        try:
            inputs = torch.tensor([[*prompt, *ids[:-1]]], device=unwrap(self.model).device)
            logits_TV = self.model(input_ids=inputs, logits_to_keep=len(ids)).logits[0]
        finally:
            self.model.train(was_training)
        chosen_T1 = torch.tensor(ids, device=logits_TV.device)[:, None]
        return logits_TV.float().log_softmax(-1).gather(-1, chosen_T1)[:, 0].cpu()


def _given(logprobs: Sequence[float] | None, config: DriftConfig) -> Tensor:
    assert logprobs is not None
    return torch.tensor(logprobs[: config.tokens])
