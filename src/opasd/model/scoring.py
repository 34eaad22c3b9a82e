"""One forward for a role: the hidden states that predict the rollouts' tokens, and the role's attention.

The whole model is called, through PEFT and data parallelism, so that its hooks run. It computes logits of one position
only. A hook keeps its final hidden states, and a capture the queries and keys of some layers.

Sequences share a forward in one of two layouts, and neither needs a padding mask:

    padded    right-padded: a causal model never looks ahead, so padding changes nothing before it
    packed    one long row and variable-length attention (`varlen`): no padding; not for models with a recurrent state

Shapes: B rows of a forward, N positions of a row, T tokens of a rollout, E hidden size.
"""

import functools
import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_masks_for_generate

from opasd.choices import Layers, LayoutChoice, Query, Role
from opasd.device import send, short_of_memory
from opasd.errors import CaptureError, ConfigError
from opasd.losses.inputs import OutputHead, ScoreBatch, Span
from opasd.model import varlen
from opasd.model.capture import AttentionCapture, CapturedLayer, Check, relative_error, settle, tolerance
from opasd.model.offload import offloaded
from opasd.model.sharding import shards, whole
from opasd.model.unwrap import model_type, unwrap
from opasd.prompts.rollout import Rollout

Layout = Literal["padded", "packed"]
_SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Names that families give to the largest absolute logit."""
_log = logging.getLogger(__name__)


class Scorer:
    """Read one model in either role.

    `layers` are the attention layers to capture, as in the configuration; with 0 there are none.
    """

    def __init__(
        self, model: nn.Module, layers: Layers = 1, *, offload: bool = False, swaps_in_place: bool = False
    ) -> None:
        """`offload`: keep what a forward saves for its backward in the host's memory. `swaps_in_place`: a teacher's
        weights lie where the student's do, so its output head must be copied."""
        self.model = model
        self._swaps_in_place = swaps_in_place
        self._offload = offload
        self.capture = AttentionCapture(model, layers) if layers != 0 else None
        parameters = inspect.signature(unwrap(model).forward).parameters
        self._keep_last = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._head_verified = False
        self._checks: list[Check] = []

    def __call__(
        self,
        rollouts: Sequence[Rollout],
        role: Role,
        *,
        query: Query = "predicting",
        layout: Layout = "padded",
        attention: bool = True,
        deferred: bool = False,
    ) -> ScoreBatch:
        """Return the scores of the rollouts, with gradients if they are enabled; without `attention`, no layers.

        Each capture is verified, which waits for the device; `deferred` leaves that to a later call of `settle`.
        """
        if not rollouts:
            raise ValueError("there are no rollouts to score")
        if layout == "packed" and (reason := self.packing_obstacle):
            raise ConfigError(f"{reason}; use layout: padded")
        sequences = [rollout.student_ids if role == "student" else rollout.teacher_ids for rollout in rollouts]
        starts = tuple(len(ids) - rollout.num_tokens for ids, rollout in zip(sequences, rollouts, strict=True))
        inputs, spans = (pack if layout == "packed" else pad)(self.model, sequences)
        hidden_BNE, last_logits_BV, precision, captured = self._run(inputs, attention=attention)
        head = output_head(self.model)  # after the forward, in which FSDP puts the whole weights in their place
        if not torch.is_grad_enabled():
            head = head.detach()  # of the weights of this moment: a teacher's are swapped out again
            if self._swaps_in_place or shards(self.model):  # the student's weights will use the same memory
                bias_V = None if head.bias_V is None else head.bias_V.clone()
                head = replace(head, weight_VE=head.weight_VE.clone(), bias_V=bias_V)
        self._verify_head(head, hidden_BNE, last_logits_BV, precision)
        if captured and self.capture is not None:
            # The longest sequence reaches furthest; the last one of a packed row must ignore the most.
            for span in dict.fromkeys((max(spans, key=lambda span: span[2] - span[1]), spans[-1])):
                self._checks += self.capture.verify(captured, *span)
        if not deferred:
            self.settle()
        layers = tuple(layer.batch(spans) for layer in captured)
        return ScoreBatch(hidden_BNE, layers, head, tuple(spans), starts, query)

    def settle(self) -> None:
        """Wait for the verdicts on all captures since the last call; raise an error if one is bad."""
        checks, self._checks = self._checks, []
        settle(checks)

    def _run(
        self, inputs: dict[str, Any], *, attention: bool = True
    ) -> tuple[Tensor, Tensor, torch.dtype, list[CapturedLayer]]:
        """Return the hidden states of all positions, the last logits, the head's precision and the captured layers."""
        decoders = _decoders(self.model)
        outputs: dict[nn.Module, list[tuple[Tensor, torch.dtype]]] = {decoder: [] for decoder in decoders}

        def keep(module: nn.Module, _args: Any, output: Any) -> None:
            kind = output[0].device.type
            autocast = torch.is_autocast_enabled(kind)
            outputs[module].append((output[0], torch.get_autocast_dtype(kind) if autocast else output[0].dtype))

        with ExitStack() as stack:
            for decoder in decoders:
                stack.callback(decoder.register_forward_hook(keep).remove)
            captured = stack.enter_context(self.capture() if self.capture and attention else nullcontext([]))
            if self._offload and torch.is_grad_enabled():
                stack.enter_context(offloaded())
            output = self.model(**inputs, use_cache=False, **self._keep_last)
        # Some families (OPT, BART) call the inner part and never the one around it.
        runs = next(filter(None, outputs.values()), [])
        if len(runs) != 1:
            raise CaptureError(
                f"the {model_type(self.model)} model ran its decoder {len(runs)} times in one forward, so its final "
                "hidden states are unknown; this model type is not supported"
            )
        hidden_BNE, precision = runs[0]
        return hidden_BNE, output.logits[:, -1], precision, captured

    @torch.no_grad()
    def check_causal(self) -> None:
        """Refuse a model in which a token changes what comes before it; two rows differ in their last token alone."""
        ids = [(1, 0, 1, 0, 0, 0), (1, 0, 1, 0, 0, 1)]
        with evaluating(self.model):
            hidden_BNE, *_ = self._run(pad(self.model, ids)[0])
        first, second = hidden_BNE[:, :-1].float()
        if relative_error(first, second) > tolerance(hidden_BNE):
            raise CaptureError(
                f"the {model_type(self.model)} model looks ahead: a token changes the hidden states before it, so no "
                "role can judge a rollout; use a causal language model"
            )

    @torch.no_grad()
    def next_logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """[B, V] The logits after each sequence, from one forward without a cache."""
        inputs, spans = pad(self.model, sequences)
        hidden_BNE, last_logits_BV, precision, _ = self._run(inputs)
        head = output_head(self.model).detach()
        self._verify_head(head, hidden_BNE, last_logits_BV, precision)
        rows = torch.arange(len(spans), device=hidden_BNE.device)
        ends = torch.tensor([end - 1 for _, _, end in spans], device=hidden_BNE.device)
        return head.logits(hidden_BNE[rows, ends])

    def _verify_head(self, head: OutputHead, hidden_BNE: Tensor, logits_BV: Tensor, precision: torch.dtype) -> None:
        """Check once that the output head read off the model gives the model's own logits."""
        if self._head_verified:
            return
        size, expected_size = hidden_BNE.shape[-1], head.weight_VE.shape[1]
        if size != expected_size:
            raise CaptureError(
                f"the {model_type(self.model)} model's decoder gives {size} numbers a token and its output head takes "
                f"{expected_size}; this model type is not supported"
            )
        with torch.no_grad():
            error = float(relative_error(logits_BV, head.logits(hidden_BNE[:, -1])))
        if error > tolerance(logits_BV.to(precision)):
            raise CaptureError(
                f"the {model_type(self.model)} model's logits are not those of its output head on its final hidden "
                f"states (off by {error:.1e} of their size); this model type is not supported"
            )
        self._head_verified = True

    @functools.cached_property
    def packing_obstacle(self) -> str | None:
        """Why packed sequences would influence one another in this model, or None; a trial decides."""
        hybrid = self.capture is not None and self.capture.is_hybrid
        # Layers that mix tokens with a recurrence also have a short convolution over them.
        if hybrid or any(isinstance(module, nn.Conv1d) for module in unwrap(self.model).modules()):
            return (
                f"packing is not exact for the hybrid {model_type(self.model)} model: its recurrent layers would carry "
                "one sequence's state into the next"
            )
        own_attention = unwrap(self.model).config._attn_implementation or "eager"
        restore_attention = varlen.use(self.model)
        reason: str | None = "the trial failed"
        try:
            with torch.no_grad(), evaluating(self.model):  # dropout would look like sequences that mix
                reason = self._packing_difference(own_attention)
        finally:
            if reason is not None:
                restore_attention()
        return reason

    def _packing_difference(self, own_attention: str) -> str | None:
        """Return how a packed sequence differs from the same sequence alone, or None."""
        first, second = tuple(range(1, 12)), tuple(range(5, 14))
        with varlen.observed_windows(self.model) as (in_masks, in_calls):
            alone, _, precision, _ = self._run(pad(self.model, [second])[0])
        if in_masks - {None} != in_calls - {None}:
            return (
                f"a window of the {model_type(self.model)} model's attention is in its mask alone, which packed "
                "sequences do not have"
            )
        try:
            packed, *_ = self._run(pack(self.model, [first, second])[0])
        except ConfigError as error:
            return str(error)
        except Exception as error:
            if short_of_memory(error):
                raise
            return f"the {model_type(self.model)} model takes no packed sequences ({type(error).__name__}: {error})"
        if relative_error(packed[0, len(first) :], alone[0]) > 4 * tolerance(alone.to(precision)):
            return (
                f"packed sequences influence one another in the {model_type(self.model)} model under "
                f"attn_implementation {own_attention!r}"
            )
        return None


