"""One forward for a role: the hidden states that predict a rollout's tokens, and its attention.

The model is called whole, through whatever wraps it (PEFT, data parallelism), so that its hooks run; logits are asked
for one position only. Its final hidden states and, if wanted, its last layers' queries and keys are noted on the way.

Sequences share a forward in one of three layouts, none of which needs a padding mask:

    padded    right-padded: a causal model never looks at what comes after, so the padding changes nothing before it
    packed    one long row and variable-length attention (`varlen`): no padding; not for stacks with a recurrent state
    single    one forward for each sequence

Shapes: B rows of a forward, N positions of a row, T tokens of a rollout, E hidden size.
"""

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_masks_for_generate

from opasd.choices import LayoutChoice, Query, Role
from opasd.device import send, short_of_memory
from opasd.errors import CaptureError, ConfigError
from opasd.losses.inputs import LayerAttention, LayerBatch
from opasd.losses.token import OutputHead
from opasd.model import varlen
from opasd.model.capture import AttentionCapture, Check, Place, relative_error, settle, tolerance
from opasd.model.unwrap import model_type, unwrap
from opasd.prompts.rollout import Rollout

Layout = Literal["padded", "packed", "single"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scores:
    """What one role says of one rollout."""

    hidden_TE: Tensor
    """Final hidden states at the positions that predict the rollout's tokens."""
    layers: tuple[LayerAttention, ...]
    """The captured attention layers; empty where no attention was asked for."""
    query: Query
    """Whose attention rows these are."""


@dataclass(frozen=True)
class ScoreBatch(Sequence[Scores]):
    """What one role says of the rollouts of one forward: their `Scores` in order, and all of them at once."""

    hidden_BNE: Tensor
    layers: tuple[LayerBatch, ...]
    places: tuple[Place, ...]
    starts: tuple[int, ...]
    """Where in its sequence each rollout's first token stands."""
    query: Query

    @property
    def hidden_TE(self) -> Tensor:
        """The hidden states that predict all rollouts' tokens, one rollout after another."""
        width = self.hidden_BNE.shape[1]
        rows = [
            torch.arange(row * width + begin + start - 1, row * width + end - 1)
            for (row, begin, end), start in zip(self.places, self.starts, strict=True)
        ]
        index_T = torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)
        return self.hidden_BNE.flatten(0, 1).index_select(0, send(index_T, self.hidden_BNE.device))

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Scores: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scores]: ...
    def __getitem__(self, index: int | slice) -> Scores | list[Scores]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        index = range(len(self))[index]
        (row, begin, end), start = self.places[index], self.starts[index]
        predicting = slice(start - 1, end - begin - 1)
        queries = predicting if self.query == "predicting" else slice(start, end - begin)
        layers = tuple(layer.sequence(index, queries) for layer in self.layers)
        return Scores(self.hidden_BNE[row, begin:end][predicting], layers, self.query)


