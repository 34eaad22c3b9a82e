"""Profiles: as published, and with changes."""

import pytest

from opasd.errors import ConfigError
from opasd.evaluation.profiles import PROFILES, requested_profile
from opasd.recipes.evaluate import EvaluateConfig


def test_profiles_are_as_published():
    paper, opsd = PROFILES["paper"], PROFILES["opsd"]
    assert paper.sampling.model_dump() == {
        "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "max_new_tokens": 16_384,
    }  # fmt: skip
    assert (paper.samples, paper.seed, paper.thinking) == (12, 0, True)
    assert (opsd.sampling.temperature, opsd.sampling.max_new_tokens) == (1.0, 38_912)


def test_profiles_of_one_s_own():
    changes = EvaluateConfig(budgets=(28_672, 16_384, 38_912), samples=4, temperature=0)
    profile = requested_profile(changes, lab=False)
    assert profile.cuts == profile.budgets == (16_384, 28_672, 38_912)
    assert (profile.sampling.max_new_tokens, profile.samples, profile.sampling.temperature) == (38_912, 4, 0)
    assert requested_profile(EvaluateConfig(), lab=False) == PROFILES["paper"]
    assert requested_profile(EvaluateConfig(), lab=True) == PROFILES["lab"]
    assert requested_profile(EvaluateConfig(profile="opsd"), lab=True) == PROFILES["opsd"]
    for wrong in ({"budgets": (5, 5)}, {"budgets": (10,), "max_new_tokens": 20}, {"budgets": (0, 20)}):
        with pytest.raises(ConfigError, match=r"profile paper:\s"):
            requested_profile(EvaluateConfig(**wrong), lab=False)