def choose_layout(scorer: Scorer, wanted: LayoutChoice, *, device: torch.device, half: bool) -> Layout:
    """Return how rollouts share a forward under the setting `layout`; the log says why they are not packed.

    `half`: the model computes in a format of 16 bits.
    """
    if wanted == "padded" or (wanted == "auto" and device.type == "cpu"):
        return "padded"
    if reason := scorer.packing_obstacle:
        if wanted == "packed":
            raise ConfigError(f"layout: packed, but {reason}; use layout: auto")
        _log.warning("rollouts of a micro-batch are padded to one length, not packed: %s", reason)
        return "padded"
    method = varlen.method(scorer.model, half=half)
    level = logging.WARNING if method == varlen.ONE_BY_ONE else logging.INFO
    _log.log(level, "rollouts of a micro-batch are packed; attention: %s", method)
    return "packed"


def microbatches(rollouts: list[Rollout], budget: int, *, packed: bool) -> list[list[Rollout]]:
    """Group rollouts so that a group's teacher sequences, the longer ones, hold at most `budget` tokens with padding.

    Groups are ordered by length, so that little is padded. A rollout above the budget is a group of its own.
    """
    groups: list[list[Rollout]] = []
    tokens = 0
    for rollout in sorted(rollouts, key=lambda rollout: rollout.teacher_tokens):
        length = rollout.teacher_tokens
        if groups and (tokens + length if packed else (len(groups[-1]) + 1) * length) <= budget:
            groups[-1].append(rollout)
            tokens += length
        else:
            groups.append([rollout])
            tokens = length
    return groups


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the block, the model computes without dropout."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _decoders(model: nn.Module) -> list[PreTrainedModel]:
    """Return the parts of the model that may end in the hidden states its output head reads, the outermost first."""
    base = unwrap(model)
    parts = (base.base_model, base.get_decoder(), getattr(base, "model", None))
    found = [part for part in dict.fromkeys(parts) if isinstance(part, PreTrainedModel) and part is not base]
    if not found:
        raise CaptureError(
            f"the {model_type(model)} model has no decoder apart from its output head; it is not supported"
        )
    return found


