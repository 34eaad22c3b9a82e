"""Call one server. A call fails in two ways: the server is at fault, or the request is."""

import http.client
import io
import json
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from opasd.errors import ConfigError

KEY_VARIABLE = "VLLM_API_KEY"
"""Environment variable with the key for servers that require one."""
KEY_OF_OPENAI = "OPENAI_API_KEY"
"""The same for other servers."""
_SHORTEST_KEY = 8
"""A shorter one is a word that stands for none."""
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Options, where the system has them, that notice within about a minute that the other machine has vanished."""
MAX_ANSWER_BYTES = 64 * 2**20
"""More than any answer has: 100,000 tokens with their log-probabilities are about 15 MB."""


def shown(text: object) -> str:
    """Return text of a server for a terminal: one line of printable characters, not too long, and without the key."""
    words = " ".join(_without_keys(str(text)).split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words[:500])


def _without_keys(text: str) -> str:
    """Return the text with *** for the keys, which some servers repeat when they refuse them."""
    for variable in (KEY_VARIABLE, KEY_OF_OPENAI):
        if len(key := os.environ.get(variable, "").strip()) >= _SHORTEST_KEY:
            text = text.replace(key, "***")
    return text


class Unavailable(Exception):
    """The server gave no sensible answer; another server, or this one later, may give one."""

    retry_after: float | None = None
    """Seconds after which the server wants to be asked again, if it says so."""

    def __init__(self, reason: object) -> None:
        super().__init__(shown(reason))


class Refused(Exception):
    """The server understood the request and refuses it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(shown(f"HTTP {status}: {message}"))
        self.status = status


class _Answer(io.RawIOBase):
    """What a server sends, up to a moment and a size."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection, self._end, self._bytes = connection, end, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        self._bytes += count
        if self._bytes > MAX_ANSWER_BYTES:
            raise Unavailable(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
        return count


class _Line:
    """A connected socket as http.client uses it; what it reads is limited in time and size."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self.connection, self._end = connection, end

    def sendall(self, data: Any) -> None:
        self.connection.settimeout(max(self._end - time.monotonic(), 0.001))
        self.connection.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Answer(self.connection, self._end))

    def close(self) -> None:
        """Do nothing: http.client closes before it has read an answer without a length."""


class Client:
    """Calls one server; threads may share it."""

    def __init__(self, url: str, timeout: float, key_variable: str = KEY_VARIABLE) -> None:
        """`timeout` is that of a connection and of short calls; `key_variable` names the key's environment variable."""
        self._key_variable = key_variable
        address = urlsplit(url)
        assert address.hostname is not None
        self._address = (address.hostname, address.port)
        self._kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        self._root = address.path.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        self._open: set[socket.socket] = set()
        self._aborts = 0
        self._lock = threading.Lock()

    def call(self, path: str, body: Any = None, *, timeout: float | None = None) -> Any:
        """Return the answer to a GET, or to a POST if there is a body; `timeout` is for the whole answer."""
        timeout, aborts = timeout or self._timeout, self._aborts
        headers = {"Content-Type": "application/json"}
        if key := _key(self._key_variable):
            headers["Authorization"] = f"Bearer {key}"
        connection, wire = self._kind(*self._address, timeout=self._timeout), None
        try:
            connection.connect()
            wire = connection.sock
            assert wire is not None
            with self._lock:
                self._open.add(wire)
                if aborts != self._aborts:
                    raise Unavailable("the call was ended")
            _keep_alive(wire)
            connection.sock = _Line(wire, time.monotonic() + timeout)
            connection.request(
                "GET" if body is None else "POST", self._root + path, body and json.dumps(body), headers=headers
            )
            answer = connection.getresponse()
            status, content = answer.status, answer.read()
            wait = answer.headers.get("Retry-After", "")
        except (OSError, http.client.HTTPException, OverflowError, MemoryError, ValueError) as error:
            raise Unavailable(_describe(error, timeout)) from error
        finally:
            if wire is not None:
                with self._lock:
                    self._open.discard(wire)
                wire.close()
        try:
            return _read(status, content)
        except Unavailable as error:
            error.retry_after = float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 7 else None
            raise

    def abort(self) -> None:
        """End all calls now; the server stops its work on them when it notices."""
        with self._lock:
            self._aborts += 1
            for wire in self._open:
                with suppress(OSError):
                    wire.shutdown(socket.SHUT_RDWR)


def _key(variable: str) -> str:
    """Return the key in the environment, without the line end that a file gave it; no message shows it."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{variable} holds a character that no key has; set it again")
    return key


def _keep_alive(wire: socket.socket) -> None:
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _read(status: int, content: bytes) -> Any:
    if status >= 500 or status in (408, 429):
        raise Unavailable(f"HTTP {status}: {_message(content)}")
    if status != 200:
        raise Refused(status, _message(content))
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        text = _without_keys(content.decode(errors="replace"))
        if text.startswith("Success"):  # vLLM answers about adapters in plain text
            return text
        raise Unavailable(f"an answer that is not JSON: {text[:60]!r}") from None


def _message(content: bytes) -> str:
    """Return the reason in the body of an error."""
    with suppress(ValueError, RecursionError, AttributeError, TypeError):
        body = json.loads(content)
        body = body.get("error", body)
        return _without_keys(str(body.get("message", body) if isinstance(body, dict) else body))[:500]
    return _without_keys(content.decode(errors="replace"))[:200] or "no reason given"


def _describe(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionError | http.client.HTTPException):
        return "the connection was cut"
    if isinstance(error, ValueError):  # the length of a chunk is less than nothing
        return "an answer that is not HTTP"
    return str(error) or type(error).__name__