class Scorer:
    """Reads one model in either role; the model is probed once, on construction.

    `layers` is how many of the last attention layers are captured; 0 captures none.
    """

    def __init__(self, model: nn.Module, layers: int = 1) -> None:
        self.model = model
        self.capture = AttentionCapture(model, layers) if layers > 0 else None
        parameters = inspect.signature(unwrap(model).forward).parameters
        self._keep_last = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._head_verified = False
        self._checks: list[Check] = []
        self._packing: list[str | None] = []

    @property
    def head(self) -> OutputHead:
        """The output head as it is now: adapters on or off, trained or not.

        Without gradients it keeps the weights of this moment: a teacher's are only swapped in while it judges."""
        head = output_head(self.model)
        return head if torch.is_grad_enabled() else head.detach()

    def __call__(
        self,
        rollouts: Sequence[Rollout],
        role: Role,
        *,
        query: Query = "predicting",
        layout: Layout = "padded",
        deferred: bool = False,
    ) -> Sequence[Scores]:
        """Scores of each rollout, in order, under the gradient mode that is on.

        What was captured is verified, which waits for the device; `deferred` leaves that to a call of `settle`."""
        scores = self._score(rollouts, role, query, layout)
        if not deferred:
            self.settle()
        return scores

    def settle(self) -> None:
        """Wait for the verdicts on all that was captured since the last time; an error if one is bad."""
        checks, self._checks = self._checks, []
        settle(checks)

    def _score(self, rollouts: Sequence[Rollout], role: Role, query: Query, layout: Layout) -> Sequence[Scores]:
        if layout == "packed" and (reason := self.cannot_pack()):
            raise ConfigError(f"{reason}; use layout: padded")
        sequences = [rollout.student_ids if role == "student" else rollout.teacher_ids for rollout in rollouts]
        starts = [len(ids) - rollout.num_tokens for ids, rollout in zip(sequences, rollouts, strict=True)]
        if layout == "single":
            return [
                score
                for ids, start in zip(sequences, starts, strict=True)
                for score in self._forward([ids], [start], query, packed=False)
            ]
        return self._forward(sequences, starts, query, packed=layout == "packed") if sequences else []

    def _forward(
        self, sequences: list[tuple[int, ...]], starts: list[int], query: Query, *, packed: bool
    ) -> ScoreBatch:
        inputs, places = pack(self.model, sequences) if packed else pad(self.model, sequences)
        hidden_BNE, last_logits_BV, precision = self._run(inputs)
        self._verify_head(hidden_BNE, last_logits_BV, precision)
        layers: tuple[LayerBatch, ...] = ()
        if self.capture is not None:
            # The longest sequence reaches furthest; the last of a packed row has the most to leave out.
            for place in dict.fromkeys((max(places, key=lambda place: place[2] - place[1]), places[-1])):
                self._checks += self.capture.verify(*place)
            layers = tuple(layer.batch(places) for layer in self.capture.layers)
            self.capture.clear()
        return ScoreBatch(hidden_BNE, layers, tuple(places), tuple(starts), query)

    def _run(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, torch.dtype]:
        """Final hidden states of all positions, the model's own logits of the last, and the precision of its head."""
        noted: list[tuple[Tensor, torch.dtype]] = []

        def note(_module: nn.Module, _args: Any, output: Any) -> None:
            kind = output[0].device.type
            autocast = torch.is_autocast_enabled(kind)
            noted.append((output[0], torch.get_autocast_dtype(kind) if autocast else output[0].dtype))

        hook = _decoder(self.model).register_forward_hook(note)
        try:
            if self.capture is None:
                output = self.model(**inputs, use_cache=False, **self._keep_last)
            else:
                with self.capture:
                    output = self.model(**inputs, use_cache=False, **self._keep_last)
        finally:
            hook.remove()
        if len(noted) != 1:
            raise CaptureError(f"the {model_type(self.model)} model ran its decoder {len(noted)} times in one forward")
        hidden_BTE, precision = noted[0]
        if hidden_BTE.shape[-1] != self.head.weight_VE.shape[1]:
            raise CaptureError(
                f"the {model_type(self.model)} model's decoder gives {hidden_BTE.shape[-1]} numbers a token and its "
                f"output head takes {self.head.weight_VE.shape[1]}; this model type is not supported"
            )
        return hidden_BTE, output.logits[:, -1], precision

    def _verify_head(self, hidden_BTE: Tensor, logits_BV: Tensor, precision: torch.dtype) -> None:
        """Check once that the output head read off the model gives the model's own logits."""
        if self._head_verified:
            return
        with torch.no_grad():
            expected_BV = self.head.logits(hidden_BTE[:, -1])
            error = relative_error(logits_BV, expected_BV)
        if error > tolerance(logits_BV.to(precision)):
            raise CaptureError(
                f"the {model_type(self.model)} model's logits are not those of its output head on its final hidden "
                f"states (off by {error:.1e} of their size); this model type is not supported"
            )
        self._head_verified = True

    def cannot_pack(self) -> str | None:
        """Why packed sequences would influence one another in this model, found out once; None if they do not."""
        if not self._packing:
            self._packing.append(self._try_packing())
        return self._packing[0]

    def _try_packing(self) -> str | None:
        hybrid = self.capture is not None and self.capture.is_hybrid
        # What mixes tokens with a recurrence also has a short convolution over them.
        if hybrid or any(isinstance(module, nn.Conv1d) for module in unwrap(self.model).modules()):
            return (
                f"packing is not exact for the hybrid {model_type(self.model)} model: its recurrent layers would carry "
                "one sequence's state into the next"
            )
        own = unwrap(self.model).config._attn_implementation or "eager"
        training = [module for module in self.model.modules() if module.training]
        stop = varlen.use(self.model)
        reason: str | None = "it could not be tried"
        try:
            self.model.eval()  # dropout would look like sequences that mix
            with torch.no_grad():
                reason = self._difference(own)
        finally:
            for module in training:
                module.training = True
            if reason is not None:
                stop()
        return reason

    def _difference(self, own: str) -> str | None:
        """What sets a packed sequence apart from the same one alone, if anything does."""
        first, second = tuple(range(1, 12)), tuple(range(5, 14))
        with varlen.windows() as (masked, called):
            alone, _, precision = self._run(pad(self.model, [second])[0])
        if masked - {None} != called - {None}:
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
                f"attn_implementation {own!r}"
            )
        return None


