"""LoRA layers that are fast in a training step: three matrix products forward, no small kernels between them.

PEFT's own layer casts its input to the adapter's float32, multiplies, scales, adds and casts back: a dozen passes over
activations for two thin products. In half precision on a GPU these layers compute

    y = x Wᵀ + (x Aᵀ)(s·B)ᵀ        with A and s·B rounded to x's format once an optimizer step

instead, and the gradients of A and B in float32. Everywhere else, and for every variant of LoRA that does more than
this, they run PEFT's code.

Shapes: N tokens, I inputs, O outputs, R rank.
"""

from typing import Any

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from opasd.model.sharding import in_zero3


def speed_up(model: nn.Module) -> "list[FusedLinear]":
    """Let a model's plain LoRA layers run as above if they can; return them."""
    layers = [module for module in model.modules() if type(module) is Linear]
    for layer in layers:
        layer.__class__ = FusedLinear
    return [layer for layer in layers if isinstance(layer, FusedLinear)]


class FusedLinear(Linear):
    """PEFT's LoRA layer with a faster forward."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.disable_adapters or args or kwargs or not self.fits(x):
            return super().forward(x, *args, **kwargs)
        name = self.active_adapters[0]
        base = self.get_base_layer()
        a, b, scaling = self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name]
        assert isinstance(a, Tensor)
        assert isinstance(b, Tensor)
        y = LoraProduct.apply(x, base.weight, base.bias, a, b, scaling, *self.rounded(x.dtype, a, b, scaling))
        assert isinstance(y, Tensor)
        return y

    def fits(self, x: Tensor) -> bool:
        """Return whether the faster forward computes all that this layer does with `x`."""
        base, names = self.get_base_layer(), self.active_adapters
        if not (x.is_cuda and x.dtype.itemsize == 2 and type(base) is nn.Linear and base.weight.dtype == x.dtype):
            return False
        if len(names) != 1 or names[0] not in self.lora_A or self.merged or names[0] in self.lora_variant:
            return False
        name = names[0]
        return (
            isinstance(self.lora_dropout[name], nn.Identity)
            and self.lora_B[name].bias is None
            and not in_zero3(base.weight)  # which the layers' own forwards gather
            and not base.weight.requires_grad
            and not (base.bias is not None and base.bias.requires_grad)
        )

    def rounded(self, dtype: torch.dtype, a: Tensor, b: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Return A and s·B in the activations' format; they are rounded again only after a weight has changed."""
        state = (dtype, scaling, *((p.data_ptr(), p._version) for p in (a, b)))
        cache = vars(self)  # past nn.Module.__setattr__
        if cache.get("_rounded_state") != state:
            with torch.inference_mode(False):  # a student may differentiate through what its live teacher made
                cache["_rounded_pair"] = (a.detach().to(dtype), (b.detach() * scaling).to(dtype))
            cache["_rounded_state"] = state
        return cache["_rounded_pair"]

    def forget_rounded(self) -> None:
        """Round the weights again at the next forward: fused optimizers change them without a trace for autograd."""
        vars(self).pop("_rounded_state", None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_rounded_")}


class LoraProduct(torch.autograd.Function):
    """x Wᵀ + bias + (x Aᵀ)(s·B)ᵀ, given A and s·B in x's format beside the trained A and B."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        a_RI: Tensor,
        b_OR: Tensor,
        scaling: float,
        rounded_RI: Tensor,
        rounded_OR: Tensor,
    ) -> Tensor:
        x_NI = x.reshape(-1, x.shape[-1])
        thin_NR = x_NI @ rounded_RI.T
        y_NO = nn.functional.linear(x_NI, weight_OI, bias_O)
        y_NO.addmm_(thin_NR, rounded_OR.T)
        ctx.save_for_backward(x_NI, thin_NR, weight_OI, rounded_RI, rounded_OR)
        ctx.scaling, ctx.shape, ctx.dtypes = scaling, x.shape, (a_RI.dtype, b_OR.dtype)
        return y_NO.view(*x.shape[:-1], weight_OI.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x_NI, thin_NR, weight_OI, rounded_RI, rounded_OR = ctx.saved_tensors
        grad_NO = grad_outputs[0].reshape(-1, weight_OI.shape[0])
        grad_thin_NR = grad_NO @ rounded_OR
        grad_x = grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad_NO @ weight_OI).addmm_(grad_thin_NR, rounded_RI).view(ctx.shape)
        if ctx.needs_input_grad[3]:
            grad_a = _wide_product(grad_thin_NR.T, x_NI).to(ctx.dtypes[0])
        if ctx.needs_input_grad[4]:
            grad_b = (_wide_product(grad_NO.T, thin_NR) * ctx.scaling).to(ctx.dtypes[1])
        return grad_x, None, None, grad_a, grad_b, *(None,) * 3


def _wide_product(left: Tensor, right: Tensor) -> Tensor:
    """Return a matrix product that is not rounded to its operands' half precision."""
    if left.is_cuda and left.dtype.itemsize == 2:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left @ right
