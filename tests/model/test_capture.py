"""Capture: what is read off the fast forward equals eager `output_attentions`, for every family and batch shape."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, BloomConfig, Gemma3TextConfig, MambaConfig, Qwen3Config
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from opasd.errors import CaptureError
from opasd.losses.attention import attention_rows
from opasd.model.capture import AttentionCapture, attention_modules, settle
from opasd.model.scoring import pack
from tests.models import FAMILIES, HYBRID, VOCABULARY, add_lora, attention_function, fast, make_model

LENGTH = 40


def random_ids(rows=2, length=LENGTH, seed=1):
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def captured_rows(layers, row, start, stop):
    positions = torch.arange(stop - start)
    return [
        attention_rows(layer.batch([(row, start, stop)]).sequence(0, slice(None)).detach(), positions)
        for layer in layers
    ]


def eager_rows(family, layers, **inputs):
    """The last layers' attention as transformers itself returns it, averaged over heads: [B, T, S] each."""
    output = make_model(family, "eager")(**inputs, output_attentions=True, use_cache=False)
    return [attention.mean(1) for attention in output.attentions if attention is not None][-layers:]


@torch.no_grad()
def run(capture, model, **inputs):
    with capture() as layers:
        model(**inputs, use_cache=False)
    return layers


@pytest.mark.parametrize("family", FAMILIES)
def test_unpadded_equals_eager(family):
    model, ids = make_model(family, fast(family)), random_ids()
    layers = 1 if family in HYBRID else 3
    capture = AttentionCapture(model, layers)
    captured = run(capture, model, input_ids=ids)
    with torch.no_grad():
        expected = eager_rows(family, layers, input_ids=ids)
    for row in range(2):
        settle(capture.verify(captured, row, 0, LENGTH))
        for actual, eager in zip(captured_rows(captured, row, 0, LENGTH), expected, strict=True):
            torch.testing.assert_close(actual, eager[row], atol=1e-5, rtol=0)
    assert capture.is_hybrid == (family in HYBRID)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_either_side_changes_nothing(family):
    """Right padding without a mask; left padding with one (not for hybrids, whose state padding would enter)."""
    model, ids = make_model(family, fast(family)), random_ids(1, 25)
    capture = AttentionCapture(model)
    (alone,) = captured_rows(run(capture, model, input_ids=ids), 0, 0, 25)
    long = random_ids(1, LENGTH, seed=2)
    right = torch.cat([torch.nn.functional.pad(ids, (0, 15)), long])
    padded = run(capture, model, input_ids=right)
    torch.testing.assert_close(captured_rows(padded, 0, 0, 25)[0], alone, atol=1e-5, rtol=0)
    if family in HYBRID:
        return
    left = torch.cat([torch.nn.functional.pad(ids, (15, 0)), long])
    mask = torch.ones_like(left)
    mask[0, :15] = 0
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    padded = run(capture, model, input_ids=left, attention_mask=mask, position_ids=positions)
    torch.testing.assert_close(captured_rows(padded, 0, 15, LENGTH)[0], alone, atol=1e-5, rtol=0)
    settle(capture.verify(padded, 0, 15, LENGTH))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in HYBRID])
def test_packing_changes_nothing(family):
    model, ids = make_model(family, fast(family)), random_ids(1)
    inputs, spans = pack(model, [ids[0, :15].tolist(), ids[0, 15:].tolist()])
    assert spans == [(0, 0, 15), (0, 15, 40)]
    capture = AttentionCapture(model)
    layers = run(capture, model, **inputs)
    settle(capture.verify(layers, *spans[1]))
    packed = [captured_rows(layers, *span)[0] for span in spans]
    for rows, part in zip(packed, (ids[:, :15], ids[:, 15:]), strict=True):
        alone = run(capture, model, input_ids=part)
        torch.testing.assert_close(rows, captured_rows(alone, 0, 0, part.shape[1])[0], atol=1e-5, rtol=0)
        with torch.no_grad():
            torch.testing.assert_close(rows, eager_rows(family, 1, input_ids=part)[0][0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_on_and_off(family):
    model, ids = add_lora(make_model(family, fast(family))), random_ids(1)
    capture = AttentionCapture(model)
    with model.disable_adapter():
        (off,) = captured_rows(run(capture, model, input_ids=ids), 0, 0, LENGTH)
    with torch.no_grad():
        torch.testing.assert_close(off, eager_rows(family, 1, input_ids=ids)[0][0], atol=1e-5, rtol=0)
    (on,) = captured_rows(run(capture, model, input_ids=ids), 0, 0, LENGTH)
    assert (on - off).abs().max() > 1e-3


def attention_gradient(model, ids):
    """Gradients of a function of the captured attention with respect to every LoRA parameter."""
    capture = AttentionCapture(model)
    model.train()
    with capture() as layers:
        model(input_ids=ids, use_cache=False)
    rows = attention_rows(layers[0].batch([(0, 0, LENGTH)]).sequence(0, slice(None)), torch.arange(LENGTH))
    (rows * torch.linspace(0, 1, rows.numel()).view_as(rows)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "qwen3_next"])
def test_gradients_through_checkpointing(family):
    expected = attention_gradient(add_lora(make_model(family, fast(family))), random_ids(1))
    model = add_lora(make_model(family, fast(family)))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    actual = attention_gradient(model, random_ids(1))
    assert expected.keys() == actual.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-6, rtol=1e-4)
    assert max(gradient.abs().max() for gradient in actual.values()) > 1e-4


