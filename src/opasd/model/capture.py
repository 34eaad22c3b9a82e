"""The queries and keys of a model's last attention layers, taken while the model runs its own fast attention.

Every model of transformers asks a registry for its attention function by name. While a capture is entered, that name
answers with a wrapper that notes the queries and keys of the chosen modules (after normalisation and rotary embedding,
key heads not repeated) and then does what the model would have done. The name stays the same, so masks, kernels and
caches do too. Which modules are the last ones is observed in a probe forward, so hybrid stacks need no special case.

The captured layers are left out of gradient checkpointing: their activations are what the loss differentiates.

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
from transformers import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from opasd.errors import CaptureError
from opasd.losses.attention import attention_heads
from opasd.losses.inputs import LayerAttention, LayerBatch
from opasd.model.unwrap import model_type, unwrap

Place = tuple[int, int, int]
"""A sequence's row of the batch, and where in it the sequence begins and ends."""
Observer = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor, dict[str, Any]], None]


@dataclass(frozen=True)
class CapturedLayer:
    """One forward of one attention layer, for the whole batch."""

    layer: LayerBatch
    """Queries and keys of all positions; it does not know yet where sequences stand."""
    evidence: tuple[Tensor, Tensor]
    """Values [B, K, T, D] and the layer's output [B, T, H, D] without dropout, to verify the capture on."""

    def batch(self, places: Sequence[Place]) -> LayerBatch:
        """The layer with the sequences' places in it."""
        return replace(self.layer, spans=tuple(places))


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
                f"the last {num_layers} attention layers were asked for, but the {model_type(model)} model has "
                f"{len(modules)}; set objective.attention.layers to at most that"
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
            stack.enter_context(_observed(self.model, self._note))
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

    def _note(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, output: Tensor, kwargs: dict[str, Any]
    ) -> None:
        if module not in self.modules:
            return
        if query.shape[2] != key.shape[2]:
            raise CaptureError(
                f"expected a forward without a key-value cache, got {key.shape[2]} keys for {query.shape[2]} queries; "
                "call the model with use_cache=False"
            )
        sinks_H = kwargs.get("s_aux")  # a weight: a teacher's is only swapped in while it judges
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
        """Whether the captured attention of a sequence's last position gives what the model computed there.

        This is what makes the capture model-generic: a mask, bias or cap it does not know of cannot go unnoticed.
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
            found_HD, expected_HD = output_BTHD[row, stop - 1], (heads_HTS @ value_HSD)[:, 0]
            error = _relative_error(found_HD, expected_HD)
            message = (
                f"the {model_type(self.model)} model's attention under attn_implementation={implementation!r} is not "
                "the one its queries and keys give (off by {error} of its size); try attn_implementation='eager', "
                "and if that fails too this model type is not supported"
            )
            checks.append(Check(error, _limit(output_BTHD, role, eager=implementation == "eager"), message))
        return checks


@dataclass(frozen=True)
class Check:
    """A comparison that the device makes while the host goes on."""

    error: Tensor
    limit: Tensor
    message: str
    """What is wrong where the error is over the limit; `{error}` stands for it."""


def settle(checks: Sequence[Check]) -> None:
    """Wait for the device's verdicts, all at once; the first bad one is an error."""
    if not checks:
        return
    numbers = torch.stack([number.double() for check in checks for number in (check.error, check.limit)])
    for check, (error, limit) in zip(checks, numbers.view(-1, 2).tolist(), strict=True):
        if error > limit:
            raise CaptureError(check.message.replace("{error}", f"{error:.1e}"))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖; 0 where the model's own numbers are not finite, which is told elsewhere."""
    return float(_relative_error(found, expected))


def _relative_error(found: Tensor, expected: Tensor) -> Tensor:
    found = found.to(expected.dtype)
    error = (found - expected).norm() / expected.norm().clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(found.isfinite().all(), error, 0.0)


def tolerance(tensor: Tensor) -> float:
    """How far two right computations of a tensor may be apart, relative to its size."""
    eps = max(torch.finfo(tensor.dtype).eps, torch.finfo(torch.float32).eps)  # models sum in float32 at best
    if tensor.dtype == torch.float32 and tensor.is_cuda and torch.get_float32_matmul_precision() != "highest":
        return 4e-3  # TensorFloat-32
    return (4 if tensor.dtype.itemsize < 4 else 64) * eps


def _limit(output: Tensor, role: LayerAttention, *, eager: bool) -> Tensor:
    """How far an attention layer's output may be from what its queries and keys give, relative to its size.

    Scores are rounded to the model's format by eager attention and to float32 by the others, and the rows are off by as
    much as the largest ones are: Qwen2.5's first layer has scores above a thousand."""
    unit = tolerance(output) if eager else 2 * torch.finfo(torch.float32).eps
    return tolerance(output) + unit * _largest_score(role)


def _largest_score(role: LayerAttention) -> Tensor:
    query_KRD = role.query_HTD.unflatten(0, (role.key_KSD.shape[0], -1)).flatten(1, 2)
    return role.scaling * (query_KRD.float() @ role.key_KSD.float().transpose(1, 2)).abs().max()


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The attention modules of a model in the order in which a probe forward of two tokens runs them."""
    seen: list[nn.Module] = []

    def note(module: nn.Module, *_: object) -> None:
        if module not in seen:
            seen.append(module)

    device = next(model.parameters()).device
    with torch.no_grad(), _observed(model, note):
        model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device), use_cache=False)
    if not seen:
        raise CaptureError(
            f"the {model_type(model)} model runs no attention layer through transformers' attention interface, so its "
            "attention cannot be captured; set objective.attention_weight to 0 to train without it"
        )
    return seen


def refuse_reentrant_checkpointing(model: nn.Module) -> None:
    """Reentrant checkpointing runs the forward without a graph: what is captured in it has no gradient."""
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


def _registries(model: nn.Module) -> list[AttentionInterface]:
    """The registries a model's code asks: nearly always the one all models share."""
    found = {id(ALL_ATTENTION_FUNCTIONS): ALL_ATTENTION_FUNCTIONS}
    for name in {type(module).__module__ for module in model.modules()}:
        registry = getattr(sys.modules.get(name), "ALL_ATTENTION_FUNCTIONS", None)
        if isinstance(registry, AttentionInterface):
            found[id(registry)] = registry
    return list(found.values())


@contextmanager
def _observed(model: nn.Module, note: Observer) -> Iterator[None]:
    """While entered, every call of an attention function of this model is noted after it was made."""
    mine = set(model.modules())
    configs = [getattr(module, "config", None) for module in mine]
    implementations = {c._attn_implementation or "eager" for c in configs if isinstance(c, PreTrainedConfig)}

    def wrapped(function: Callable[..., Any] | None) -> Callable[..., Any]:
        def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
            run = function or sys.modules[type(module).__module__].eager_attention_forward
            result = run(module, query, key, value, *args, **kwargs)
            if module in mine:
                output = result[0]
                if kwargs.get("dropout"):
                    with torch.no_grad():
                        output = run(module, query, key, value, *args, **kwargs | {"dropout": 0.0})[0]
                note(module, query, key, value, output, kwargs)
            return result

        return attention

    with ExitStack() as stack:
        for registry in _registries(model):
            for name in implementations:
                local = registry._local_mapping
                if name in local:
                    stack.callback(local.__setitem__, name, local[name])
                else:
                    stack.callback(local.pop, name, None)
                local[name] = wrapped(registry.get(name))
        yield
