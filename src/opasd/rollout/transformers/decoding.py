"""Decode in slots: every step is the same for all rows at all positions, so a GPU captures it once and replays it.

A prompt is read into a free slot except for its last token. That token is the first input of the step, so the step
draws every token, the first too. Rows that have ended rest until the host looks, once in a few steps. Free slots take
waiting prompts; when no prompt waits, the remaining rows move into fewer slots.

Graphs and cache live for one call. Training gets the cache's memory back, and the next call captures the weights of
that time, in the memory that the last call's graphs had.

Shapes: B rows, T new tokens, V vocabulary.
"""

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel

from opasd.config import SamplingConfig
from opasd.device import short_of_memory
from opasd.model.registry import configurations, use_attention
from opasd.rollout.engine import Completion, Prompts
from opasd.rollout.transformers.fusing import RoundedAdapters, fused, kernels_available
from opasd.rollout.transformers.graphs import GraphCapture
from opasd.rollout.transformers.sampling import sample, uniform_numbers
from opasd.rollout.transformers.slots import IMPLEMENTATION, SlotCache, TokenState, token_states

CHECK_EVERY = 8
"""Steps between two looks at which rows have ended."""
REFILL_SHARE = 8
"""Waiting prompts are read when one slot in this many is free: reading delays the rows that decode."""
CAPTURE_STEPS = 16
"""A capture costs about ten steps, so it does not pay for fewer steps than this."""
SHRINK_STEPS = 128
"""Rows move into fewer slots when this many steps may be left: the move needs a new capture."""
MIN_ROWS = 8
"""Fewer rows than this are no faster."""
PREFILL_TOKENS = 16_384
"""Prompt tokens, with padding, that one forward reads."""
MEMORY_SHARE = 0.8
"""Share of the free memory for slots; reading prompts and the step itself need the rest."""


@dataclass(frozen=True)
class SlotPlan:
    """How to decode a model in slots, as a trial has shown."""

    tokens: list[TokenState]
    """A token's keys and values in each layer of the cache."""
    fuse: bool
    """Whether a step runs fused kernels."""
    graphs: GraphCapture


