"""The queries and keys of some of a model's attention layers, captured while the model runs its own fast attention.

Every model of transformers looks its attention function up in a registry. During a capture, the registry holds a
wrapper: it runs the model's own function, and keeps the queries and keys of the chosen modules, after normalisation and
rotary embedding and with key heads not repeated. A trial forward shows the modules in order, so hybrid models need no
special case.

The captured layers are left out of gradient checkpointing, because the loss differentiates their activations.

Shapes: B sequences, H query heads, K key heads, T positions, D head size.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from opasd.choices import Layers, layer_numbers
from opasd.errors import CaptureError
from opasd.losses.attention import attention_heads
from opasd.losses.inputs import LayerAttention, LayerBatch, Span
from opasd.model.registry import attention_registries, configurations, replaced
from opasd.model.unwrap import model_type, unwrap


@dataclass(frozen=True)
class CapturedLayer:
    """One forward of one attention layer, for the whole batch."""

    layer: LayerBatch
    """Queries and keys of all positions, without the spans of the sequences."""
    evidence: tuple[Tensor, Tensor]
    """Values [B, K, T, D] and the layer's output [B, T, H, D] without dropout, to verify the capture with."""

    def batch(self, spans: Sequence[Span]) -> LayerBatch:
        """Return the layer with the sequences' spans in it."""
        return replace(self.layer, spans=tuple(spans))


class AttentionCapture:
    """`with capture() as captured: model(...)` puts the chosen attention layers in `captured`, deepest last."""

    def __init__(self, model: nn.Module, layers: Layers = 1) -> None:
        self.model = model
        if any("_orig_mod" in name for name, _ in model.named_modules()):
            raise CaptureError(
                "attention cannot be captured in a model wrapped by torch.compile; give the model without the wrapper"
            )
        _refuse_reentrant_checkpointing(model)
        modules = attention_modules(model)
        self.is_hybrid = len(modules) < unwrap(model).config.get_text_config().num_hidden_layers
        self.depth = len(modules)
        """The number of the model's attention layers."""
        self.numbers = layer_numbers(layers, len(modules), f"the {model_type(model)} model")
        """The captured ones, from 0."""
        self.modules = [modules[number] for number in self.numbers]
        self._checkpointed = [
            module
            for module in model.modules()
            if isinstance(module, GradientCheckpointingLayer) and not set(self.modules).isdisjoint(module.modules())
        ]

    @contextmanager
    def __call__(self) -> Iterator[list[CapturedLayer]]:
        """Capture the forward in the block; the list is filled when the block ends."""
        _refuse_reentrant_checkpointing(self.model)
        captured: dict[nn.Module, CapturedLayer] = {}
        layers: list[CapturedLayer] = []

        def keep(module: nn.Module, *tensors: Tensor, options: dict[str, Any]) -> None:
            if module in self.modules:
                captured[module] = _captured_layer(*tensors, options=options)

        with ExitStack() as stack:
            stack.enter_context(_observed(self.model, keep))
            for layer in self._checkpointed:
                if layer.gradient_checkpointing:
                    layer.gradient_checkpointing = False
                    stack.callback(setattr, layer, "gradient_checkpointing", True)
            yield layers
        if missing := [module for module in self.modules if module not in captured]:
            raise CaptureError(
                f"the {model_type(self.model)} model did not run {len(missing)} of its captured attention layers "
                "through transformers' attention interface; its attention cannot be captured"
            )
        layers += [captured[module] for module in self.modules]
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.model.parameters()):
            batches = [layer.layer for layer in layers]
            if not all(batch.query_BHND.requires_grad or batch.key_BKND.requires_grad for batch in batches):
                raise CaptureError(
                    f"no gradient reaches the queries and keys of the {model_type(self.model)} model's captured "
                    "attention layer, so the attention loss would train nothing; let LoRA target q_proj or k_proj"
                )

    def verify(self, layers: Sequence[CapturedLayer], row: int, start: int, stop: int) -> "list[Check]":
        """Compare the captured attention at a sequence's last and middle positions with the model's own output there.

        This makes the capture safe for any model: an unknown mask, bias or cap shows as a difference. The last position
        sees all others, so a model that also looks ahead shows in the middle alone.
        """
        implementation = unwrap(self.model).config._attn_implementation
        message = (
            f"the {model_type(self.model)} model's attention under attn_implementation={implementation!r} is not "
            "the one its queries and keys give (off by {error} of its size); try attn_implementation='eager', "
            "and if that fails too this model type is not supported"
        )
        checks = []
        for layer in layers:
            value_BKTD, output_BTHD = layer.evidence
            last = stop - start - 1
            for position in dict.fromkeys((last, last // 2)):
                role = layer.batch([(row, start, stop)]).detach().sequence(0, slice(position, position + 1))
                heads_HTS = attention_heads(role, torch.full((1,), position, device=role.query_HTD.device))
                repeats = heads_HTS.shape[0] // value_BKTD.shape[1]
                value_HSD = value_BKTD[row, :, start:stop].to(heads_HTS.dtype).repeat_interleave(repeats, 0)
                error = relative_error(output_BTHD[row, start + position], (heads_HTS @ value_HSD)[:, 0])
                checks.append(Check(error, _limit(output_BTHD, role, eager=implementation == "eager"), message))
        return checks


def _captured_layer(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, *, options: dict[str, Any]
) -> CapturedLayer:
    """Return what an attention function was called with and gave, as a layer of the loss."""
    if query.shape[2] != key.shape[2]:
        raise CaptureError(
            f"expected a forward without a key-value cache, got {key.shape[2]} keys for {query.shape[2]} queries; "
            "call the model with use_cache=False"
        )
    scaling = float(options.get("scaling") or query.shape[-1] ** -0.5)
    sinks_H = options.get("s_aux")
    if sinks_H is not None and not torch.is_grad_enabled():
        sinks_H = sinks_H.detach()  # a weight of this moment: the teacher's weights are swapped out again
    layer = LayerBatch(query, key, (), scaling, options.get("sliding_window"), options.get("softcap"), sinks_H)
    return CapturedLayer(layer, (value.detach(), output.detach()))


class Check(NamedTuple):
    """A comparison that the device makes while the host continues."""

    error: Tensor
    limit: Tensor
    message: str
    """The text of the CaptureError if the error exceeds the limit; `{error}` is replaced by the number."""


def settle(checks: Sequence[Check]) -> None:
    """Wait for all comparisons at once; raise the first bad one."""
    if not checks:
        return
    numbers = torch.stack([number.double() for check in checks for number in (check.error, check.limit)])
    for check, (error, limit) in zip(checks, numbers.view(-1, 2).tolist(), strict=True):
        if error > limit:
            raise CaptureError(check.message.replace("{error}", f"{error:.1e}"))


def relative_error(actual: Tensor, expected: Tensor) -> Tensor:
    """Return ‖actual − expected‖ / ‖expected‖, or 0 if `actual` is not finite: the loss reports that."""
    actual = actual.to(expected.dtype)
    error = (actual - expected).norm() / expected.norm().clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(actual.isfinite().all(), error, 0.0)


def tolerance(tensor: Tensor) -> float:
    """Return how far two right computations of a tensor may differ, relative to its size."""
    eps = max(torch.finfo(tensor.dtype).eps, torch.finfo(torch.float32).eps)  # models sum in float32 at best
    if tensor.dtype == torch.float32 and tensor.is_cuda and torch.get_float32_matmul_precision() != "highest":
        return 4e-3  # TensorFloat-32
    return (4 if tensor.dtype.itemsize < 4 else 64) * eps


def _limit(output: Tensor, role: LayerAttention, *, eager: bool) -> Tensor:
    """Return how far an attention layer's output may differ from what its queries and keys give, relative to its size.

    Eager attention rounds scores to the model's format, the others to float32, and a row's error grows with its largest
    score: Qwen2.5's first layer has scores above a thousand.
    """
    query_KRD = role.query_HTD.unflatten(0, (role.key_KSD.shape[0], -1)).flatten(1, 2)
    largest_score = role.scaling * (query_KRD.float() @ role.key_KSD.float().transpose(1, 2)).abs().max()
    unit = tolerance(output) if eager else 2 * torch.finfo(torch.float32).eps
    return tolerance(output) + unit * largest_score


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Return a model's attention modules in the order in which a forward of two tokens runs them."""
    seen: list[nn.Module] = []

    def observe(module: nn.Module, *_: object, **__: object) -> None:
        if module not in seen:
            seen.append(module)

    device = next(model.parameters()).device
    with torch.no_grad(), _observed(model, observe):
        model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device), use_cache=False)
    if not seen:
        raise CaptureError(
            f"the {model_type(model)} model runs no attention layer through transformers' attention interface, so its "
            "attention cannot be captured; set objective.attention_weight to 0 to train without it"
        )
    return seen


