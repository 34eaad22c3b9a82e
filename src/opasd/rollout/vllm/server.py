"""Sample rollouts on vLLM servers: OpenAI-compatible completions, token ids in and out.

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL --enable-lora --max-lora-rank 64

This module knows what to say to one server: which base and adapter it must have, and how to read its answers. Module
`dispatch` distributes the requests of a batch over all servers.
"""

import math
import reprlib
import secrets
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from peft import PeftModel
from torch import nn
from transformers import PreTrainedTokenizerBase

from opasd.config import ModelConfig, RolloutConfig, SamplingConfig
from opasd.errors import ConfigError, EngineError
from opasd.model.sharding import divided
from opasd.rollout.adapters import AdapterExport, check_folder
from opasd.rollout.engine import AdapterEngine, Completion, Prompts, RolloutEngine
from opasd.rollout.vllm.dispatch import Batch, Server
from opasd.rollout.vllm.http import Refused, Unavailable, shown
from opasd.rollout.vllm.serving import HALF_PRECISION, ServedBase, ServingEngine
from opasd.together import from_first, processes, rank

_PREFIX = "opasd-"
_REMEMBERED = 8
"""Names of replaced adapters that are still unloaded from a server that was away."""
CLOSING = 5.0
"""Seconds that servers have at the end to unload their adapters."""