@pytest.mark.parametrize(
    ("chosen", "kept"), [(2, [2, 3]), ([1, -1], [1, 3]), ((0,), [0]), ("all", [0, 1, 2, 3])], ids=str
)
def test_captured_layers_are_not_checkpointed_and_are_afterwards(chosen, kept):
    model = add_lora(make_model("qwen3"))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    layers = model.get_base_model().model.layers
    capture = AttentionCapture(model, chosen)
    assert capture.modules == [layers[number].self_attn for number in kept]
    with capture():
        assert [number for number, layer in enumerate(layers) if not layer.gradient_checkpointing] == kept
        model(input_ids=random_ids(1), use_cache=False)
    assert all(layer.gradient_checkpointing for layer in layers)


def test_reentrant_checkpointing_is_refused_with_the_reason():
    model = add_lora(make_model("qwen3"))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.train()
    with pytest.raises(CaptureError, match="use_reentrant=True .*no gradient.*'use_reentrant': False"):
        AttentionCapture(model)
    model.gradient_checkpointing_disable()
    capture = AttentionCapture(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(CaptureError, match="without use_reentrant=False"), capture():
        pass


def test_registry_is_restored_even_after_an_error():
    model, before = make_model("qwen3"), dict(ALL_ATTENTION_FUNCTIONS)
    capture = AttentionCapture(model)
    with pytest.raises(IndexError), capture(), torch.no_grad():
        assert dict(ALL_ATTENTION_FUNCTIONS) != before
        model(input_ids=torch.tensor([[VOCABULARY + 5]]))
    assert dict(ALL_ATTENTION_FUNCTIONS) == before
    assert "sdpa" not in ALL_ATTENTION_FUNCTIONS._local_mapping


def test_another_model_running_meanwhile_is_not_captured():
    model, other, ids = make_model("qwen3"), make_model("qwen3", seed=1), random_ids(1)
    capture = AttentionCapture(model)
    (alone,) = captured_rows(run(capture, model, input_ids=ids), 0, 0, LENGTH)
    with torch.no_grad(), capture() as layers:
        model(input_ids=ids, use_cache=False)
        other(input_ids=ids, use_cache=False)
    assert torch.equal(captured_rows(layers, 0, 0, LENGTH)[0], alone)


@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4),
        BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2),
    ],
    ids=["no attention", "attention of its own"],
)
def test_a_model_that_cannot_be_captured_is_named(config):
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(CaptureError, match=f"the {config.model_type} model .*cannot be captured"):
        AttentionCapture(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slope", [0.05, 0.5])
def test_attention_that_is_not_what_queries_and_keys_say_is_refused(slope, dtype):
    """A bias by distance that the capture does not know, as in ALiBi."""

    def biased(module, query, key, value, mask, **kwargs):
        length = query.shape[2]
        distance = torch.arange(length)[:, None] - torch.arange(length)
        bias = (-slope * distance).masked_fill(distance < 0, -torch.inf).to(query.dtype)[None, None]
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, bias, **kwargs)

    with attention_function("opasd_test_biased", biased):
        model = make_model("llama", "opasd_test_biased", dtype)
        capture = AttentionCapture(model)
        layers = run(capture, model, input_ids=random_ids(1))
        with pytest.raises(CaptureError, match="the llama model's attention under .*'opasd_test_biased'"):
            settle(capture.verify(layers, 0, 0, LENGTH))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_low_precision_is_no_reason_to_refuse(family, dtype):
    model = make_model(family, fast(family), dtype)
    capture = AttentionCapture(model)
    layers = run(capture, model, input_ids=random_ids())
    for row in range(2):
        settle(capture.verify(layers, row, 0, LENGTH))
    assert layers[0].layer.query_BHND.dtype == dtype


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_large_scores_are_no_reason_to_refuse(attention):
    """Biases as large as those of Qwen2.5's first layer: scores in the thousands, rounded as such in float32."""
    model = make_model("qwen2", attention)
    generator = torch.Generator().manual_seed(0)
    for module in attention_modules(model):
        for projection in (module.q_proj, module.k_proj):
            projection.bias.data = 60 * torch.randn(projection.bias.shape, generator=generator)
    capture = AttentionCapture(model, 2)
    for length in range(8, 40):
        with torch.no_grad(), capture() as layers:
            model(input_ids=torch.randint(0, 99, (1, length), generator=generator))
        checks = capture.verify(layers, 0, 0, length)
        settle(checks)
        assert max(float(check.limit) for check in checks) < (0.1 if attention == "eager" else 0.003)


