"""Rollouts with vLLM servers: OpenAI-compatible completions, token ids in and out.

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL --enable-lora --max-lora-rank 64

A request goes to the server with the fewest under way. One that fails waits for another server, or for the same one to
come back; a server that failed is asked for a sign of life after a pause that doubles, and gets the current adapter
before it gets requests again. A completion depends on its seed alone, so it does not matter who gives it.
"""

import logging
import math
import random
import reprlib
import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from opasd.config import ServersConfig
from opasd.errors import EngineError
from opasd.rollout.adapters import AdapterExport, check_folder
from opasd.rollout.engine import Completion
from opasd.rollout.vllm.http import Client, Refused, Unavailable
from opasd.rollout.vllm.serving import ServingEngine

_log = logging.getLogger(__name__)
_jitter = random.Random()
_PREFIX = "opasd-"
PATIENCE = 5.0
"""Seconds for which a server's share of a batch waits until it has taken the adapter."""


@dataclass(frozen=True)
class _Adapter:
    name: str
    path: str


class _Server:
    """What is known of one server; touched by the dispatching thread alone, but for its client."""

    def __init__(self, url: str, config: ServersConfig) -> None:
        self.url = url.rstrip("/")
        self.client = Client(url, config.probe_timeout)
        self.ready = False
        self.asking = False
        self.under_way = 0
        self.last_used = 0
        self.failures = 0
        """In a row, without a completion in between."""
        self.failed_as = ""
        self.ask_at = 0.0
        self.epoch = 0
        """Goes up when the server fails: what was sent before may still come back with the same failure."""
        self.base = ""


class ServerEngine(ServingEngine):
    """Servers over the student's base; sample from `student` where one is given, else from what `use_adapter` says."""

    def __init__(
        self,
        config: ServersConfig,
        stop: frozenset[int],
        longest: int,
        *,
        vocabulary: int,
        max_batch: int = 256,
        student: AdapterExport | None = None,
        first: bool = True,
        configured: bool = True,
    ) -> None:
        """`max_batch` requests at most are under way at one server. Of several processes that train together, each has
        an engine with the same servers, and the `first` hands the adapter over; only there `student` does anything.
        Ids from `vocabulary` on are nonsense. What is not `configured` was given as --server, with nothing else to set.
        """
        super().__init__(stop, longest)
        self.config = config
        self.vocabulary = vocabulary
        self.configured = configured
        self.max_batch = max_batch
        self.student = student
        self.first = first
        self.servers = [_Server(url, config) for url in config.urls]
        self._token = secrets.token_hex(4)
        self._versions = 0
        self._used = 0
        self._adapter: _Adapter | None = None
        self._old: list[str] = []

    def hand_over(self) -> None:
        if self.student is None:
            return
        path = _from_first(self.student.write, first=self.first)
        old = self._adapter
        self._switch(_Adapter(f"{_PREFIX}{path.parent.name}-{path.name}", str(path)))
        if old is not None:
            self.student.forget(Path(old.path))

    def use_adapter(self, path: Path | None) -> None:
        if path is not None:
            check_folder(path)
        self._versions += 1
        name = f"{_PREFIX}{self._token}-{self._versions}"
        self._switch(None if path is None else _Adapter(name, str(path.absolute())))

    def close(self) -> None:
        """Take the last adapter off the servers that answer, and remove its files."""
        self._switch(None)
        for server in self.servers:
            for name in self._old:
                try:
                    self._unload(server, name)
                except Unavailable:
                    break
        if self.student is not None:
            self.student.close()

    def _switch(self, adapter: _Adapter | None) -> None:
        if self._adapter is not None:
            self._old = [*self._old[-8:], self._adapter.name]
        self._adapter = adapter
        for server in self.servers:
            server.ready = False

    # ---- one batch --------------------------------------------------------------------------------------------------

    def _complete(self, prompts: list[list[int]], requests: list[dict[str, Any]]) -> list[Completion]:
        for server in self.servers:
            server.under_way, server.asking = 0, False
            server.failures = min(server.failures, self.config.retries)  # each batch tries once at least
        pool = ThreadPoolExecutor(len(self.servers) * (min(self.max_batch, len(prompts)) + 1))
        batch = _Batch(self, prompts, requests, pool)
        try:
            return batch.run()
        finally:
            if batch.running:  # an error or an interruption, or a server that is still silent: nobody waits for them
                for server in self.servers:
                    server.client.abort()
            pool.shutdown(wait=not batch.running, cancel_futures=True)

    def ask(self, server: _Server) -> str:
        """The name of the base that the server has; it is up, fits, and has the current adapter. In a thread."""
        timeout = self.config.probe_timeout
        try:
            models = server.client.call("/v1/models", timeout=timeout)
        except Refused as error:
            raise EngineError(
                f"{server.url} is no OpenAI-compatible server ({error}); correct {self.addresses}"
            ) from error
        base, longest, names = _models(models)
        if longest is not None and longest < self.longest:
            raise EngineError(
                f"{server.url} takes sequences of {longest} tokens, but this run has up to {self.longest}; start it "
                f"with --max-model-len {self.longest}" + self.setting(", or lower rollout.max_model_len")
            )
        for name in set(self._old) & names:
            self._unload(server, name)
        if self._adapter is not None and self._adapter.name not in names:
            self._load(server, self._adapter)
        return base

    def _load(self, server: _Server, adapter: _Adapter) -> None:
        body = {"lora_name": adapter.name, "lora_path": adapter.path}
        try:
            server.client.call("/v1/load_lora_adapter", body, timeout=self.config.probe_timeout)
        except Refused as error:
            if "already" in str(error):  # by another process of this run, or by a call whose answer was lost
                return
            raise EngineError(
                f"{server.url} does not take the adapter in {adapter.path} ({error}); start it with --enable-lora, "
                "a --max-lora-rank that is large enough and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, where it sees that "
                "folder" + self.setting(" (rollout.servers.adapter_dir)")
            ) from error

    def _unload(self, server: _Server, name: str) -> None:
        with suppress(Refused):  # another process of this run was first
            server.client.call("/v1/unload_lora_adapter", {"lora_name": name}, timeout=self.config.probe_timeout)

    def send(self, server: _Server, prompt: list[int], request: dict[str, Any]) -> Completion:
        """One completion. In a thread."""
        model = self._adapter.name if self._adapter else server.base
        body = {"model": model, "prompt": prompt, "return_token_ids": True, **request}
        try:
            answer = server.client.call("/v1/completions", body, timeout=self.config.timeout)
        except Refused as error:
            if error.status == 404:  # started anew, without the adapter
                raise Unavailable(str(error)) from error
            raise EngineError(f"{server.url} refuses a request ({error})") from error
        return self._completion(*_answer(answer, model, request, server.url, self.vocabulary))

    def least_busy(self, limit: int) -> _Server | None:
        """The server for the next request, of those with fewer than `limit` under way; in turns among equals."""
        able = [server for server in self.servers if server.ready and server.under_way < limit]
        if not able:
            return None
        server = min(able, key=lambda server: (server.under_way, server.last_used))
        self._used += 1
        server.last_used = self._used
        return server

    def failed(self, server: _Server, reason: str) -> None:
        """Note that the server cannot be used for now."""
        pause = min(self.config.backoff * 2**server.failures, self.config.max_backoff) * _jitter.uniform(0.75, 1.0)
        server.failures += 1
        server.epoch += 1
        server.ready, server.failed_as, server.ask_at = False, reason, time.monotonic() + pause
        _log.warning("%s: %s; asked again in %.1f s, others take its requests", server.url, reason, pause)

    @property
    def addresses(self) -> str:
        """Where they were given."""
        return "rollout.servers.urls" if self.configured else "--server"

    def setting(self, advice: str) -> str:
        """Advice on the configuration, where there is one."""
        return advice if self.configured else ""

    def given_up(self) -> bool:
        return all(not server.ready and server.failures > self.config.retries for server in self.servers)


