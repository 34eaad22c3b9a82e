"""How a step is divided: over processes as accelerate deals batches, and into micro-batches within a budget."""

from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

from opasd.config import PromptConfig
from opasd.model.batches import microbatches
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.trainer.batches import Share
from tests.training import PROBLEMS, TOKENIZER

SMALL = st.integers(1, 5)


def in_turn(several, size):
    several = list(several)
    return [several[start : start + size] for start in range(0, len(several), size)]


@given(count=st.integers(1, 40), size=SMALL, processes=SMALL, accumulation=SMALL, epoch=st.integers(0, 2))
def test_all_processes_together_have_what_one_would_have(count, size, processes, accumulation, epoch):
    sampler = BatchSampler(range(count), size, drop_last=False)
    shards = [BatchSamplerShard(sampler, processes, process) for process in range(processes)]
    windows = [in_turn(shard, accumulation) for shard in shards]
    alone = in_turn(range(count), size * processes * accumulation)
    assert {len(mine) for mine in windows} == {len(alone)}
    for step, wanted in enumerate(alone):
        found = [
            Share(process, processes, size, count).without_repeated(mine[step], step + epoch * len(alone), accumulation)
            for process, mine in enumerate(windows)
        ]
        assert sorted(place for several in found for place in several) == wanted


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30), budget=st.integers(1, 200), packed=st.booleans())
def test_microbatches_hold_every_rollout_once_and_keep_to_the_budget(lengths, budget, packed):
    pair = PromptBuilder(TOKENIZER, PromptConfig()).pair(PROBLEMS[0])
    rollouts = [Rollout(pair, (5,) * length, str(number)) for number, length in enumerate(lengths)]
    groups = microbatches(rollouts, budget, packed=packed)
    assert sorted(r.id for group in groups for r in group) == sorted(r.id for r in rollouts)
    for group in groups:
        sizes = [len(rollout.teacher_ids) for rollout in group]
        assert len(group) == 1 or (sum(sizes) if packed else len(sizes) * max(sizes)) <= budget
