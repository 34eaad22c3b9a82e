"""A divergence of the tests' own."""

import pytest
import torch
from torch import Tensor

from opasd import choices
from opasd.losses import fused
from opasd.losses.divergence import DIVERGENCES, SMALLEST, register_divergence


def squared_hellinger(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
    return (teacher_V.clamp_min(SMALLEST).sqrt() - student_V.clamp_min(SMALLEST).sqrt()).square()


@pytest.fixture(params=["hellinger", "hellinger_with_formulas"])
def fourth_kind(request):
    """A divergence that no kernel knows: with nothing but its definition, and with all its formulas."""

    def slope(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
        return 1 - (teacher_V.clamp_min(SMALLEST) / student_V.clamp_min(SMALLEST)).sqrt()

    def log_terms(teacher_log_V: Tensor, student_log_V: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        difference_V = torch.exp(teacher_log_V / 2) - torch.exp(student_log_V / 2)
        return difference_V.square(), -difference_V * torch.exp(student_log_V / 2)

    formulas = {} if request.param == "hellinger" else {"slope": slope, "log_terms": log_terms}
    fused.say_once.cache_clear()
    register_divergence(request.param, squared_hellinger, **formulas)
    yield request.param
    del DIVERGENCES[request.param]
    choices.DIVERGENCES.remove(request.param)
