"""Who gets which items of a step."""

from hypothesis import given
from hypothesis import strategies as st

from opasd.trainer.batches import share


@given(lengths=st.lists(st.integers(1, 1000), max_size=40), processes=st.integers(1, 8))
def test_every_item_is_someones_and_nobody_has_much_more_than_others(lengths, processes):
    shares = [share(lengths, process, processes) for process in range(processes)]
    assert sorted(n for own in shares for n in own) == list(range(len(lengths)))
    assert all(own == sorted(own) for own in shares)
    loads = [sum(lengths[n] for n in own) for own in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)


def test_one_process_keeps_the_order():
    assert share([3, 1, 2], 0, 1) == [0, 1, 2]