def _refuse_reentrant_checkpointing(model: nn.Module) -> None:
    """Refuse reentrant checkpointing: its forward runs without a graph, so a captured tensor has no gradient."""
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing:
            function = getattr(module, "_gradient_checkpointing_func", None)
            if isinstance(function, functools.partial) and function.keywords.get("use_reentrant", True):
                raise CaptureError(
                    "gradient checkpointing is on without use_reentrant=False; with use_reentrant=True the captured "
                    "queries and keys get no gradient; use gradient_checkpointing_kwargs={'use_reentrant': False}"
                )
            return


@contextmanager
def _observed(model: nn.Module, observe: Callable[..., None]) -> Iterator[None]:
    """Within the block, call `observe(module, query, key, value, output, options=…)` after each attention function."""
    modules = set(model.modules())
    implementations = {config._attn_implementation or "eager" for config in configurations(model)}

    def wrapped(function: Callable[..., Any] | None) -> Callable[..., Any]:
        def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
            run = function or sys.modules[type(module).__module__].eager_attention_forward
            result = run(module, query, key, value, *args, **kwargs)
            if module in modules:
                output = result[0]
                if kwargs.get("dropout"):
                    with torch.no_grad():
                        output = run(module, query, key, value, *args, **kwargs | {"dropout": 0.0})[0]
                observe(module, query, key, value, output, options=kwargs)
            return result

        return attention

    with ExitStack() as stack:
        for registry in attention_registries(model):
            for name in implementations:
                stack.enter_context(replaced(registry._local_mapping, name, wrapped(registry.get(name))))
        yield