def output_head(model: nn.Module) -> OutputHead:
    """Return the current output head, with the scaling and soft cap the model's family applies to logits."""
    base = unwrap(model)
    linear = base.get_output_embeddings()
    if isinstance(linear, BaseTunerLayer):
        raise CaptureError(
            "the output head has an adapter, and the token loss does not see it; leave lm_head out of LoRA's "
            "target_modules, or name it in modules_to_save to train it whole"
        )
    weight, bias = getattr(linear, "weight", None), getattr(linear, "bias", None)
    if not isinstance(weight, Tensor):
        raise CaptureError(f"the {model_type(model)} model has no output head to read logits from")
    config = base.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0
    return OutputHead(
        whole(weight),
        None if bias is None else whole(bias),
        scale / (getattr(config, "logits_scaling", None) or 1.0),
        next((cap for name in _SOFT_CAPS if (cap := getattr(config, name, None))), None),
    )


def pad(model: nn.Module, sequences: Sequence[Sequence[int]]) -> tuple[dict[str, Any], list[Span]]:
    """Return the model's inputs for sequences padded on the right, and their spans."""
    ids = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    spans = [(row, 0, len(sequence)) for row, sequence in enumerate(sequences)]
    return {"input_ids": send(ids, unwrap(model).device)}, spans


def pack(model: nn.Module, sequences: Sequence[Sequence[int]]) -> tuple[dict[str, Any], list[Span]]:
    """Return the model's inputs for sequences one after another in one row, and their spans."""
    base = unwrap(model)
    lengths = [len(sequence) for sequence in sequences]
    ids = send(np.concatenate([np.asarray(sequence, np.int64) for sequence in sequences])[None], base.device)
    positions = send(torch.cat([torch.arange(length) for length in lengths])[None], base.device)
    inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions}
    if varlen.is_used(model):
        inputs |= varlen.bounds(model, lengths)
    else:
        # Made here and not in the model: some families (gpt-oss) forget the positions when they make their masks, and
        # sequences would then see one another.
        shape_only = torch.empty(*ids.shape, 1, dtype=base.dtype, device=base.device)
        inputs["attention_mask"] = create_masks_for_generate(base.config, shape_only, None, None, positions)
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return inputs, [(0, end - length, end) for end, length in zip(ends, lengths, strict=True)]