def choose_layout(scorer: Scorer, wanted: LayoutChoice, *, device: torch.device, half: bool) -> Layout:
    """How rollouts share a forward under the setting `layout`; the log says why they are not packed.

    `half`: the model computes in a format of 16 bits."""
    if wanted == "padded" or (wanted == "auto" and device.type == "cpu"):
        return "padded"
    if reason := scorer.cannot_pack():
        if wanted == "packed":
            raise ConfigError(f"layout: packed, but {reason}; use layout: auto")
        _log.warning("rollouts of a micro-batch are padded to one length, not packed: %s", reason)
        return "padded"
    how = varlen.kind(scorer.model, half=half)
    level = logging.WARNING if how == varlen.ONE_BY_ONE else logging.INFO
    _log.log(level, "rollouts of a micro-batch are packed; attention: %s", how)
    return "packed"


def _decoder(model: nn.Module) -> PreTrainedModel:
    """The part of the model that ends in the hidden states its output head reads."""
    base = unwrap(model)
    for candidate in (base.base_model, base.get_decoder(), getattr(base, "model", None)):
        if isinstance(candidate, PreTrainedModel) and candidate is not base:
            return candidate
    raise CaptureError(f"the {model_type(model)} model has no decoder apart from its output head; it is not supported")


def output_head(model: nn.Module) -> OutputHead:
    """The output head of a model, with the scaling and soft cap its family applies to logits."""
    base = unwrap(model)
    linear = base.get_output_embeddings()
    if isinstance(linear, BaseTunerLayer):
        raise CaptureError(
            "the output head has an adapter, which the token loss does not see; leave lm_head out of LoRA's "
            "target_modules, or name it in modules_to_save to train it whole"
        )
    weight = getattr(linear, "weight", None)
    if not isinstance(weight, Tensor):
        raise CaptureError(f"the {model_type(model)} model has no output head to read logits from")
    config = base.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0
    return OutputHead(
        weight,
        getattr(linear, "bias", None),
        scale / (getattr(config, "logits_scaling", None) or 1.0),
        getattr(config, "final_logit_softcapping", None),
    )


def pad(model: nn.Module, sequences: Sequence[Sequence[int]]) -> tuple[dict[str, Any], list[Place]]:
    """The model's inputs for sequences padded on the right, and where each is."""
    ids = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    places = [(row, 0, len(sequence)) for row, sequence in enumerate(sequences)]
    return {"input_ids": send(ids, unwrap(model).device)}, places


def pack(model: nn.Module, sequences: Sequence[Sequence[int]]) -> tuple[dict[str, Any], list[Place]]:
    """The model's inputs for sequences one after another in one row, and where each is."""
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
