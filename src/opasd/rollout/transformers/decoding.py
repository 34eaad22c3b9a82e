"""Decode in slots: every step is the same for all rows at all positions, so a GPU captures it once and replays it.

A prompt is read into a free slot except for its last token. That token is the first input of the step, so the step
draws every token, the first too. Rows that have ended rest until the host looks, once in a few steps. Free slots take
waiting prompts; when none can come in, the remaining rows move into fewer slots.

Keys and values lie in pages. A row takes a page when it needs one and gives all back when it ends. A prompt that
another row has read is not read again: the rows share its full pages. When no page is left, the row with the fewest
tokens waits; later it reads again what it had drawn, and continues with its own random numbers.

Graphs and pages live for one call. Training gets their memory back, and the next call captures the weights of that
time, in the memory that the last call's graphs had.

Shapes: B rows, T new tokens, V vocabulary.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from opasd.config import SamplingConfig
from opasd.model.registry import configurations, use_attention
from opasd.rollout.engine import Completion, Prompts
from opasd.rollout.transformers import pages as paging
from opasd.rollout.transformers.fusing import RoundedAdapters, fused, kernels_available
from opasd.rollout.transformers.graphs import GraphCapture
from opasd.rollout.transformers.pages import Pages, TokenState
from opasd.rollout.transformers.sampling import sample, uniform_numbers
from opasd.rollout.transformers.slots import IMPLEMENTATION, SlotCache

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
"""Share of the free memory for pages and rows; reading prompts and the step itself need the rest."""
FEWEST_PAGES, MORE_PAGES = 8, 4
"""A step looks at so many pages of each row, or so many times as many if a row has more: each number is a capture."""


@dataclass(frozen=True)
class SlotPlan:
    """How to decode a model in slots, as a trial has shown."""

    tokens: list[TokenState]
    """A token's keys and values in each layer of the cache."""
    fuse: bool
    """Whether a step runs fused kernels."""
    graphs: GraphCapture


@dataclass
class Row:
    """A prompt on its way to a completion."""

    index: int
    prompt: tuple[int, ...]
    seed: int
    drawn: list[int] = field(default_factory=list)
    """Tokens drawn before the row had to wait for memory."""
    taken: int = 0
    """Steps taken."""
    pages: list[int] = field(default_factory=list)

    def num_pages(self, more: int) -> int:
        """Return how many pages the row needs for `more` steps."""
        return (len(self.prompt) - 1 + self.taken + more - 1) // paging.PAGE + 1


