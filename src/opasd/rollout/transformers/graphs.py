"""Capture a decoding step as a CUDA graph and keep the memory of graphs from call to call."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch

from opasd.device import short_of_memory

_log = logging.getLogger(__name__)


class GraphPool:
    """Captures graphs in the memory of earlier ones; otherwise every call would take more memory and keep it.

    Only captures of the same stream get that memory, and only while a graph in it lives, so one always does.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.pool: list[Any] = []
        self.bytes = 0
        """Memory that the graphs hold."""
        number = torch.zeros((), device=device)
        self.first = self.capture(lambda: number.add_(1))
        self.pool = [self.first.pool()]

    def capture(self, step: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Return a graph that repeats what `step` launches."""
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved(self.stream.device)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph.capture_begin(*self.pool, capture_error_mode="relaxed")
            try:
                step()
            except BaseException:
                with suppress(RuntimeError):  # the step's own error is the one to raise
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.bytes += torch.cuda.memory_reserved(self.stream.device) - before
        return graph


class GraphCapture:
    """Captures the steps of one model for as long as that works, and logs when it does not."""

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.device = device
        self.enabled = enabled
        """False for a model that can never be captured."""
        self.warm = False
        """Whether a step has run: libraries set themselves up in the first one, which must not happen in a capture."""
        self.pool: GraphPool | None = None
        self._warned = False

    @property
    def bytes(self) -> int:
        """Memory that the graphs hold."""
        return self.pool.bytes if self.pool else 0

    def capture(
        self, step: Callable[[], object], within: Callable[[], AbstractContextManager[None]]
    ) -> torch.cuda.CUDAGraph | None:
        """Return a graph of `step`, entered in a context of `within`, or None; the step itself is not executed.

        If memory is short, the memory that is only cached is released and the capture is tried once more. A later call
        may succeed. Any other failure ends all captures of this model.
        """
        for is_last in (False, True):
            try:
                if self.pool is None:
                    self.pool = GraphPool(self.device)
                with within():  # outside the capture: whatever it computes belongs to the current stream
                    return self.pool.capture(step)
            except RuntimeError as error:
                reason, short = str(error), short_of_memory(error)
            if short:  # a capture cannot release cached memory, and not the graphs' own
                self.pool = None
                torch.cuda.empty_cache()
            if is_last or not short:
                break
        self.enabled = self.enabled and short
        if not (short and self._warned):
            _log.warning("decoding continues without CUDA graphs, which is slow: %s", reason)
        self._warned = True
        return None
