"""What the token loss compares: an output head's logits, and how. Shapes as in `opasd.losses.token`."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from opasd.choices import Clip, Divergence
from opasd.losses.divergence import log_terms
from opasd.losses.precision import wide


@dataclass(frozen=True)
class OutputHead:
    """How hidden states become logits: z = softcap(scale · (hidden Wᵀ + bias))."""

    weight_VE: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def detach(self) -> "OutputHead":
        bias_V = None if self.bias_V is None else self.bias_V.detach()
        return replace(self, weight_VE=self.weight_VE.detach(), bias_V=bias_V)

    def logits(self, hidden_TE: Tensor) -> Tensor:
        """The definition of z [T, V], in at least float32."""
        dtype = wide(hidden_TE.dtype)
        logits_TV = hidden_TE.to(dtype) @ self.weight_VE.to(dtype).T
        if self.bias_V is not None:
            logits_TV = logits_TV + self.bias_V.to(dtype)
        logits_TV = logits_TV * self.scale
        return logits_TV if self.softcap is None else self.softcap * torch.tanh(logits_TV / self.softcap)


class Comparison(NamedTuple):
    """How two distributions become one number; `top_k` is None where it would change nothing."""

    divergence: Divergence
    jsd_beta: float
    temperature: float
    clip: Clip
    clip_threshold: float
    top_k: int | None

    def judge(self, teacher_log_CV: Tensor, student_log_CV: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """From floored log-probabilities: loss, divergence and clipped share [C]; d term / d log student [C, V].

        The slopes of a token that is clipped as a whole are left: its gradient is multiplied by 0 later.
        """
        term_CV, slope_CV = log_terms(teacher_log_CV, student_log_CV, self.divergence, self.jsd_beta)
        divergence_C = term_CV.sum(-1)
        loss_C, clipped_C = divergence_C, torch.zeros_like(divergence_C)
        if self.clip == "per_token":
            loss_C = divergence_C.clamp(max=self.clip_threshold)
            clipped_C = (divergence_C > self.clip_threshold).to(divergence_C)
        elif self.clip == "pointwise":
            over_CV = term_CV > self.clip_threshold
            loss_C = term_CV.clamp_(max=self.clip_threshold).sum(-1)
            clipped_C = over_CV.sum(-1).to(divergence_C) / over_CV.shape[-1]
            slope_CV.masked_fill_(over_CV, 0)
        return loss_C, divergence_C, clipped_C, slope_CV