class Decoder:
    """The state of `rows` slots of `length` tokens."""

    def __init__(
        self, model: PreTrainedModel, plan: SlotPlan, sampling: SamplingConfig, stop: frozenset[int],
        rows: int, length: int,
    ) -> None:  # fmt: skip
        device, limit = model.device, sampling.max_new_tokens
        self.model, self.plan, self.sampling, self.limit = model, plan, sampling, limit
        self.cache = SlotCache(plan.tokens, rows, length)
        self.stop = stop
        self.stop_S = torch.tensor(sorted(stop), dtype=torch.long, device=device)
        self.token, self.last, self.step = (torch.zeros(rows, dtype=torch.long, device=device) for _ in range(3))
        self.done = torch.ones(rows, dtype=torch.bool, device=device)
        self.failed = torch.zeros(rows, dtype=torch.bool, device=device)
        self.uniform_BT = torch.zeros(rows, limit, device=device)
        self.drawn_BT = torch.zeros(rows, limit, dtype=torch.long, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        """Captured steps by their number of rows."""
        self.capturing = plan.graphs.enabled
        self.rounded: RoundedAdapters = {}

    def admit(self, slots: Sequence[int], prompts: Prompts, seeds: Sequence[int]) -> None:
        """Read prompts, sorted from the longest to the shortest, into free slots."""
        device = self.model.device
        into = torch.tensor(slots, device=device)
        self.cache.clear(into)
        start = 0
        while start < len(prompts):
            end = start + max(1, PREFILL_TOKENS // len(prompts[start]))
            self._read(into[start:end], prompts[start:end])
            start = end
        self.token[into] = torch.tensor([prompt[-1] for prompt in prompts], device=device)
        self.last[into] = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        self.step[into] = 0
        self.done[into] = False
        self.failed[into] = False
        self.uniform_BT[into] = uniform_numbers(seeds, self.limit).T.to(device)

    def _read(self, slots: Tensor, prompts: Prompts) -> None:
        """Fill slots with their prompts, padded on the right.

        Causal attention never looks right, so the padding needs no mask; later steps overwrite it.
        """
        ids = pad_sequence([torch.tensor(prompt[:-1], dtype=torch.long) for prompt in prompts], batch_first=True)
        if ids.shape[1] == 0:
            return
        self.cache.fill(slots)
        self.model(input_ids=ids.to(self.model.device), past_key_values=self.cache, use_cache=True, logits_to_keep=1)

    def logits(self, rows: int) -> Tensor:
        """Return the logits [rows, V] after each row's token, and store the token's keys and values."""
        last = self.last[:rows]
        self.cache.extend(last)
        output = self.model(
            input_ids=self.token[:rows, None],
            position_ids=last[:, None],
            attention_mask=last[:, None, None, None],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def advance(self, rows: int) -> None:
        """Draw one token in each of the first `rows` slots, in place and without waiting for the device."""
        done, step, drawn = self.done[:rows], self.step[:rows], self.drawn_BT[:rows]
        logits_BV = self.logits(rows)
        token = sample(logits_BV, self.uniform_BT[:rows].gather(1, step[:, None])[:, 0], self.sampling)
        drawn.scatter_(1, step[:, None], torch.where(done, drawn.gather(1, step[:, None])[:, 0], token)[:, None])
        bad = ~logits_BV.amax(-1).isfinite() & ~done
        ended = done | bad | (token[:, None] == self.stop_S).any(-1) | (step + 1 >= self.limit)
        self.failed[:rows].logical_or_(bad)
        self.token[:rows].copy_(token)
        self.last[:rows].copy_(torch.where(ended, 0, self.last[:rows] + 1))  # a row at rest costs no attention
        step.add_(~ended)
        done.copy_(ended)

    @contextmanager
    def step_form(self) -> Iterator[None]:
        """Within the block, the model's forward has the form of a step: it attends to slots and is fused."""
        with ExitStack() as stack:
            stack.callback(use_attention(configurations(self.model), IMPLEMENTATION))
            if self.plan.fuse:
                stack.enter_context(fused(self.model, self.rounded))
            yield

    def run(self, rows: int, steps: int, remaining: int) -> None:
        """Advance the first `rows` slots by `steps` steps, when up to `remaining` steps are left."""
        if self.capturing and self.plan.graphs.warm and rows not in self.graphs and remaining >= CAPTURE_STEPS:
            graph = self.plan.graphs.capture(lambda: self.advance(rows), self.step_form)
            if graph is None:
                self.capturing = False
            else:
                self.graphs[rows] = graph
        if rows in self.graphs:
            for _ in range(steps):
                self.graphs[rows].replay()
        else:
            with self.step_form():
                for _ in range(steps):
                    self.advance(rows)
        self.plan.graphs.warm = True

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move the rows in some slots to others."""
        origin, into = (torch.tensor(slots, device=self.model.device) for slots in (sources, targets))
        self.cache.move(origin, into)
        for state in (self.token, self.last, self.step, self.done, self.failed, self.uniform_BT, self.drawn_BT):
            state[into] = state[origin]
        self.done[origin] = True

    def completions(self, slots: Sequence[int]) -> list[Completion]:
        """Return the completions of slots that have ended."""
        from_slots = torch.tensor(slots, device=self.model.device)
        lengths = (self.step[from_slots] + 1).tolist()
        drawn, failed = self.drawn_BT[from_slots, : max(lengths)].tolist(), self.failed[from_slots].tolist()
        return [
            Completion.ended(row[:length], self.stop, failed=bad)
            for row, length, bad in zip(drawn, lengths, failed, strict=True)
        ]


def decode_in_slots(
    model: PreTrainedModel, plan: SlotPlan, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int],
    stop: frozenset[int], max_rows: int,
) -> Iterator[tuple[int, Completion]]:  # fmt: skip
    """Yield the index of each prompt and its completion, in the order in which they end."""
    waiting = deque(sorted(range(len(prompts)), key=lambda index: len(prompts[index]), reverse=True))
    length, limit = max(map(len, prompts)) + sampling.max_new_tokens - 1, sampling.max_new_tokens
    rows = min(max_rows, len(prompts), _rows_in_memory(model, plan, length, sampling))
    decoder = Decoder(model, plan, sampling, stop, rows, length)
    prompt_in: dict[int, int] = {}  # by slot
    steps_in: dict[int, int] = {}  # taken for that prompt so far
    while waiting or prompt_in:
        free = [slot for slot in range(rows) if slot not in prompt_in]
        if waiting and len(free) >= max(1, rows // REFILL_SHARE):
            slots = free[: len(waiting)]
            chosen = [waiting.popleft() for _ in slots]
            decoder.admit(slots, [prompts[i] for i in chosen], [seeds[i] for i in chosen])
            prompt_in.update(zip(slots, chosen, strict=True))
            steps_in.update(dict.fromkeys(slots, 0))
        remaining = limit - min(steps_in.values())
        fewer = rows
        while len(prompt_in) <= fewer // 2 and fewer > MIN_ROWS:
            fewer = (fewer + 1) // 2
        if not waiting and fewer < rows and remaining >= SHRINK_STEPS:
            sources = [slot for slot in prompt_in if slot >= fewer]
            targets = [slot for slot in range(fewer) if slot not in prompt_in][: len(sources)]
            if sources:
                decoder.move(sources, targets)
            for source, target in zip(sources, targets, strict=True):
                prompt_in[target], steps_in[target] = prompt_in.pop(source), steps_in.pop(source)
            rows = fewer
        steps = min(CHECK_EVERY, remaining)
        decoder.run(rows, steps, remaining)
        done = decoder.done[:rows].tolist()
        ended = [slot for slot in prompt_in if done[slot]]
        steps_in = {slot: count + steps for slot, count in steps_in.items() if not done[slot]}
        if ended:
            yield from zip([prompt_in.pop(slot) for slot in ended], decoder.completions(ended), strict=True)


def _rows_in_memory(model: PreTrainedModel, plan: SlotPlan, length: int, sampling: SamplingConfig) -> int:
    """Return how many slots of `length` tokens fit into the free memory of the device."""
    if model.device.type != "cuda":
        return 2**31
    free, _ = torch.cuda.mem_get_info(model.device)
    unused = torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device) - plan.graphs.bytes
    vocabulary = model.config.get_text_config().vocab_size
    # The model's logits, their float32 copy and the scaled one; sorting with indices as well if top-k keeps all tokens.
    drawing = vocabulary * (16 if sampling.top_k else 64)
    token = sum(state.nbytes for states in plan.tokens for state in states)
    row = length * token + drawing + 12 * sampling.max_new_tokens
    return max(1, int(MEMORY_SHARE * (free + unused) / row))


# ---- whether a model can be decoded in slots ------------------------------------------------------------------------


NOT_FINITE = "its logits are not finite"


@torch.no_grad()
def make_slot_plan(model: PreTrainedModel) -> SlotPlan | str:
    """Return how to decode `model` in slots, or the reason why it cannot be, after a trial with two prompts."""
    vocabulary = model.config.get_text_config().vocab_size
    prompts = [[number * vocabulary // length for number in range(length)] for length in (24, 9)]
    caches = [DynamicCache(config=model.config) for _ in prompts]
    inputs = [torch.tensor([prompt], device=model.device) for prompt in prompts]
    outputs = [
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        for ids, cache in zip(inputs, caches, strict=True)
    ]
    expected_BV = torch.cat([output.logits[:, -1] for output in outputs]).double()
    if not bool(expected_BV.isfinite().all()):
        return NOT_FINITE
    # How far two correct computations may be apart: every layer loses precision.
    rounded = model.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    tolerance = 0.1 if model.dtype.itemsize < 4 else 1e-2 if rounded else 1e-3
    reason = ""
    for fuse in (True, False) if kernels_available(model.device) else (False,):
        graphs = GraphCapture(model.device, enabled=model.device.type == "cuda" and not _has_hooks(model))
        plan = SlotPlan(token_states(caches[0]), fuse, graphs)
        decoder = Decoder(model, plan, SamplingConfig(temperature=0, max_new_tokens=1), frozenset(), 2, 24)
        try:
            decoder.admit([0, 1], prompts, [0, 0])
            with decoder.step_form():
                logits_BV = decoder.logits(2).double()
                graphs.enabled = graphs.enabled and not _waits(decoder)
        except Exception as error:
            if short_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            continue
        error = float((logits_BV - expected_BV).norm() / expected_BV.norm())
        if error <= tolerance:
            return plan
        reason = f"its logits would be off by {error:.1e}"
    return reason


def _waits(decoder: Decoder) -> bool:
    """Return whether the model waits for the device in a step, which no graph can hold."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that the detection is a prototype
            torch.cuda.set_sync_debug_mode("error")
        decoder.logits(2)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def _has_hooks(model: PreTrainedModel) -> bool:
    """Return whether foreign Python code runs in every forward; a graph would run it only once."""
    tables = (table for module in model.modules() for table in (module._forward_hooks, module._forward_pre_hooks))
    modules = (str(getattr(hook, "__module__", "")) for table in tables for hook in table.values())
    return any(not name.startswith(("transformers.", "peft.")) for name in modules)
