"""Whether an engine with weights of its own still has the student's: its log-probabilities against ours.

Both are of the model's own distribution at temperature 1. Two exact engines differ by rounding alone; one that missed
updates differs by what they changed. In formats of 16 bits that may be less than one would call an error; but an engine
that is clearly closer to the base than to the student never got the adapter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor, nn

from opasd.config import DriftConfig
from opasd.errors import EngineError
from opasd.model.unwrap import unwrap
from opasd.rollout.engine import Completion

FLOAT32_TOLERANCE, HALF_TOLERANCE = 1e-3, 5e-2
SIGNIFICANT = 4.0
"""Standard deviations by which more tokens must be nearer to the base than to the student."""


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
        is_exact = unwrap(model).dtype == torch.float32 and not half
        self.tolerance = config.tolerance or (FLOAT32_TOLERANCE if is_exact else HALF_TOLERANCE)

    def measured(self, step: int) -> int:
        """How many completions of step `step`, counted from 0, are to be compared."""
        return self.config.rollouts if self.config.every and step % self.config.every == 0 else 0

    def __call__(self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> Drift | None:
        """The drift over the completions that have log-probabilities, None where none has; too much is an error."""
        rows = [
            (prompt, completion.ids[: self.config.tokens], completion.logprobs[: self.config.tokens])
            for prompt, completion in zip(prompts, completions, strict=True)
            if completion.logprobs
        ]
        if not rows:
            return None
        given = torch.cat([torch.tensor(logprobs) for *_, logprobs in rows])
        own = torch.cat([self._own(prompt, ids) for prompt, ids, _ in rows])
        gap = (given - own).abs()
        drift = Drift(float(gap.mean()), float(gap.max()), len(gap))
        measured = (
            f"the rollout engine does not serve the student's weights: over {drift.tokens} sampled tokens its "
            f"log-probabilities differ from the trainer's by {drift.mean:.2g} on average (at most {drift.largest:.2g})"
        )
        advice = "check that it loads the same base model in the same precision and takes every update"
        # NaN must not pass for agreement.
        if not (math.isfinite(drift.mean) and drift.mean <= self.tolerance):
            raise EngineError(f"{measured}, more than rollout.drift.tolerance, {self.tolerance:g}; {advice}")
        if isinstance(self.model, PeftModel):
            with self.model.disable_adapter():
                base = torch.cat([self._own(prompt, ids) for prompt, ids, _ in rows])
            if closer_to(base, than=own, found=given):
                raise EngineError(f"{measured}, and are closer to those of the base without its adapter; {advice}")
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


def closer_to(old: Tensor, *, than: Tensor, found: Tensor) -> bool:
    """Whether `found` is `old` with some noise, not `than`: at most half as far from it, and for most tokens nearer.

    One condition alone could be met by chance: a few tokens with large errors, or small errors with one sign.
    """
    to_old, to_new = (found - old).abs(), (found - than).abs()
    votes = int((to_old < to_new).sum() - (to_new < to_old).sum())
    voters = int((to_old != to_new).sum())
    return bool(to_new.mean() > 2 * to_old.mean()) and votes > SIGNIFICANT * voters**0.5
