"""Distribute the requests of a batch over servers that may fail and come back.

A request goes to the server with the fewest requests under way. A request that fails waits for another server, or for
the same one to come back. A failed server is called again after a pause that doubles, and gets the current adapter
before it gets requests again. A completion depends on its seed alone, so any server may give it.
"""

import logging
import random
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from opasd.config import ServersConfig
from opasd.errors import EngineError
from opasd.rollout.engine import Completion
from opasd.rollout.vllm.http import Client, Unavailable

if TYPE_CHECKING:
    from opasd.rollout.vllm.server import ServerEngine

_log = logging.getLogger(__name__)
_jitter = random.Random()
PATIENCE = 5.0
"""Seconds for which a batch keeps a server's share until the server has taken the adapter."""


class Server:
    """The state of one server; only the dispatching thread changes it."""

    def __init__(self, url: str, config: ServersConfig) -> None:
        self.url = url.rstrip("/")
        self.client = Client(url, config.probe_timeout)
        self.ready = False
        self.preparing = False
        self.under_way = 0
        self.last_used = 0
        self.failures = 0
        """Failures in a row, without a completion in between."""
        self.failed_as = ""
        self.ask_at = 0.0
        self.epoch = 0
        """Number of failures so far: requests sent before the last one may still return with the same failure."""
        self.base = ""

    def start_batch(self, retries: int) -> None:
        """Forget what an interrupted batch left, and give a server that was given up one more try."""
        self.under_way, self.preparing = 0, False
        self.failures = min(self.failures, retries)

    def fail(self, reason: str, config: ServersConfig) -> None:
        """Take the server out of use for a while."""
        pause = min(config.backoff * 2**self.failures, config.max_backoff) * _jitter.uniform(0.75, 1.0)
        self.failures += 1
        self.epoch += 1
        self.ready, self.failed_as, self.ask_at = False, reason, time.monotonic() + pause
        _log.warning("%s: %s; asked again in %.1f s, others take its requests", self.url, reason, pause)


class Batch:
    """The requests of one call on their way to the servers."""

    def __init__(
        self, engine: "ServerEngine", prompts: list[list[int]], requests: list[dict[str, Any]], pool: ThreadPoolExecutor
    ) -> None:
        self.engine = engine
        self.prompts = prompts
        self.requests = requests
        self.pool = pool
        self.waiting = deque(range(len(prompts)))
        self.tries = [0] * len(prompts)
        self.completions: dict[int, Completion] = {}
        self.patient_until = time.monotonic() + PATIENCE
        self.running: dict[Future[Any], tuple[Server, int | None, int]] = {}
        """The server of each call, the number of its request or None for a preparation, and the server's epoch."""

    def run(self) -> list[Completion]:
        """Return all completions in order, or raise an error when no server can give them."""
        while len(self.completions) < len(self.prompts):
            if self.engine.abandoned:
                raise EngineError("the rollouts under way were given up")
            self._prepare()
            self._send()
            if not self.running and self._given_up():
                reasons = "; ".join(f"{server.url}: {server.failed_as}" for server in self.engine.servers)
                raise EngineError(
                    f"no vLLM server answers, after {self.engine.settings.retries + 1} tries each: {reasons}. Start "
                    f"them, or correct {self.engine.addresses}"
                )
            self._collect()
        return [self.completions[number] for number in range(len(self.prompts))]

    def _given_up(self) -> bool:
        servers, retries = self.engine.servers, self.engine.settings.retries
        return all(not server.ready and server.failures > retries for server in servers)

    def _prepare(self) -> None:
        now = time.monotonic()
        for server in self.engine.servers:
            if not server.ready and not server.preparing and server.ask_at <= now and not self._given_up():
                server.preparing = True
                self.running[self.pool.submit(self.engine.prepare, server)] = (server, None, server.epoch)

    def _send(self) -> None:
        """Send each waiting request to the server with the fewest under way; equal servers take turns."""
        servers, limit = self.engine.servers, self._limit()
        while self.waiting and (able := [server for server in servers if server.ready and server.under_way < limit]):
            server = min(able, key=lambda server: (server.under_way, server.last_used))
            server.last_used = max(other.last_used for other in servers) + 1
            server.under_way += 1
            number = self.waiting.popleft()
            future = self.pool.submit(self.engine.send, server, self.prompts[number], self.requests[number])
            self.running[future] = (server, number, server.epoch)

    def _limit(self) -> int:
        """Return how many requests one server may have: the first that is ready must not take the others' share."""
        servers = self.engine.servers
        expected = [server for server in servers if server.preparing and server.failures == 0]
        if not expected or time.monotonic() > self.patient_until:
            return self.engine.limit
        share = -(-len(self.prompts) // (len(expected) + sum(server.ready for server in servers)))
        return min(share, self.engine.limit)

    def _collect(self) -> None:
        """Wait for the next answer, until it is time to call a failed server, or until patience with one ends."""
        moments = [server.ask_at for server in self.engine.servers if not server.ready and not server.preparing]
        if self.waiting and self.patient_until > time.monotonic():
            moments.append(self.patient_until + 0.01)
        pause = max(min(moments) - time.monotonic(), 0.01) if moments else None
        if not self.running:
            time.sleep(pause or 0.01)
            return
        done, _ = wait(self.running, timeout=pause, return_when=FIRST_COMPLETED)
        for future in done:
            server, number, epoch = self.running.pop(future)
            if number is not None:
                self._answered(future, server, number, epoch)
                continue
            server.preparing = False
            try:
                server.base = future.result()
                server.ready = True
            except Unavailable as error:
                server.fail(str(error), self.engine.settings)

    def _answered(self, future: Future[Completion], server: Server, number: int, epoch: int) -> None:
        server.under_way -= 1
        try:
            self.completions[number] = future.result()
        except Unavailable as error:
            if epoch == server.epoch:
                server.fail(str(error), self.engine.settings)
            self.waiting.appendleft(number)
            self.tries[number] += 1
            if self.tries[number] > self.engine.settings.retries:
                raise EngineError(
                    f"a request failed {self.tries[number]} times, the last time at {server.url}: {error}; read the "
                    "servers' logs" + self.engine.advice(", or set a larger rollout.servers.retries or timeout")
                ) from error
        else:
            if epoch == server.epoch:
                server.failures = 0
