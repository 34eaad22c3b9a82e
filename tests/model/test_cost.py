"""The cost model against operations counted by hand and by torch."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import MambaConfig, MambaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from opasd.model.cost import CostModel
from tests.models import add_lora, make_model

VOCABULARY, HIDDEN, MLP, LAYERS, HEADS, KEY_HEADS, HEAD = 50, 12, 20, 3, 4, 2, 6
MATRICES = LAYERS * (2 * HIDDEN * HEADS * HEAD + 2 * HIDDEN * KEY_HEADS * HEAD + 3 * HIDDEN * MLP)
NORMS = LAYERS * (2 * HIDDEN + 2 * HEAD) + HIDDEN
TABLE = VOCABULARY * HIDDEN


def tiny(*, tied: bool, attention: str = "eager") -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD,
        tie_word_embeddings=tied,
        attn_implementation=attention,
    )
    return Qwen3ForCausalLM(config)


@pytest.mark.parametrize("tied", [True, False])
def test_by_hand(tied):
    """The output head is paid for once, the lookup of a token not at all."""
    cost = CostModel.of(tiny(tied=tied), checkpointing=False)
    assert cost.parameters == MATRICES + NORMS + TABLE
    assert cost.attention == 4 * LAYERS * HEADS * HEAD
    per_token, attended = 2 * (MATRICES + NORMS + TABLE), 1 + 2 + 3 + 4 + 5
    assert cost.forward([5]) == 5 * per_token + attended * 4 * LAYERS * HEADS * HEAD
    assert cost.forward([5, 1]) == cost.forward([5]) + cost.forward([1])
    assert cost.forward([]) == 0


def test_as_torch_counts():
    """torch counts products of matrices, and attention to all positions, masked or not."""
    model, length = tiny(tied=False), 40
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(length)[None], use_cache=False)
    cost = CostModel.of(model, checkpointing=False)
    all_attended = cost.attention * length * length
    expected = 2 * (cost.parameters - NORMS) * length + all_attended
    # Rotary angles are a tiny product of matrices too.
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-3)
    causal = cost.forward([length]) - 2 * cost.parameters * length
    assert causal == pytest.approx(all_attended / 2, rel=0.03)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_backward(checkpointing):
    """Full fine-tuning: two forwards; adapters: one and little; recomputation: one more."""
    assert CostModel.of(tiny(tied=True), checkpointing=checkpointing).backward == 2 + checkpointing
    model = add_lora(make_model("qwen3"))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in model.parameters())
    cost = CostModel.of(model, checkpointing=checkpointing)
    assert 0 < trained / total < 0.5
    assert cost.backward == pytest.approx(1 + trained / total + checkpointing)


def test_backward_as_torch_counts():
    model = tiny(tied=False)
    logits = model(input_ids=torch.arange(20)[None], use_cache=False).logits
    with FlopCounterMode(display=False) as forward:
        model(input_ids=torch.arange(20)[None], use_cache=False)
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert backward.get_total_flops() / forward.get_total_flops() == pytest.approx(2, rel=0.01)


def test_a_head_size_that_is_not_declared_is_the_hidden_size_shared_out():
    model = make_model("llama")
    model.config.head_dim = None
    assert CostModel.of(model, checkpointing=False).attention == 4 * 4 * 32


def test_the_parts_of_a_step():
    cost = CostModel(parameters=100, attention=8, backward=2.5)
    student = 2 * 100 * (3 + 2) + 8 * (6 + 3)
    teacher = 2 * 100 * (4 + 4) + 8 * (10 + 10)
    assert cost.step([3, 2], [4, 4]) == {
        "rollout": student,
        "teacher": teacher,
        "student": student,
        "update": 2.5 * student,
    }
    assert set(cost.step([], []).values()) == {0}


def test_layers_without_attention_or_with_heads_of_several_sizes(monkeypatch):
    recurrent = MambaForCausalLM(MambaConfig(vocab_size=9, hidden_size=8, state_size=2, num_hidden_layers=1))
    assert CostModel.of(recurrent, checkpointing=False).attention == 0

    def ambiguous(_: Qwen3Config) -> int:
        raise RuntimeError("'head_dim' is a per-layer attribute")

    model = tiny(tied=True)
    monkeypatch.setattr(type(model.config), "head_dim", property(ambiguous), raising=False)
    assert CostModel.of(model, checkpointing=False).attention == 4 * LAYERS * HIDDEN
