"""A process's share of a step, as accelerate deals batches."""

from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

from opasd.trainer.window import without_repeats

SMALL = st.integers(1, 5)


@given(count=st.integers(1, 40), size=SMALL, processes=SMALL, epoch=st.integers(0, 2))
def test_all_processes_together_have_what_one_would_have(count, size, processes, epoch):
    sampler = BatchSampler(range(count), size, drop_last=False)
    shards = [list(BatchSamplerShard(sampler, processes, process)) for process in range(processes)]
    alone = list(BatchSampler(range(count), size * processes, drop_last=False))
    assert {len(shard) for shard in shards} == {len(alone)}
    for step, expected in enumerate(alone):
        dealt = [
            without_repeats(
                shard[step], step + epoch * len(alone),
                process=process, processes=processes, batch_size=size, num_problems=count,
            )
            for process, shard in enumerate(shards)
        ]  # fmt: skip
        assert [problem for batch in dealt for problem in batch] == expected
