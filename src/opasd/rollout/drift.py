"""Check that an engine's copy of the weights is the student's: both must give the same log-probabilities.

Both are taken from the model's own distribution at temperature 1. With equal weights they differ by rounding alone;
an engine that missed updates differs by more. In 16-bit formats that difference may be too small to call it an error,
but an engine that is clearly closer to the base than to the student never got the adapter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor, nn

from opasd.config import DriftConfig
from opasd.errors import EngineError
from opasd.model.scoring import evaluating
from opasd.model.unwrap import unwrap
from opasd.rollout.engine import Completion

FLOAT32_TOLERANCE, HALF_TOLERANCE = 1e-3, 5e-2
SIGNIFICANT = 4.0
"""Standard deviations by which the tokens closer to the base must outnumber those closer to the student."""


@dataclass(frozen=True)
class Drift:
    """Absolute differences of log-probabilities over some tokens."""

    mean: float
    largest: float
    tokens: int

    def metrics(self) -> dict[str, float]:
        return {"rollout/drift": self.mean, "rollout/drift_max": self.largest}


class DriftCheck:
    """Compares an engine with the model that trains; `half` says whether one of them computes in a 16-bit format."""

    def __init__(self, model: nn.Module, config: DriftConfig, *, half: bool) -> None:
        self.model = model
        self.config = config
        is_exact = unwrap(model).dtype == torch.float32 and not half
        self.tolerance = config.tolerance or (FLOAT32_TOLERANCE if is_exact else HALF_TOLERANCE)

    def measured(self, step: int) -> int:
        """Return how many completions of a step, counted from 0, are compared."""
        return self.config.rollouts if self.config.every and step % self.config.every == 0 else 0

    def __call__(self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> Drift | None:
        """Return the drift over the completions that have log-probabilities, if any; raise if it is too large."""
        rows = self._rows(prompts, completions)
        if not rows:
            return None
        engines = torch.cat([torch.tensor(logprobs) for *_, logprobs in rows])
        students = torch.cat([self._logprobs(prompt, ids) for prompt, ids, _ in rows])
        gap = (engines - students).abs()
        drift = Drift(float(gap.mean()), float(gap.max()), len(gap))
        message = (
            f"the rollout engine does not serve the student's weights: over {drift.tokens} sampled tokens its "
            f"log-probabilities differ from the trainer's by {drift.mean:.2g} on average (at most {drift.largest:.2g})"
        )
        advice = "check that it loads the same base model in the same precision and takes every update"
        # Written so that NaN does not pass.
        if not (math.isfinite(drift.mean) and drift.mean <= self.tolerance):
            raise EngineError(f"{message}, more than rollout.drift.tolerance, {self.tolerance:g}; {advice}")
        if isinstance(self.model, PeftModel):
            with self.model.disable_adapter():
                base = torch.cat([self._logprobs(prompt, ids) for prompt, ids, _ in rows])
            if is_closer(engines, to=base, than_to=students):
                raise EngineError(f"{message}, and are closer to those of the base without its adapter; {advice}")
        return drift

    def log_ratios(self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> Tensor:
        """[tokens] log p(token) now minus when it was sampled, of the completions that have log-probabilities."""
        rows = self._rows(prompts, completions)
        ratios = [self._logprobs(prompt, ids) - torch.tensor(logprobs) for prompt, ids, logprobs in rows]
        return torch.cat(ratios) if ratios else torch.zeros(0)

    def _rows(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
    ) -> list[tuple[Sequence[int], tuple[int, ...], tuple[float, ...]]]:
        return [
            (prompt, completion.ids[: self.config.tokens], completion.logprobs[: self.config.tokens])
            for prompt, completion in zip(prompts, completions, strict=True)
            if completion.logprobs
        ]

    @torch.no_grad()
    def _logprobs(self, prompt: Sequence[int], ids: Sequence[int]) -> Tensor:
        inputs = torch.tensor([[*prompt, *ids[:-1]]], device=unwrap(self.model).device)
        with evaluating(self.model):
            logits_TV = self.model(input_ids=inputs, logits_to_keep=len(ids)).logits[0]
        chosen_T1 = torch.tensor(ids, device=logits_TV.device)[:, None]
        return logits_TV.float().log_softmax(-1).gather(-1, chosen_T1)[:, 0].cpu()


def is_closer(values: Tensor, *, to: Tensor, than_to: Tensor) -> bool:
    """Return whether `values` is `to` with noise: at most half as far away as `than_to`, and for most tokens.

    One condition alone could hold by chance: with a few large errors, or with small errors of one sign.
    """
    near, far = (values - to).abs(), (values - than_to).abs()
    votes = int((near < far).sum() - (far < near).sum())
    voters = int((near != far).sum())
    return bool(far.mean() > 2 * near.mean()) and votes > SIGNIFICANT * voters**0.5
