"""Ask any OpenAI-compatible server (SGLang, llama.cpp, vLLM, hosted ones): messages in, texts out.

    ChatClient(url, "my-model", ServersConfig(), workers=8).answer(["What is 2 + 2?"], sampling, seeds=[1])

No token ids travel, so such a server can be evaluated and not trained on. A server that fails or asks to wait is asked
again; one that refuses a request ends the batch with its own words. The key is read from the environment.
"""

import random
import reprlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from opasd.choices import FinishReason
from opasd.config import SamplingConfig, ServersConfig
from opasd.errors import ConfigError, EngineError
from opasd.rollout.vllm.http import KEY_OF_OPENAI, Client, Refused, Unavailable

KEY_VARIABLE = KEY_OF_OPENAI
"""Environment variable with the key; it is sent to the server and written nowhere."""
LONGEST_WAIT = 120.0
"""Most seconds that a server's Retry-After is followed."""
_CHARS_PER_TOKEN = 64
"""A reply with more characters a token than this is not one of the tokens that were asked for."""
_EXTENSIONS = {"top_k": 0, "min_p": 0.0}
"""Settings beyond OpenAI's own that many servers know, and the value at which they are not sent."""


@dataclass(frozen=True)
class ChatAnswer:
    """One answer; reasoning that the server returns apart stands in front of it, between think tags."""

    text: str
    finish_reason: FinishReason
    tokens: int | None
    """As the server counts them; None if it does not say."""


class OpenAIEngine:
    """The engine's entry: it cannot train, and an evaluation asks it through `ChatClient`."""

    @classmethod
    def for_training(cls, *_: Any, **__: Any) -> Any:
        raise ConfigError(
            "rollout.engine: openai returns texts without token ids; use transformers, vllm or vllm_server"
        )

    for_evaluation = for_training


class ChatClient:
    """Asks one server for one model."""

    def __init__(
        self,
        url: str,
        model: str,
        config: ServersConfig,
        workers: int,
        template_options: dict[str, Any] | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.url, self.model, self.config, self.workers = url.rstrip("/"), model, config, workers
        self.template_options = template_options or {}
        self._client, self._ended = Client(url, config.probe_timeout, KEY_VARIABLE), threading.Event()
        self._pause = pause or self._ended.wait

    def answer(self, messages: Sequence[str], sampling: SamplingConfig, seeds: Sequence[int]) -> list[ChatAnswer]:
        """Return one answer to each message, in order."""
        self._ended.clear()
        pool = ThreadPoolExecutor(min(self.workers, len(messages)) or 1)
        waiting = [pool.submit(self._ask, self._body(*pair, sampling)) for pair in zip(messages, seeds, strict=True)]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            self._ended.set()  # nobody waits for the other answers: they are not asked for again
            self._client.abort()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _body(self, message: str, seed: int, sampling: SamplingConfig) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": message}],
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed & 0x7FFFFFFF,  # several servers take 32 bits
            "n": 1,
        }
        body |= {name: getattr(sampling, name) for name, off in _EXTENSIONS.items() if getattr(sampling, name) != off}
        return body | ({"chat_template_kwargs": self.template_options} if self.template_options else {})

    def _ask(self, body: dict[str, Any]) -> ChatAnswer:
        for tried in range(self.config.retries + 1):
            try:
                reply = self._client.call("/v1/chat/completions", body, timeout=self.config.timeout)
                return read_answer(reply, body["max_tokens"])
            except Refused as error:
                sent = [name for name in (*_EXTENSIONS, "chat_template_kwargs", "seed") if name in body]
                raise EngineError(
                    f"{self.url} refuses a request ({error}); check the model's name, {KEY_VARIABLE}, and what "
                    f"not every server knows, {', '.join(sent)}"
                ) from error
            except Unavailable as error:
                if self._ended.is_set():
                    raise
                if tried == self.config.retries:
                    raise EngineError(
                        f"{self.url} gives no answer after {tried + 1} tries ({error}); give the same command again "
                        "later: it continues"
                    ) from error
                longest = min(self.config.backoff * 2**tried, self.config.max_backoff)
                asked = min(error.retry_after or 0.0, LONGEST_WAIT)
                self._pause(max(asked, longest * random.uniform(0.75, 1.0)))
                if self._ended.is_set():
                    raise
        raise AssertionError("unreachable")


def read_answer(reply: Any, limit: int) -> ChatAnswer:
    """Return the answer in a reply that nobody vouches for."""
    try:
        [choice] = reply["choices"]
        message, reason = choice["message"], choice["finish_reason"]
        content = message.get("content") or ""
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""  # vLLM's name for it
        usage = reply.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unavailable(f"a reply without an answer: {reprlib.repr(reply)[:80]}") from None
    if reason == "content_filter":  # the server withholds the rest, and would again
        reason = "stop"
    if not isinstance(content, str) or not isinstance(reasoning, str) or reason not in ("stop", "length"):
        raise Unavailable(f"a reply that is no whole answer (finish_reason {reason!r:.40})")
    if len(content) + len(reasoning) > _CHARS_PER_TOKEN * limit:
        raise Unavailable(f"a reply of {len(content) + len(reasoning)} characters for {limit} tokens")
    closed = "</think>" if content or reason == "stop" else ""
    text = f"<think>{reasoning}{closed}{content}" if reasoning else content
    is_count = isinstance(counted, int) and not isinstance(counted, bool) and 0 <= counted <= 2 * limit
    return ChatAnswer(text, reason, counted if is_count else None)
