"""Decoding in slots: every step is the same for all rows at all positions, so a GPU captures it once and replays it.

A prompt is read into a free slot but for its last token; that one is the first input of the step, so every token, the
first too, is drawn in the step. Rows that have ended stand still until the host looks, which it does once in a few
steps; free slots take waiting prompts, and when none wait, what is left moves into fewer rows.

Graphs and cache live for one call: training gets the cache's memory back, and whatever happened to the weights
meanwhile, the next call captures them as they are, in the memory that the last one's graphs had.

Shapes: B rows, P prompt positions, T new tokens, V vocabulary.
"""

import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from opasd.config import SamplingConfig
from opasd.device import short_of_memory
from opasd.rollout.engine import Completion
from opasd.rollout.transformers.fusing import Rounded, fused, kernels_available
from opasd.rollout.transformers.sampling import sample
from opasd.rollout.transformers.slots import LayerShape, SlotCache, attending_to_slots, layer_shapes

_log = logging.getLogger(__name__)

CHECK_EVERY = 8
"""Steps between two looks at which rows have ended."""
REFILL_SHARE = 8
"""Prompts that wait are read when one slot in this many is free: reading holds up the rows that are going."""
CAPTURE_STEPS = 16
"""A capture costs some ten steps, so that fewer are not worth one."""
SHRINK_STEPS = 128
"""Rows move into fewer slots when they may go on for this many steps: that takes a capture."""
MIN_ROWS = 8
"""Fewer rows than this are no faster."""
PREFILL_TOKENS = 16_384
"""Prompt tokens read in one forward."""
MEMORY_SHARE = 0.8
"""Of the free memory; the rest is for reading prompts and for what a step computes besides."""


@dataclass
class Plan:
    """How a model can be decoded in slots: what was found out about it."""

    shapes: tuple[LayerShape, ...]
    """The cache's layers."""
    fuse: bool
    capture: bool
    warm: bool = False
    """Whether a step has run, in which libraries set themselves up; that must not happen inside a capture."""
    graphs: "Graphs | None" = None
    told: bool = False
    """Whether it was said that there is no graph."""


