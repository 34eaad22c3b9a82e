"""The cache that grows in place holds what transformers' own cache holds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3Config
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from opasd.rollout.transformers import growing
from opasd.rollout.transformers.growing import GrowingLayer, growing_cache


@given(st.lists(st.integers(1, 9) | st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=12))
def test_it_holds_what_a_dynamic_layer_holds(steps: list[int | list[int]]) -> None:
    """Numbers append that many positions; lists choose rows anew. Small buffers overflow often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "ROOM", 4)
        layer, oracle = GrowingLayer(), DynamicLayer()
        for step in steps:
            if isinstance(step, list):
                layer.reorder_cache(torch.tensor(step))
                oracle.reorder_cache(torch.LongTensor(step))
                continue
            keys, values = torch.randn(3, 2, step, 4), torch.randn(3, 2, step, 6)
            got, wanted = layer.update(keys, values), oracle.update(keys, values)
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
            assert layer.get_mask_sizes(1) == oracle.get_mask_sizes(1)


def test_a_new_position_does_not_move_the_others() -> None:
    layer = GrowingLayer()
    places = {layer.update(torch.zeros(2, 1, 1, 4), torch.zeros(2, 1, 1, 4))[0].data_ptr() for _ in range(growing.ROOM)}
    assert len(places) == 1


def test_layers_with_a_window_stay_as_they_are() -> None:
    kinds = ["full_attention", "sliding_attention"]
    config = Qwen3Config(num_hidden_layers=2, layer_types=kinds, sliding_window=8, use_sliding_window=True)
    assert [type(layer) for layer in growing_cache(config).layers] == [GrowingLayer, DynamicSlidingWindowLayer]