class ServerEngine(ServingEngine):
    """Servers over the student's base; they sample from `student`, or from the adapter given to `use_adapter`.

    Processes that train together have one engine each, over the same servers; the first one writes the adapter.
    """

    runs_ahead = True
    abandoned = False
    """Whether nobody wants the answers that are under way."""

    def __init__(
        self,
        config: RolloutConfig,
        base: ServedBase,
        longest: int,
        *,
        student: AdapterExport | None = None,
        configured: bool = True,
    ) -> None:
        """`configured` is false if the addresses come from --server: messages then name no field of a configuration."""
        super().__init__(config, base, longest)
        self.half_precision = config.vllm.dtype in HALF_PRECISION
        self.vocabulary = int(getattr(base.config.get_text_config(), "vocab_size", None) or 2**31)
        self.student = student
        self.configured = configured
        self.addresses = "rollout.servers.urls" if configured else "--server"
        """The setting that has the servers' addresses."""
        self.settings = config.servers
        self.servers = [Server(url, config.servers) for url in config.servers.urls]
        self._adapter: dict[str, str] | None = None
        """The request that loads the current adapter."""
        self._replaced: list[str] = []
        self._thread = ThreadPoolExecutor(1)
        self._under_way: Future[list[Completion]] | None = None

    @classmethod
    def for_training(
        cls, config: RolloutConfig, model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, longest: int
    ) -> RolloutEngine:
        base = ServedBase.of_student(model, tokenizer, config.engine)
        student = None
        if isinstance(model, PeftModel):
            folder = config.servers.adapter_dir
            student = AdapterExport(model, Path(folder).expanduser().absolute() if folder else None)
        elif any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(
                f"rollout.engine: {config.engine} takes adapters only, but all weights are trained; use "
                "model.adaptation: lora, or rollout.engine: vllm"
            )
        return cls(config, base, longest, student=student)

    @classmethod
    def for_evaluation(
        cls, config: RolloutConfig, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, *,
        longest: int, adapters: Sequence[Path],
    ) -> AdapterEngine:  # fmt: skip
        for path in adapters:  # before anything is sampled
            check_folder(path)
        return cls(config, ServedBase.of_files(model, tokenizer), longest, configured=False)

    def generate(
        self, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        if self._under_way is not None:  # its adapter must stay on the servers until then
            wait([self._under_way])
        return super().generate(prompts, sampling, seeds, measured=measured)

    def begin(self, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0) -> None:
        assert self._under_way is None
        requests = self.requests(prompts, sampling, seeds, measured)
        self.hand_over()  # in this thread: processes that train together take part in it
        self._under_way = self._thread.submit(self._complete, [list(prompt) for prompt in prompts], requests)

    def collect(self) -> list[Completion]:
        assert self._under_way is not None
        completions = self._under_way.result()
        self._under_way = None
        return completions

    def abandon(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        self.abandoned = True
        while not under_way.done():  # a call that had not begun is ended by the next turn
            for server in self.servers:
                server.client.abort()
            wait([under_way], timeout=0.2)
        self.abandoned = False

    def hand_over(self) -> None:
        if self.student is None:
            return
        weights = self.student.weights() if divided(self.student.model) else None  # all processes gather them
        path = from_first(partial(self.student.write, weights))
        if processes() > 1:
            dist.barrier()  # nobody still samples with the version before
        old = self._adapter
        self._switch(f"{_PREFIX}{path.parent.name}-{path.name}", path)
        if old is not None:
            self.student.forget(Path(old["lora_path"]))

    def use_adapter(self, path: Path | None) -> None:
        if path is not None:
            check_folder(path)
        self._switch(f"{_PREFIX}{secrets.token_hex(8)}", path)

    def close(self) -> None:
        """Unload the last adapters from the servers that answer soon, and remove the files."""
        self.abandon()
        self._thread.shutdown()
        self._switch("", None)
        try:
            if self._replaced:
                pool = ThreadPoolExecutor(len(self.servers))
                wait([pool.submit(self._unload_all, server) for server in self.servers], timeout=CLOSING)
                for server in self.servers:
                    server.client.abort()
                pool.shutdown(wait=False, cancel_futures=True)
        finally:
            if self.student is not None:
                self.student.close()

    def _unload_all(self, server: Server) -> None:
        with suppress(Unavailable):
            for name in self._replaced:
                self._unload(server, name)

    def _switch(self, name: str, path: Path | None) -> None:
        if self._adapter is not None:
            self._replaced = [*self._replaced[-_REMEMBERED:], self._adapter["lora_name"]]
        self._adapter = None if path is None else {"lora_name": name, "lora_path": str(path.absolute())}
        for server in self.servers:
            server.ready = False

    @property
    def limit(self) -> int:
        """This process's share of the `max_batch` requests that a server gets at a time."""
        count = processes()
        return max(1, self.config.max_batch // count + (rank() < self.config.max_batch % count))

    def _complete(self, prompts: list[list[int]], requests: list[dict[str, Any]]) -> list[Completion]:
        for server in self.servers:
            server.start_batch(self.settings.retries)
        pool = ThreadPoolExecutor(len(self.servers) * (min(self.limit, len(prompts)) + 1))
        batch = Batch(self, prompts, requests, pool)
        try:
            return batch.run()
        finally:
            if batch.running:  # an error, an interruption or a silent server: nobody waits for these answers
                for server in self.servers:
                    server.client.abort()
            pool.shutdown(wait=not batch.running, cancel_futures=True)

    # ---- calls to one server, each in a thread ----------------------------------------------------------------------

    def prepare(self, server: Server) -> str:
        """Check that a server is up and fits, give it the current adapter, and return the name of its base."""
        try:
            base, longest, names = read_models(server.client.call("/v1/models"))
        except Refused as error:
            message = f"{server.url} is no OpenAI-compatible server ({error}); correct {self.addresses}"
            raise EngineError(message) from error
        if longest is not None and longest < self.longest:
            raise EngineError(
                f"{server.url} takes sequences of {longest} tokens, but this run has up to {self.longest}; start it "
                f"with --max-model-len {self.longest}" + self.advice(", or lower rollout.max_model_len")
            )
        for name in set(self._replaced) & names:
            self._unload(server, name)
        if self._adapter is not None and self._adapter["lora_name"] not in names:
            self._load(server, self._adapter)
        return base

    def _load(self, server: Server, adapter: dict[str, str]) -> None:
        try:
            server.client.call("/v1/load_lora_adapter", adapter)
        except Refused as error:
            if "already" in str(error):  # another process of this run loaded it, or an answer was lost
                return
            raise EngineError(
                f"{server.url} does not take the adapter in {adapter['lora_path']} ({error}); start it with "
                "--enable-lora, a large enough --max-lora-rank and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, where "
                "it sees that folder" + self.advice(" (rollout.servers.adapter_dir)")
            ) from error

    def _unload(self, server: Server, name: str) -> None:
        with suppress(Refused):  # another process of this run was first
            server.client.call("/v1/unload_lora_adapter", {"lora_name": name})

    def send(self, server: Server, prompt: list[int], request: dict[str, Any]) -> Completion:
        """Return the completion of one prompt."""
        model = self._adapter["lora_name"] if self._adapter else server.base
        body = {"model": model, "prompt": prompt, "return_token_ids": True, **request}
        try:
            answer = server.client.call("/v1/completions", body, timeout=self.settings.timeout)
        except Refused as error:
            if error.status == 404:  # the server was restarted and has no adapter
                raise Unavailable(str(error)) from error
            raise EngineError(f"{server.url} refuses a request ({error})") from error
        ids, logprobs = read_completion(answer, model, request, server.url, self.vocabulary)
        return Completion.ended(ids, self.stop, logprobs=logprobs)

    def advice(self, text: str) -> str:
        """Return advice about the configuration, or nothing if there is none."""
        return text if self.configured else ""


def read_models(answer: Any) -> tuple[str, int | None, set[str]]:
    """Return the base's name, the longest sequence that it takes, and the names of all models."""
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


def read_completion(
    answer: Any, model: str, request: dict[str, Any], url: str, vocabulary: int
) -> tuple[list[int], list[float] | None]:
    """Return token ids and log-probabilities of a completion that was not broken off."""
    try:
        [choice] = answer["choices"]
        reason, ids = choice["finish_reason"], choice.get("token_ids")
        if ids is None:
            raise EngineError(f"{url} returns no token ids; it needs vLLM 0.10.2 or newer")
        if answer.get("model") != model:
            raise EngineError(
                f"{url} answered with {shown(reprlib.repr(answer.get('model')))} when asked for {model!r}"
            )
        logprobs = choice["logprobs"]["token_logprobs"] if "logprobs" in request else None
        is_whole = reason in ("stop", "length") and 0 < len(ids) <= request["max_tokens"]
        if not is_whole or not all(type(token) is int and token >= 0 for token in ids):
            raise Unavailable(f"a completion that was broken off ({reprlib.repr(reason)}, {len(ids)} tokens)")
        if max(ids) >= vocabulary:
            raise Unavailable(f"a token beyond the vocabulary of {vocabulary}: {max(ids)}")
        if logprobs is not None and (
            len(logprobs) != len(ids) or not all(type(p) in (float, int) and math.isfinite(p) for p in logprobs)
        ):
            raise Unavailable("log-probabilities that do not fit the tokens")
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError):
        raise Unavailable(f"a malformed completion: {reprlib.repr(answer)[:60]}") from None
    return ids, logprobs