class _Batch:
    """The requests of one call on their way to the servers."""

    def __init__(
        self, engine: ServerEngine, prompts: list[list[int]], requests: list[dict[str, Any]], pool: ThreadPoolExecutor
    ) -> None:
        self.engine = engine
        self.prompts = prompts
        self.requests = requests
        self.pool = pool
        self.waiting = deque(range(len(prompts)))
        self.tries = [0] * len(prompts)
        self.found: dict[int, Completion] = {}
        self.patient_until = time.monotonic() + PATIENCE
        self.running: dict[Future[Any], tuple[_Server, int | None, int]] = {}
        """Server, number of the request or None where it was only asked for a sign of life, and its epoch."""

    def run(self) -> list[Completion]:
        while len(self.found) < len(self.prompts):
            self._ask()
            self._send()
            if not self.running and self.engine.given_up():
                raise EngineError(_nobody(self.engine))
            self._collect()
        return [self.found[number] for number in range(len(self.prompts))]

    def _ask(self) -> None:
        now = time.monotonic()
        for server in self.engine.servers:
            if not server.ready and not server.asking and server.ask_at <= now and not self.engine.given_up():
                server.asking = True
                self.running[self.pool.submit(self.engine.ask, server)] = (server, None, server.epoch)

    def _send(self) -> None:
        limit = self._limit()
        while self.waiting and (server := self.engine.least_busy(limit)) is not None:
            number = self.waiting.popleft()
            server.under_way += 1
            future = self.pool.submit(self.engine.send, server, self.prompts[number], self.requests[number])
            self.running[future] = (server, number, server.epoch)

    def _limit(self) -> int:
        """How many requests one server may have: whoever is ready first must not get what belongs to the others."""
        servers = self.engine.servers
        expected = [server for server in servers if server.asking and server.failures == 0]
        if not expected or time.monotonic() > self.patient_until:
            return self.engine.max_batch
        share = -(-len(self.prompts) // (len(expected) + sum(server.ready for server in servers)))
        return min(share, self.engine.max_batch)

    def _collect(self) -> None:
        """Wait for the next answer, or until a server is to be asked again or waited for no longer."""
        moments = [server.ask_at for server in self.engine.servers if not server.ready and not server.asking]
        if self.waiting and self.patient_until > time.monotonic():
            moments.append(self.patient_until + 0.01)
        pause = max(min(moments) - time.monotonic(), 0.01) if moments else None
        if not self.running:
            time.sleep(pause or 0.01)
            return
        done, _ = wait(self.running, timeout=pause, return_when=FIRST_COMPLETED)
        for future in done:
            server, number, epoch = self.running.pop(future)
            if number is None:
                self._asked(future, server)
            else:
                self._answered(future, server, number, epoch)

    def _asked(self, future: Future[str], server: _Server) -> None:
        server.asking = False
        try:
            server.base = future.result()
        except Unavailable as error:
            self.engine.failed(server, str(error))
        else:
            server.ready = True

    def _answered(self, future: Future[Completion], server: _Server, number: int, epoch: int) -> None:
        server.under_way -= 1
        try:
            self.found[number] = future.result()
        except Unavailable as error:
            if epoch == server.epoch:
                self.engine.failed(server, str(error))
            self.waiting.appendleft(number)
            self.tries[number] += 1
            if self.tries[number] > self.engine.config.retries:
                raise EngineError(
                    f"a request failed {self.tries[number]} times, the last time at {server.url}: {error}; see what "
                    "the servers log" + self.engine.setting(", or set a larger rollout.servers.retries or timeout")
                ) from error
        else:
            if epoch == server.epoch:
                server.failures = 0


def _nobody(engine: ServerEngine) -> str:
    reasons = "; ".join(f"{server.url}: {server.failed_as}" for server in engine.servers)
    return (
        f"no vLLM server answers, after {engine.config.retries + 1} tries each: {reasons}. Start them, or correct "
        f"{engine.addresses}"
    )


def _models(answer: Any) -> tuple[str, int | None, set[str]]:
    """The base's name, the longest sequence it takes, and the names of all models."""
    try:
        cards = answer["data"]
        base = next(card for card in cards if not card.get("parent"))
        longest = base.get("max_model_len")
        names = {card["id"] for card in cards}
        if not all(isinstance(name, str) for name in names):
            raise TypeError
        return base["id"], longest if isinstance(longest, int) else None, names
    except (KeyError, TypeError, AttributeError, StopIteration):
        raise Unavailable(f"a list of models without one: {reprlib.repr(answer)[:60]}") from None


def _answer(
    answer: Any, model: str, request: dict[str, Any], url: str, vocabulary: int
) -> tuple[list[int], list[float] | None]:
    """Token ids and log-probabilities of a completion that was not broken off."""
    try:
        [choice] = answer["choices"]
        reason, ids = choice["finish_reason"], choice.get("token_ids")
        if ids is None:
            raise EngineError(f"{url} returns no token ids; it needs vLLM 0.10.2 or newer")
        if answer.get("model") != model:
            raise EngineError(f"{url} answered with {answer.get('model')!r} when asked for {model!r}")
        logprobs = choice["logprobs"]["token_logprobs"] if "logprobs" in request else None
        whole = reason in ("stop", "length") and 0 < len(ids) <= request["max_tokens"]
        if not whole or not all(type(token) is int and token >= 0 for token in ids):
            raise Unavailable(f"a completion that was broken off ({reason}, {len(ids)} tokens)")
        if max(ids) >= vocabulary:
            raise Unavailable(f"a token beyond the vocabulary of {vocabulary}: {max(ids)}")
        if logprobs is not None and (
            len(logprobs) != len(ids) or not all(type(p) in (float, int) and math.isfinite(p) for p in logprobs)
        ):
            raise Unavailable("log-probabilities that do not fit the tokens")
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError):
        raise Unavailable(f"a malformed completion: {reprlib.repr(answer)[:60]}") from None
    return ids, logprobs


def _from_first(write: Callable[[], Path], *, first: bool) -> Path:
    """The path that the first process writes, on all processes; or its error, on all."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    found: list[Path | Exception | None] = [None]
    if first or not several:
        try:
            found = [write()]
        except Exception as error:
            found = [error]
    if several:
        dist.broadcast_object_list(found)
        dist.barrier()  # nobody still samples with the version before
    [path] = found
    if isinstance(path, Exception):
        raise path
    assert path is not None
    return path
