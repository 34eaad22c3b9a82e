"""Call one server. A call fails in two ways: the server is at fault, or the request is."""

import http.client
import json
import os
import socket
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

KEY_VARIABLE = "VLLM_API_KEY"
"""Environment variable with the key for servers that require one."""
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Options, where the system has them, that notice within about a minute that the other machine has vanished."""


class Unavailable(Exception):
    """The server gave no sensible answer; another server, or this one later, may give one."""


class Refused(Exception):
    """The server understood the request and refuses it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class Client:
    """Calls one server; threads may share it."""

    def __init__(self, url: str, timeout: float) -> None:
        """`timeout` is that of a connection and of short calls."""
        address = urlsplit(url)
        assert address.hostname is not None
        self._address = (address.hostname, address.port)
        self._kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        self._root = address.path.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()

    def call(self, path: str, body: Any = None, *, timeout: float | None = None) -> Any:
        """Return the answer to a GET, or to a POST if there is a body."""
        timeout = timeout or self._timeout
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        connection = self._kind(*self._address, timeout=self._timeout)
        with self._lock:
            self._open.add(connection)
        try:
            connection.connect()
            assert connection.sock is not None
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE.items():
                if hasattr(socket, option):
                    connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            connection.sock.settimeout(timeout)
            connection.request(
                "GET" if body is None else "POST", self._root + path, body and json.dumps(body), headers=headers
            )
            answer = connection.getresponse()
            status, content = answer.status, answer.read()  # a huge length raises OverflowError or MemoryError
        except (OSError, http.client.HTTPException, OverflowError, MemoryError) as error:
            raise Unavailable(_describe(error, timeout)) from error
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
        return _read(status, content)

    def abort(self) -> None:
        """End all calls now; the server stops its work on them when it notices."""
        with self._lock:
            for connection in self._open:
                if connection.sock is not None:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)


def _read(status: int, content: bytes) -> Any:
    if status >= 500 or status in (408, 429):
        raise Unavailable(f"HTTP {status}: {_message(content)}")
    if status != 200:
        raise Refused(status, _message(content))
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        text = content.decode(errors="replace")
        if text.startswith("Success"):  # vLLM answers about adapters in plain text
            return text
        raise Unavailable(f"an answer that is not JSON: {text[:60]!r}") from None


def _message(content: bytes) -> str:
    """Return the reason in the body of an error."""
    with suppress(ValueError, RecursionError, AttributeError, TypeError):
        body = json.loads(content)
        body = body.get("error", body)
        return str(body.get("message", body) if isinstance(body, dict) else body)[:500]
    return content.decode(errors="replace")[:200] or "no reason given"


def _describe(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionError | http.client.HTTPException):
        return "the connection was cut"
    return str(error) or type(error).__name__
