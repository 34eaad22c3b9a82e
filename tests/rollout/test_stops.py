"""The tokens that end a completion: all that a model or its tokenizer declares, loaded or on disk."""

from dataclasses import dataclass

import pytest

from opasd.rollout.stops import stop_ids, stop_ids_of_files
from tests.models import add_lora, make_model


@dataclass
class FakeTokenizer:
    eos_token_id: int | None


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "expected"),
    [
        (None, None, None, set()),
        (0, None, None, {0}),
        ([5, 6], None, None, {5, 6}),
        ((5, 6), None, None, {5, 6}),
        ([5, 6], 7, 8, {5, 6, 7, 8}),
        (None, [1], FakeTokenizer(2), {1, 2}),
        (None, None, FakeTokenizer(None), set()),
        ([], 3, FakeTokenizer(3), {3}),
    ],
)
def test_stop_ids(generation, config, tokenizer, expected, tmp_path):
    model = make_model("qwen3")
    model.generation_config.eos_token_id = generation
    model.config.eos_token_id = config
    tokenizer = FakeTokenizer(tokenizer) if isinstance(tokenizer, int) else tokenizer
    assert stop_ids(model, tokenizer) == expected
    assert stop_ids(add_lora(model), tokenizer) == expected
    model.save_pretrained(tmp_path)
    assert stop_ids_of_files(str(tmp_path), model.config, tokenizer) == expected