class Graphs:
    """Captures graphs in the memory of those that are gone: else every call would take more, and keep it.

    That memory goes to captures of the same stream alone, and only while a graph in it lives; one does."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.pool: list[Any] = []
        self.bytes = 0
        """What the graphs hold."""
        number = torch.zeros((), device=device)
        self.first = self.capture(lambda: number.add_(1))
        self.pool = [self.first.pool()]

    def capture(self, step: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """What `step` launches, to be replayed."""
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved(self.stream.device)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph.capture_begin(*self.pool, capture_error_mode="relaxed")
            try:
                step()
            except BaseException:
                with suppress(RuntimeError):  # the step's own error is the one to tell
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.bytes += torch.cuda.memory_reserved(self.stream.device) - before
        return graph


def uniform_numbers(seeds: Sequence[int], steps: int) -> Tensor:
    """[steps, B]: each column from a generator of its own."""
    columns = [torch.rand(steps, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(columns, -1)


class Decoder:
    """The state of `rows` slots on the device, and the step that moves them on."""

    def __init__(
        self,
        model: PreTrainedModel,
        plan: Plan,
        sampling: SamplingConfig,
        stop: frozenset[int],
        rows: int,
        length: int,
    ) -> None:
        device, limit = model.device, sampling.max_new_tokens
        self.model, self.plan, self.sampling, self.limit = model, plan, sampling, limit
        self.cache = SlotCache(plan.shapes, rows, length, device)
        self.stop = torch.tensor(sorted(stop), dtype=torch.long, device=device)
        self.token, self.last, self.step = (torch.zeros(rows, dtype=torch.long, device=device) for _ in range(3))
        self.done = torch.ones(rows, dtype=torch.bool, device=device)
        self.failed = torch.zeros(rows, dtype=torch.bool, device=device)
        self.uniform_BT = torch.zeros(rows, limit, device=device)
        self.drawn_BT = torch.zeros(rows, limit, dtype=torch.long, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.capture = plan.capture
        self.rounded: Rounded = {}

    def admit(self, slots: Sequence[int], prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> None:
        """Read prompts, longest first, into free slots."""
        device = self.model.device
        into = torch.tensor(slots, device=device)
        self.cache.clear(into)
        for start, stop in _parts([len(prompt) for prompt in prompts]):
            self._read(into[start:stop], prompts[start:stop])
        self.token[into] = torch.tensor([prompt[-1] for prompt in prompts], device=device)
        self.last[into] = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        self.step[into] = 0
        self.done[into] = False
        self.failed[into] = False
        self.uniform_BT[into] = uniform_numbers(seeds, self.limit).T.to(device)

    def _read(self, slots: Tensor, prompts: Sequence[Sequence[int]]) -> None:
        """Causal attention never looks right, so padding there needs no mask; the step overwrites it."""
        longest = max(map(len, prompts)) - 1
        if longest == 0:
            return
        rows = [[*prompt[:-1], *(0 for _ in range(longest + 1 - len(prompt)))] for prompt in prompts]
        self.cache.at(slots, decoding=False)
        self.model(
            input_ids=torch.tensor(rows, device=self.model.device),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )

    def logits(self, rows: int) -> Tensor:
        """[rows, V]: what comes after each row's token, which the cache then holds."""
        last = self.last[:rows]
        self.cache.at(last, decoding=True)
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
        """One step of the first `rows` slots, in place and without waiting for the device."""
        done, step, drawn = self.done[:rows], self.step[:rows], self.drawn_BT[:rows]
        logits_BV = self.logits(rows)
        token = sample(logits_BV, self.uniform_BT[:rows].gather(1, step[:, None])[:, 0], self.sampling)
        drawn.scatter_(1, step[:, None], torch.where(done, drawn.gather(1, step[:, None])[:, 0], token)[:, None])
        bad = ~logits_BV.amax(-1).isfinite() & ~done
        ended = done | bad | (token[:, None] == self.stop).any(-1) | (step + 1 >= self.limit)
        self.failed[:rows].logical_or_(bad)
        self.token[:rows].copy_(token)
        self.last[:rows].copy_(torch.where(ended, 0, self.last[:rows] + 1))  # a row at rest costs no attention
        step.add_(~ended)
        done.copy_(ended)

    @contextmanager
    def fast(self) -> Iterator[None]:
        """While entered, the model's forward is that of a step."""
        with ExitStack() as stack:
            stack.enter_context(attending_to_slots(self.model))
            stack.enter_context(fused(self.model, self.rounded) if self.plan.fuse else nullcontext())
            yield

    def run(self, rows: int, steps: int, remaining: int) -> None:
        """`steps` steps; up to `remaining` are still to come."""
        if self.capture and self.plan.warm and rows not in self.graphs and remaining >= CAPTURE_STEPS:
            self._capture(rows)
        if rows in self.graphs:
            for _ in range(steps):
                self.graphs[rows].replay()
        else:
            with self.fast():
                for _ in range(steps):
                    self.advance(rows)
        self.plan.warm = True

    def _capture(self, rows: int) -> None:
        """A graph for so many rows, if there can be one; nothing of the step happens."""
        for attempt in (1, 2):
            failure = self._failure(rows)
            if failure is None:
                return
            message, short = failure
            if short:  # inside a capture nothing that is only cached can be given back; nor could the graphs' own
                self.plan.graphs = None
                torch.cuda.empty_cache()
            if attempt == 2 or not short:
                self.capture = False
                self.plan.capture = self.plan.capture and short
                if not (short and self.plan.told):
                    _log.warning("decoding goes on without CUDA graphs, which is slow: %s", message)
                self.plan.told = True
                return

    def _failure(self, rows: int) -> tuple[str, bool] | None:
        """Why there is no graph, and whether for want of memory alone; what was computed for it is gone by then."""
        try:
            self.graphs[rows] = self._captured(rows)
        except RuntimeError as error:
            return str(error), short_of_memory(error)
        return None

    def _captured(self, rows: int) -> torch.cuda.CUDAGraph:
        if self.plan.graphs is None:
            self.plan.graphs = Graphs(self.model.device)
        with self.fast():  # what it rounds is this stream's, whatever becomes of the capture
            return self.plan.graphs.capture(lambda: self.advance(rows))

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Put what is in some slots into others."""
        origin, into = (torch.tensor(slots, device=self.model.device) for slots in (sources, targets))
        self.cache.move(origin, into)
        for state in (self.token, self.last, self.step, self.done, self.failed, self.uniform_BT, self.drawn_BT):
            state[into] = state[origin]
        self.done[origin] = True

    def completions(self, slots: Sequence[int], stop: frozenset[int]) -> list[Completion]:
        """What ended in these slots."""
        from_slots = torch.tensor(slots, device=self.model.device)
        lengths = (self.step[from_slots] + 1).tolist()
        drawn, failed = self.drawn_BT[from_slots, : max(lengths)].tolist(), self.failed[from_slots].tolist()
        return [
            completion(tuple(row[:length]), bad, stop) for row, length, bad in zip(drawn, lengths, failed, strict=True)
        ]


def completion(ids: tuple[int, ...], failed: bool, stop: frozenset[int]) -> Completion:
    return Completion(ids, "error" if failed else "stop" if ids[-1] in stop else "length")


def decode(
    model: PreTrainedModel,
    plan: Plan,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingConfig,
    seeds: Sequence[int],
    stop: frozenset[int],
    max_rows: int,
) -> Iterator[tuple[int, Completion]]:
    """Each prompt's place and completion, as they end."""
    waiting = deque(sorted(range(len(prompts)), key=lambda index: len(prompts[index]), reverse=True))
    length, limit = max(map(len, prompts)) + sampling.max_new_tokens - 1, sampling.max_new_tokens
    rows = min(max_rows, len(prompts), _rows_in_memory(model, plan, length, sampling))
    decoder = Decoder(model, plan, sampling, stop, rows, length)
    prompt_of: dict[int, int] = {}
    taken: dict[int, int] = {}
    while waiting or prompt_of:
        free = [slot for slot in range(rows) if slot not in prompt_of]
        if waiting and (len(free) >= max(1, rows // REFILL_SHARE)):
            slots = free[: len(waiting)]
            chosen = [waiting.popleft() for _ in slots]
            decoder.admit(slots, [prompts[i] for i in chosen], [seeds[i] for i in chosen])
            prompt_of.update(zip(slots, chosen, strict=True))
            taken.update(dict.fromkeys(slots, 0))
        remaining = limit - min(taken.values())
        fewer = _fewer_rows(rows, len(prompt_of))
        if not waiting and fewer < rows and remaining >= SHRINK_STEPS:
            sources = [slot for slot in prompt_of if slot >= fewer]
            targets = [slot for slot in range(fewer) if slot not in prompt_of][: len(sources)]
            if sources:
                decoder.move(sources, targets)
            for source, target in zip(sources, targets, strict=True):
                prompt_of[target], taken[target] = prompt_of.pop(source), taken.pop(source)
            rows = fewer
        steps = min(CHECK_EVERY, remaining)
        decoder.run(rows, steps, remaining)
        done = decoder.done[:rows].tolist()
        ended = [slot for slot in prompt_of if done[slot]]
        taken = {slot: count + steps for slot, count in taken.items() if not done[slot]}
        if ended:
            found = decoder.completions(ended, stop)
            yield from [(prompt_of.pop(slot), one) for slot, one in zip(ended, found, strict=True)]


def _fewer_rows(rows: int, going: int) -> int:
    """The number of rows, halved as long as what is going fits and fewer are faster."""
    while going <= rows // 2 and rows > MIN_ROWS:
        rows = (rows + 1) // 2
    return rows


def _parts(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of prompts, sorted by length, of up to `PREFILL_TOKENS` with their padding."""
    start = 0
    while start < len(lengths):
        count = max(1, PREFILL_TOKENS // lengths[start])
        yield start, min(start + count, len(lengths))
        start += count


def _rows_in_memory(model: PreTrainedModel, plan: Plan, length: int, sampling: SamplingConfig) -> int:
    """How many slots of a length fit beside what is on the device already."""
    if model.device.type != "cuda":
        return 2**31
    free, _ = torch.cuda.mem_get_info(model.device)
    unused = torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    unused -= plan.graphs.bytes if plan.graphs else 0
    vocabulary = model.config.get_text_config().vocab_size
    # Logits as the model gives them, in float32 and scaled; sorted with their places where top-k keeps all of them.
    drawing = vocabulary * (16 if sampling.top_k else 64)
    row = length * sum(shape.bytes_per_token for shape in plan.shapes) + drawing + 12 * sampling.max_new_tokens
    return max(1, int(MEMORY_SHARE * (free + unused) / row))


# ---- whether it can be done -----------------------------------------------------------------------------------------


NOT_FINITE = "its logits are not finite"


@torch.no_grad()
def make_plan(model: PreTrainedModel) -> Plan | str:
    """How to decode `model` in slots, or why not: a trial of two prompts must give the model's own logits."""
    vocabulary = model.config.get_text_config().vocab_size
    trial = [[number * vocabulary // length for number in range(length)] for length in (24, 9)]
    caches = [DynamicCache(config=model.config) for _ in trial]
    given = [torch.tensor([ids], device=model.device) for ids in trial]
    expected_BV = torch.cat(
        [
            model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            for ids, cache in zip(given, caches, strict=True)
        ]
    ).double()
    if not bool(expected_BV.isfinite().all()):
        return NOT_FINITE
    reason = ""
    for fuse in (True, False) if kernels_available(model.device) else (False,):
        plan = Plan(layer_shapes(caches[0]), fuse, capture=model.device.type == "cuda" and not _has_hooks(model))
        decoder = Decoder(model, plan, SamplingConfig(temperature=0, max_new_tokens=1), frozenset(), 2, 24)
        try:
            decoder.admit([0, 1], trial, [0, 0])
            with decoder.fast():
                found_BV = decoder.logits(2).double()
                plan.capture = plan.capture and not _waits(decoder)
        except Exception as error:
            if short_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            continue
        error = float((found_BV - expected_BV).norm() / expected_BV.norm())
        if error <= _tolerance(model):
            return plan
        reason = f"its logits would be off by {error:.1e}"
    return reason


def _tolerance(model: PreTrainedModel) -> float:
    """How far the logits of two right computations may be apart: precision is lost in every layer."""
    if model.dtype.itemsize < 4:
        return 0.1
    return 1e-2 if model.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest" else 1e-3


def _waits(decoder: Decoder) -> bool:
    """Whether the model waits for the device in a step, which no graph can hold."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that detection is a prototype
            torch.cuda.set_sync_debug_mode("error")
        decoder.logits(2)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def _has_hooks(model: PreTrainedModel) -> bool:
    """Whether somebody's Python code wants to run in every forward; a graph would run it once."""
    hooks = [
        hook
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]
    return any(not str(getattr(hook, "__module__", "")).startswith(("transformers.", "peft.")) for hook in hooks)