def test_a_compiled_model_is_refused():
    with pytest.raises(CaptureError, match="torch.compile"):
        AttentionCapture(torch.compile(make_model("qwen3"), backend="eager"))


def test_more_layers_than_there_are():
    with pytest.raises(CaptureError, match="layers is 5, but the qwen3 model has 4"):
        AttentionCapture(make_model("qwen3"), 5)
    with pytest.raises(CaptureError, match="layers is 2, but the qwen3_next model has 1"):
        AttentionCapture(make_model("qwen3_next"), 2)
    for wrong in ([4], [-5, 1], [3, -1]):
        with pytest.raises(CaptureError, match=r"but the qwen3 model has 4 attention layers; use .* from 0 to 3"):
            AttentionCapture(make_model("qwen3"), wrong)


def test_a_forward_with_a_cache_is_refused():
    model, ids = make_model("qwen3"), random_ids(1)
    capture = AttentionCapture(model)
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
        with pytest.raises(CaptureError, match="use_cache=False"), capture():
            model(input_ids=ids[:, :1], past_key_values=cache)


def test_layers_without_a_forward():
    capture = AttentionCapture(make_model("qwen3"))
    with pytest.raises(CaptureError, match="did not run"), capture():
        pass


def test_training_that_cannot_reach_the_attention_is_refused():
    from peft import LoraConfig, get_peft_model

    model = make_model("qwen3")
    last = len(attention_modules(model)) - 1
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["o_proj"], layers_to_transform=[last]))
    capture = AttentionCapture(adapted)
    with pytest.raises(CaptureError, match="would train nothing; let LoRA target q_proj or k_proj"), capture():
        adapted(input_ids=random_ids(1), use_cache=False)


def test_dropout_is_not_mistaken_for_a_wrong_capture():
    model = make_model("qwen3")
    for module in attention_modules(model):
        module.attention_dropout = 0.5
    model.train()
    capture = AttentionCapture(model)
    (layer,) = run(capture, model, input_ids=random_ids(1))
    settle(capture.verify([layer], 0, 0, LENGTH))  # on the output without dropout
    value, output = layer.evidence
    wrong = replace(layer, evidence=(value, output * 1.01))
    with pytest.raises(CaptureError, match="attention"):
        settle(capture.verify([wrong], 0, 0, LENGTH))


@pytest.mark.parametrize("config", ["qwen3", "gemma3"])
def test_a_model_that_looks_ahead_is_refused(config):
    """The last position sees everything either way; only an earlier one shows it."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip
    if config == "qwen3":
        looking_ahead = Qwen3Config(**sizes)
        looking_ahead.is_causal = False
    else:
        looking_ahead = Gemma3TextConfig(**sizes, use_bidirectional_attention=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(looking_ahead, attn_implementation="sdpa")
    capture = AttentionCapture(model, 1)
    with pytest.raises(CaptureError, match="is not the one its queries and keys give"):
        settle(capture.verify(run(capture, model, input_ids=random_ids()), 0, 0, LENGTH))
