"""Micro-batches within a budget of tokens."""

from hypothesis import given
from hypothesis import strategies as st

from opasd.config import PromptConfig
from opasd.model.batches import microbatches
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from tests.training import PROBLEMS, TOKENIZER


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30), budget=st.integers(1, 200), packed=st.booleans())
def test_microbatches_hold_every_rollout_once_and_keep_to_the_budget(lengths, budget, packed):
    pair = PromptBuilder(TOKENIZER, PromptConfig()).pair(PROBLEMS[0])
    rollouts = [Rollout(pair, (5,) * length, str(number)) for number, length in enumerate(lengths)]
    groups = microbatches(rollouts, budget, packed=packed)
    assert sorted(r.id for group in groups for r in group) == sorted(r.id for r in rollouts)
    for group in groups:
        sizes = [len(rollout.teacher_ids) for rollout in group]
        assert len(group) == 1 or (sum(sizes) if packed else len(sizes) * max(sizes)) <= budget