class Decoder:
    """The state of some slots for rows of up to `length` tokens, which have at most `pages` pages together."""

    def __init__(
        self, model: PreTrainedModel, plan: SlotPlan, sampling: SamplingConfig, stop: frozenset[int],
        slots: int, length: int, pages: int,
    ) -> None:  # fmt: skip
        device, limit = model.device, sampling.max_new_tokens
        self.model, self.plan, self.sampling, self.limit = model, plan, sampling, limit
        self.pages = Pages(plan.tokens, pages, growing=kernels_available(device))
        self.cache = SlotCache(self.pages)
        self.slots, self.rows = slots, dict[int, Row]()
        """Number of slots, and the row in each slot that is not free."""
        self.stop = stop
        self.stop_S = torch.tensor(sorted(stop), dtype=torch.long, device=device)
        self.reach = torch.zeros(slots, 1 + -(-length // paging.PAGE), dtype=torch.long, device=device)
        """Each row's last position, -1 at rest, and the distances of its pages."""
        self.last = self.reach[:, 0].fill_(-1)
        self.token, self.step = (torch.zeros(slots, dtype=torch.long, device=device) for _ in range(2))
        self.done = torch.ones(slots, dtype=torch.bool, device=device)
        self.failed = torch.zeros(slots, dtype=torch.bool, device=device)
        self.uniform_BT = torch.zeros(slots, limit, device=device)
        self.drawn_BT = torch.zeros(slots, limit, dtype=torch.long, device=device)
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        """Captured steps by their number of rows and of pages."""
        self.capturing = plan.graphs.enabled
        self.rounded: RoundedAdapters = {}

    # ---- rows come and go -------------------------------------------------------------------------------------------

    def admit(self, waiting: deque[Row]) -> None:
        """Move waiting rows into free slots while there are pages for them."""
        free = deque(slot for slot in range(self.slots) if slot not in self.rows)
        to_read, copies, new = list[int](), list[tuple[int, int]](), dict[int, Row]()
        while waiting and free and (source := self._take_pages(waiting[0])) is not None:
            row, slot = waiting.popleft(), free.popleft()
            self.rows[slot] = new[slot] = row
            if source < 0:
                to_read.append(slot)
            elif (
                len(row.prompt) - 1
            ) % paging.PAGE:  # the rest of the prompt lies in a page that the row will write to
                copies.append((source, row.pages[(len(row.prompt) - 1) // paging.PAGE]))
        if new:
            self._set_up(new)
        to_read.sort(key=lambda slot: -len(new[slot].prompt) - len(new[slot].drawn))
        while to_read:
            count = max(1, PREFILL_TOKENS // (len(new[to_read[0]].prompt) + len(new[to_read[0]].drawn)))
            self._read(to_read[:count])
            del to_read[:count]
        for pages in copies:
            self.pages.copy(*pages)

    def _take_pages(self, row: Row) -> int | None:
        """Give a row its first pages, and return the page with the end of its prompt, -1 if no other row has read it.

        Return None if there are too few pages, one for each row that may still grow included.
        """
        whole = (len(row.prompt) - 1) // paging.PAGE
        same = (other for other in self.rows.values() if not row.drawn and other.prompt == row.prompt)
        shared = next((other.pages[: whole + 1] for other in same), [])
        count = row.num_pages(1) - len(shared[:whole])
        held = [(len(other.pages), other) for other in self.rows.values()] + [(row.num_pages(1), row)]
        grow = sum(number < one.num_pages(self.limit - one.taken) for number, one in held)
        if self.rows and self.pages.available - count < grow:
            return None
        own = self.pages.take(count)
        if own is None:
            if not self.rows:
                raise torch.OutOfMemoryError("not enough memory for the keys and values of one prompt")
            return None
        self.pages.share(shared[:whole])
        row.pages = [*shared[:whole], *own]
        return shared[whole] if shared else -1

    def _set_up(self, rows: dict[int, Row]) -> None:
        """Set the state of slots for new rows."""
        device, into = self.model.device, torch.tensor(list(rows), device=self.model.device)
        reach, drawn = torch.zeros(len(rows), self.reach.shape[1], dtype=torch.long), self.drawn_BT[into]
        for number, row in enumerate(rows.values()):
            reach[number, 0] = len(row.prompt) + len(row.drawn) - 1
            reach[number, 1 : 1 + len(row.pages)] = torch.tensor([self.pages.distances[page] for page in row.pages])
            drawn[number, : len(row.drawn)] = torch.tensor(row.drawn, device=device)
        self.reach[into], self.drawn_BT[into] = reach.to(device), drawn
        self.token[into] = torch.tensor([(row.drawn or row.prompt)[-1] for row in rows.values()], device=device)
        self.step[into] = torch.tensor([row.taken for row in rows.values()], device=device)
        self.done[into] = False
        self.failed[into] = False
        self.uniform_BT[into] = uniform_numbers([row.seed for row in rows.values()], self.limit).T.to(device)

    def _read(self, slots: list[int]) -> None:
        """Store the keys and values of rows except for their last tokens, padded on the right.

        Causal attention never looks right, so the padding needs no mask; it is not stored.
        """
        rows = (self.rows[slot] for slot in slots)
        tokens = [torch.tensor((*row.prompt, *row.drawn)[:-1], dtype=torch.long) for row in rows]
        ids = pad_sequence(tokens, batch_first=True).to(self.model.device)
        if ids.shape[1] == 0:
            return
        reach = self.reach[torch.tensor(slots, device=ids.device)]
        reach[:, 0] -= 1
        self.cache.fill(reach)
        self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)

    def make_room(self, steps: int) -> list[Row]:
        """Give every row the pages for some steps; return the rows that had to leave."""
        order = sorted(self.rows, key=lambda slot: self.rows[slot].taken, reverse=True)
        left, taken = list[Row](), list[tuple[int, int, int]]()
        for slot in list(order):
            while slot in self.rows:
                row = self.rows[slot]
                if len(row.pages) >= row.num_pages(min(steps, self.limit - row.taken)):
                    break
                if (page := self.pages.take(1)) is not None:
                    taken.append((slot, 1 + len(row.pages), self.pages.distances[page[0]]))
                    row.pages += page
                elif len(self.rows) > 1:
                    left.append(self._leave(order.pop()))
                else:
                    raise torch.OutOfMemoryError("not enough memory for the keys and values of one row")
        if taken:
            slots, columns, distances = torch.tensor(taken, device=self.model.device).T
            self.reach[slots, columns] = distances
        return left

    def _leave(self, slot: int) -> Row:
        """Let a row go on later, from the tokens that it has drawn."""
        row = self.rows.pop(slot)
        row.drawn = self.drawn_BT[slot, : row.taken].tolist()
        self.pages.give(row.pages)
        self.done[slot], self.last[slot] = True, -1
        return row

    def collect(self, steps: int) -> list[tuple[int, Completion]]:
        """Count steps, and return the indices and completions of rows that have ended; their slots become free."""
        done = self.done.tolist()
        ended = {slot: row for slot, row in self.rows.items() if done[slot]}
        for slot, row in self.rows.items():
            row.taken += steps
            if slot in ended:
                self.pages.give(row.pages)
        self.rows = {slot: row for slot, row in self.rows.items() if slot not in ended}
        if not ended:
            return []
        slots = torch.tensor(list(ended), device=self.model.device)
        lengths = (self.step[slots] + 1).tolist()
        drawn, failed = self.drawn_BT[slots, : max(lengths)].tolist(), self.failed[slots].tolist()
        return [
            (row.index, Completion.ended(ids[:length], self.stop, failed=bad))
            for row, ids, length, bad in zip(ended.values(), drawn, lengths, failed, strict=True)
        ]

    def move_below(self, slots: int) -> None:
        """Move all rows into the first slots."""
        sources = [slot for slot in self.rows if slot >= slots]
        targets = [slot for slot in range(slots) if slot not in self.rows][: len(sources)]
        if not sources:
            return
        origin, into = (torch.tensor(numbers, device=self.model.device) for numbers in (sources, targets))
        for state in (self.token, self.reach, self.step, self.done, self.failed, self.uniform_BT, self.drawn_BT):
            state[into] = state[origin]
        self.done[origin], self.last[origin] = True, -1
        for source, target in zip(sources, targets, strict=True):
            self.rows[target] = self.rows.pop(source)

    # ---- a step -----------------------------------------------------------------------------------------------------

    def num_pages(self, steps: int) -> int:
        """Return how many pages of each row the next steps must look at, in one of few numbers."""
        needed, count = max(row.num_pages(steps) for row in self.rows.values()), FEWEST_PAGES
        while count < needed:
            count *= MORE_PAGES
        return min(count, self.reach.shape[1] - 1)

    def logits(self, rows: int, pages: int) -> Tensor:
        """Return the logits [rows, V] after each row's token, and store the token's keys and values."""
        reach = self.reach[:rows, : 1 + pages]
        self.cache.extend(reach)
        output = self.model(
            input_ids=self.token[:rows, None],
            position_ids=reach[:, :1].clamp_min(0),
            attention_mask=reach[:, None, None],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def advance(self, rows: int, pages: int) -> None:
        """Draw one token in each of the first `rows` slots, in place and without waiting for the device."""
        done, step, drawn = self.done[:rows], self.step[:rows], self.drawn_BT[:rows]
        logits_BV = self.logits(rows, pages)
        token = sample(logits_BV, self.uniform_BT[:rows].gather(1, step[:, None])[:, 0], self.sampling)
        drawn.scatter_(1, step[:, None], torch.where(done, drawn.gather(1, step[:, None])[:, 0], token)[:, None])
        bad = ~logits_BV.amax(-1).isfinite() & ~done
        ended = done | bad | (token[:, None] == self.stop_S).any(-1) | (step + 1 >= self.limit)
        self.failed[:rows].logical_or_(bad)
        self.token[:rows].copy_(token)
        self.last[:rows].copy_(torch.where(ended, -1, self.last[:rows] + 1))
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
        pages = self.num_pages(steps)
        key = rows, pages
        if self.capturing and self.plan.graphs.warm and key not in self.graphs and remaining >= CAPTURE_STEPS:
            graph = self.plan.graphs.capture(lambda: self.advance(rows, pages), self.step_form)
            if graph is None:
                self.capturing = False
            else:
                self.graphs[key] = graph
        if key in self.graphs:
            for _ in range(steps):
                self.graphs[key].replay()
        else:
            with self.step_form():
                for _ in range(steps):
                    self.advance(rows, pages)
        self.plan.graphs.warm = True


def decode_in_slots(
    model: PreTrainedModel, plan: SlotPlan, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int],
    stop: frozenset[int], max_rows: int,
) -> Iterator[tuple[int, Completion]]:  # fmt: skip
    """Yield the index of each prompt and its completion, in the order in which they end."""
    limit = sampling.max_new_tokens
    requests = (
        Row(index, tuple(prompt), seed) for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
    )
    waiting = deque(sorted(requests, key=lambda row: len(row.prompt), reverse=True))
    slots, pages = _capacity(list(waiting)[:max_rows], sampling, plan, model)
    decoder = Decoder(model, plan, sampling, stop, slots, len(waiting[0].prompt) + limit - 1, pages)
    rows = 0
    while waiting or decoder.rows:
        count = len(waiting)
        if waiting and slots - len(decoder.rows) >= max(1, slots // REFILL_SHARE):
            decoder.admit(waiting)
        remaining = limit - min(row.taken for row in decoder.rows.values())
        steps = min(CHECK_EVERY, remaining)
        waiting.extendleft(decoder.make_room(steps))
        rows = max(rows, _halved(slots, max(decoder.rows) + 1))
        fewer = _halved(slots, len(decoder.rows))
        if fewer < rows and len(waiting) >= count and remaining >= SHRINK_STEPS:
            decoder.move_below(fewer)
            rows = fewer
        decoder.run(rows, steps, remaining)
        yield from decoder.collect(steps)


def _halved(slots: int, rows: int) -> int:
    """Return the number of slots, halved for as long as it holds so many rows."""
    while rows <= slots // 2 and slots > MIN_ROWS:
        slots = (slots + 1) // 2
    return slots


def _capacity(rows: list[Row], sampling: SamplingConfig, plan: SlotPlan, model: PreTrainedModel) -> tuple[int, int]:
    """Return how many of these rows, the longest first, are decoded side by side, and the most pages they may have."""
    each, free = rows[0].num_pages(sampling.max_new_tokens), _free_memory(model, plan)
    if free is None:
        return len(rows), len(rows) * each
    memory = int(MEMORY_SHARE * free)
    vocabulary = model.config.get_text_config().vocab_size
    # The model's logits, their float32 copy and the scaled one; sorting with indices as well if top-k keeps all tokens.
    state = vocabulary * (16 if sampling.top_k else 64) + 12 * sampling.max_new_tokens
    page = paging.PAGE * sum(state.nbytes for states in plan.tokens for state in states)
    count, used, prompts = 0, 0, set[tuple[int, ...]]()
    for row in rows:
        shared = (len(row.prompt) - 1) // paging.PAGE if row.prompt in prompts else 0
        used += state + page * (row.num_pages(1) - shared)
        if used > memory and count:
            break
        count += 1
        prompts.add(row.prompt)
    return count, max(each, min(count * each, (memory - count * state) // page))


def _free_memory(model: PreTrainedModel, plan: SlotPlan) -> int | None:
    """Return the bytes that a GPU has free or only cached, or None for another device."""
    if model.device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(model.device)
    held = torch.cuda.memory_allocated(model.device) + plan.graphs.bytes
    return free + torch.cuda.memory_reserved(model.device) - held
