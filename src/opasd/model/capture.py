"""The queries and keys of a model's last attention layers, captured while the model runs its own fast attention.

Every model of transformers asks a registry for its attention function by name. Within a capture, that name answers with
a wrapper (`registry`): it runs the model's own function, and keeps the queries and keys of the chosen modules, after
normalisation and rotary embedding and with key heads not repeated. A probe forward shows which modules come last, so
hybrid models need no special case.

The captured layers are left out of gradient checkpointing, because the loss differentiates their activations.

Shapes: B sequences, H query heads, K key heads, T positions, D head size.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from opasd.errors import CaptureError
from opasd.losses.attention import attention_heads
from opasd.losses.inputs import LayerAttention, LayerBatch, Span
from opasd.model.registry import attention_registries, configurations, replaced
from opasd.model.unwrap import model_type, unwrap

Observer = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor, dict[str, Any]], None]


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
    """`with capture: model(...)` leaves the last `num_layers` attention layers in `capture.layers`, deepest last."""

    def __init__(self, model: nn.Module, num_layers: int = 1) -> None:
        self.model = model
        if any("_orig_mod" in name for name, _ in model.named_modules()):
            raise CaptureError(
                "attention cannot be captured in a model wrapped by torch.compile; give it as it was before"
            )
        refuse_reentrant_checkpointing(model)
        modules = attention_modules(model)
        self.is_hybrid = len(modules) < unwrap(model).config.get_text_config().num_hidden_layers
        if len(modules) < num_layers:
            raise CaptureError(
                f"objective.attention.layers is {num_layers}, but the {model_type(model)} model has {len(modules)} "
                "attention layers; set it to at most that"
            )
        self.modules = modules[len(modules) - num_layers :]
        self._checkpointed = [_checkpointed_ancestor(model, module) for module in self.modules]
        self._captured: dict[nn.Module, CapturedLayer] = {}
        self._stack = ExitStack()

    @property
    def layers(self) -> list[CapturedLayer]:
        missing = [module for module in self.modules if module not in self._captured]
        if missing:
            raise CaptureError(
                f"the {model_type(self.model)} model did not run {len(missing)} of its captured attention layers "
                "through transformers' attention interface; its attention cannot be captured"
            )
        return [self._captured[module] for module in self.modules]

    def __enter__(self) -> Self:
        self._captured.clear()
        refuse_reentrant_checkpointing(self.model)
        with ExitStack() as stack:
            stack.enter_context(_observed(self.model, self._keep))
            for layer in self._checkpointed:
                if layer is not None and layer.gradient_checkpointing:
                    layer.gradient_checkpointing = False
                    stack.callback(setattr, layer, "gradient_checkpointing", True)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        if error is None and torch.is_grad_enabled() and any(p.requires_grad for p in self.model.parameters()):
            for layer in self.layers:
                if not (layer.layer.query_BHND.requires_grad or layer.layer.key_BKND.requires_grad):
                    raise CaptureError(
                        f"no gradient reaches the queries and keys of the {model_type(self.model)} model's captured "
                        "attention layer, so the attention loss would train nothing; let LoRA target q_proj or k_proj"
                    )

    def clear(self) -> None:
        """Let go of the captured tensors."""
        self._captured.clear()

    def _keep(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, output: Tensor, kwargs: dict[str, Any]
    ) -> None:
        if module not in self.modules:
            return
        if query.shape[2] != key.shape[2]:
            raise CaptureError(
                f"expected a forward without a key-value cache, got {key.shape[2]} keys for {query.shape[2]} queries; "
                "call the model with use_cache=False"
            )
        sinks_H = kwargs.get("s_aux")  # a weight, and a teacher's weights are swapped out again
        layer = LayerBatch(
            query,
            key,
            (),
            float(kwargs.get("scaling") or query.shape[-1] ** -0.5),
            kwargs.get("sliding_window"),
            kwargs.get("softcap"),
            sinks_H if sinks_H is None or torch.is_grad_enabled() else sinks_H.detach(),
        )
        self._captured[module] = CapturedLayer(layer, (value.detach(), output.detach()))

    def verify(self, row: int, start: int, stop: int) -> "list[Check]":
        """Compare the captured attention of a sequence's last position with the model's own output there.

        This makes the capture safe for any model: an unknown mask, bias or cap shows as a difference.
        """
        implementation = unwrap(self.model).config._attn_implementation
        checks = []
        for layer in self.layers:
            value_BKTD, output_BTHD = layer.evidence
            last = stop - start - 1
            role = layer.batch([(row, start, stop)]).detach().sequence(0, slice(last, last + 1))
            heads_HTS = attention_heads(role, torch.full((1,), last, device=role.query_HTD.device))
            repeats = heads_HTS.shape[0] // value_BKTD.shape[1]
            value_HSD = value_BKTD[row, :, start:stop].to(heads_HTS.dtype).repeat_interleave(repeats, 0)
            error = _relative_error(output_BTHD[row, stop - 1], (heads_HTS @ value_HSD)[:, 0])
            message = (
                f"the {model_type(self.model)} model's attention under attn_implementation={implementation!r} is not "
                "the one its queries and keys give (off by {error} of its size); try attn_implementation='eager', "
                "and if that fails too this model type is not supported"
            )
            checks.append(Check(error, _limit(output_BTHD, role, eager=implementation == "eager"), message))
        return checks


@dataclass(frozen=True)
class Check:
    """A comparison that the device makes while the host continues."""

    error: Tensor
    limit: Tensor
    message: str
    """The text of the CaptureError if the error exceeds the limit; `{error}` is replaced by it."""


def settle(checks: Sequence[Check]) -> None:
    """Wait for all comparisons at once; raise the first bad one."""
    if not checks:
        return
    numbers = torch.stack([number.double() for check in checks for number in (check.error, check.limit)])
    for check, (error, limit) in zip(checks, numbers.view(-1, 2).tolist(), strict=True):
        if error > limit:
            raise CaptureError(check.message.replace("{error}", f"{error:.1e}"))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return ‖actual − expected‖ / ‖expected‖, or 0 if `actual` is not finite: the loss reports that."""
    return float(_relative_error(actual, expected))


def _relative_error(actual: Tensor, expected: Tensor) -> Tensor:
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
    unit = tolerance(output) if eager else 2 * torch.finfo(torch.float32).eps
    return tolerance(output) + unit * _largest_score(role)


def _largest_score(role: LayerAttention) -> Tensor:
    query_KRD = role.query_HTD.unflatten(0, (role.key_KSD.shape[0], -1)).flatten(1, 2)
    return role.scaling * (query_KRD.float() @ role.key_KSD.float().transpose(1, 2)).abs().max()


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Return a model's attention modules in the order in which a forward of two tokens runs them."""
    seen: list[nn.Module] = []

    def observe(module: nn.Module, *_: object) -> None:
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


def refuse_reentrant_checkpointing(model: nn.Module) -> None:
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


def _checkpointed_ancestor(model: nn.Module, target: nn.Module) -> GradientCheckpointingLayer | None:
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and any(child is target for child in module.modules()):
            return module
    return None


@contextmanager
def _observed(model: nn.Module, observe: Observer) -> Iterator[None]:
    """Within the block, `observe` sees every call of an attention function of this model, with its output."""
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
                observe(module, query, key, value, output, kwargs)
            return result

        return attention

    with ExitStack() as stack:
        for registry in attention_registries(model):
            for name in implementations:
                stack.enter_context(replaced(registry._local_mapping, name, wrapped(registry.get(name))))
        yield
