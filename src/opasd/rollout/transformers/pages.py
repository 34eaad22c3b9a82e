"""Storage for keys and values in pages, which a row takes as it grows and gives back when it ends.

A page holds `PAGE` positions of a row in every layer. Rows with the same prompt share the pages that it fills. Storage
grows in segments, so a call holds about as much memory as its tokens need. A row's table gives the distance of each of
its pages from the first segment. Segments may lie anywhere, and a captured step stays valid while storage grows.
"""

from collections.abc import Iterable, Sequence

from torch import Tensor

from opasd.device import short_of_memory

PAGE = 256
"""Positions of a page: what one program of the attention kernel reads."""
ALIGNMENT = 16
"""Bytes in which distances are counted: the widest load of a GPU."""
SEGMENT_BYTES = 2**30
TokenState = tuple[Tensor, Tensor]
"""Keys [1, K, 1, D] and values that one layer stores for a token."""


class Pages:
    """At most `limit` pages for layers that store such tokens; all of them at once if not `growing`."""

    def __init__(self, tokens: Iterable[TokenState], limit: int, *, growing: bool) -> None:
        states = [state for token in tokens for state in token]
        self.like = states[0]
        if any(state.dtype != self.like.dtype for state in states):
            raise NotImplementedError("its layers store keys and values in several number formats")
        self.unit = ALIGNMENT // self.like.itemsize
        """Numbers in a unit of distance."""
        self.starts: list[tuple[int, ...]] = []
        self.size = 0
        """Numbers in a page."""
        for state in states:
            K, D = state.shape[1], state.shape[3]
            self.starts.append((self.size, K, D))
            self.size += -(-K * PAGE * D // self.unit) * self.unit
        self.limit = limit + 1  # page 0 is nobody's: rows at rest may write there
        self.segment_pages = max(2, SEGMENT_BYTES // self.bytes) if growing else self.limit
        self.segments: list[Tensor] = []
        self.places: list[Tensor] = []
        """Each page's part of its segment."""
        self.distances: list[int] = []
        self.users: list[int] = []
        self.free: list[int] = []
        self._grow()
        self.users[self.free.pop()] = 1

    @property
    def bytes(self) -> int:
        """Bytes of a page."""
        return self.size * self.like.itemsize

    @property
    def available(self) -> int:
        """Pages that can still be taken."""
        return len(self.free) + self.limit - len(self.places)

    def view(self, number: int) -> Tensor:
        """Return the keys (even numbers) or values of a layer in the first segment: [pages, K, PAGE, D]."""
        start, K, D = self.starts[number]
        return self.segments[0][:, start : start + K * PAGE * D].unflatten(1, (K, PAGE, D))

    def take(self, count: int) -> list[int] | None:
        """Return pages that nobody uses, or None if there are too few."""
        while len(self.free) < count:
            if len(self.places) >= self.limit or not self._grow():
                return None
        pages = [self.free.pop() for _ in range(count)]
        for page in pages:
            self.users[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Count one more user of pages."""
        for page in pages:
            self.users[page] += 1

    def give(self, pages: Sequence[int]) -> None:
        """Count one user less; a page without users is free."""
        for page in pages:
            self.users[page] -= 1
            if self.users[page] == 0:
                self.free.append(page)

    def copy(self, source: int, target: int) -> None:
        """Copy what a page holds."""
        self.places[target].copy_(self.places[source])

    def _grow(self) -> bool:
        """Add a segment; return whether the device had the memory."""
        count = min(self.segment_pages, self.limit - len(self.places))
        try:
            segment = self.like.new_zeros(count, self.size)
        except RuntimeError as error:
            if not self.segments or not short_of_memory(error):
                raise
            self.limit = len(self.places)
            return False
        self.segments.append(segment)
        first = (segment.data_ptr() - self.segments[0].data_ptr()) // ALIGNMENT
        step = self.bytes // ALIGNMENT
        new = range(len(self.places), len(self.places) + count)
        self.places += segment.unbind()
        self.distances += [first + place * step for place in range(count)]
        self.users += [0] * count
        self.free += reversed(new)  # the lowest is taken first
        return True
