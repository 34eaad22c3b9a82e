"""A small server that speaks chat completions, and misbehaves as it is told."""

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


def reply(text: str = "\\boxed{4}", reason: str = "stop", tokens: Any = 7, **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": text, **message}}
    return {"id": "1", "object": "chat.completion", "choices": [choice], "usage": {"completion_tokens": tokens}}


class ChatServer:
    """`script` has what is answered next: (status, body, headers); when it is empty, `answer`."""

    def __init__(self, *script: tuple[int, Any, dict[str, str]]) -> None:
        self.script, self.requests = deque(script), []
        self.keys: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, body))
                outer.keys.append(self.headers.get("Authorization"))
                status, answer, headers = outer.script.popleft() if outer.script else (200, outer.answer(body), {})
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request."""
        return reply()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
