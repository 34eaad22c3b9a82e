"""A stand-in for a vLLM server that misbehaves on demand; a process of its own, so that it can be killed.

    python fake_server.py PORT        # 0 chooses one; prints it

A completion's tokens are a function of prompt, seed and adapter alone: of its path, or of its `weights` or `nothing` if
`adapter` is so set. `POST /set` changes the state: `faults` and `model_faults` say what goes wrong with the next
completions and signs of life, one by one, or for ever if `lasting`; `held` keeps completions back. `GET /log` shows the
requests.
"""

import json
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STATE = {
    "adapters": {},
    "adapter": "path",
    "faults": [],
    "model_faults": [],
    "log": [],
    "held": False,
    "lasting": False,
    "hanging": 0,
    "longest": 4096,
    "runtime_lora": True,
    "busy": 0,
    "most_busy": 0,
    "stuck": False,
}
LOCK = threading.Lock()


def tokens(prompt: list[int], seed: int, max_tokens: int, adapter: str) -> list[int]:
    """The ids that any server gives."""
    shift = 1 + sum(adapter.encode()) % 96 if adapter else 0  # whatever its path, an adapter is not the base
    start = (sum(prompt) * 31 + seed * 7 + shift) % 97
    return [(start + index) % 100 + 1 for index in range(min(max_tokens, 3 + start % 5))]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: object) -> None:
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def cut(self, sent: bytes, promised: int = 1000) -> None:
        """Promise more than is sent, then hang up."""
        self.send_response(200)
        self.send_header("Content-Length", str(promised))
        self.end_headers()
        self.wfile.write(sent)
        self.wfile.flush()
        self.close_connection = True
        self.connection.close()

    def note(self, what: str) -> None:
        with LOCK:
            STATE["log"].append([what, self.headers.get("Authorization")])

    def do_GET(self) -> None:
        if self.path == "/log":
            return self.answer(200, {key: STATE[key] for key in ("log", "adapters", "most_busy", "hanging")})
        self.note(self.path)
        if faults := STATE["model_faults"]:
            return self.misbehave(faults[0] if STATE["lasting"] else faults.pop(0))
        cards = [{"id": "base", "parent": None, "max_model_len": STATE["longest"]}]
        return self.answer(200, {"data": cards + [{"id": name, "parent": "base"} for name in STATE["adapters"]]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/set":
            STATE.update(body)
            return self.answer(200, {})
        self.note(self.path)
        if STATE["stuck"]:
            return self.misbehave("hang")
        if self.path == "/v1/load_lora_adapter":
            return self.load(body)
        if self.path == "/v1/unload_lora_adapter":
            removed = STATE["adapters"].pop(body["lora_name"], None)
            return self.answer(200, "Success: gone") if removed else self.answer(404, {"error": {"message": "unknown"}})
        return self.complete(body)

    def load(self, body: dict) -> None:
        if not STATE["runtime_lora"]:
            return self.answer(404, {"detail": "Not Found"})
        if body["lora_name"] in STATE["adapters"]:
            return self.answer(400, {"error": {"message": f"{body['lora_name']} has already been loaded"}})
        if not (Path(body["lora_path"]) / "adapter_model.safetensors").is_file():
            return self.answer(404, {"error": {"message": "No adapter found"}})
        STATE["adapters"][body["lora_name"]] = body["lora_path"]
        return self.answer(200, "Success: LoRA adapter added")

    def complete(self, body: dict) -> None:
        with LOCK:
            fault = STATE["faults"].pop(0) if STATE["faults"] else None
            STATE["busy"] += 1
            STATE["most_busy"] = max(STATE["most_busy"], STATE["busy"])
        while fault is None and STATE["held"]:
            time.sleep(0.01)
        with LOCK:
            STATE["busy"] -= 1  # before the answer: with it in hand the client may send the next at once
        try:
            if fault is not None:
                return self.misbehave(fault)
            if body["model"] != "base" and body["model"] not in STATE["adapters"]:
                return self.answer(404, {"error": {"message": f"The model {body['model']} does not exist."}})
            path = STATE["adapters"].get(body["model"], "")
            if STATE["adapter"] == "nothing":
                path = ""
            elif STATE["adapter"] == "weights" and path:
                path = str(zlib.crc32((Path(path) / "adapter_model.safetensors").read_bytes()))
            ids = tokens(body["prompt"], body["seed"], body["max_tokens"], path)
            stopped = ids[-1] in body["stop_token_ids"]
            choice = {"token_ids": ids, "finish_reason": "stop" if stopped else "length", "text": ""}
            if "logprobs" in body:
                choice["logprobs"] = {"token_logprobs": [-0.5] * len(ids)}
            return self.answer(200, {"model": body["model"], "choices": [choice]})
        except BrokenPipeError:
            pass

    def pour(self, how: str) -> None:
        """Send for ever: as much as possible, or a little now and then."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"" if "headers" in how else b"Connection: close\r\n\r\n"))
        with suppress(OSError):
            while True:
                self.wfile.write(b"x" * 2**20 if how == "flood" else b"a: b\r\n" if "headers" in how else b"x")
                if how != "flood":
                    time.sleep(0.02)

    def misbehave(self, fault: object) -> None:
        if fault == "hang":
            STATE["hanging"] += 1
            threading.Event().wait()
        elif fault == "cut":
            self.cut(b'{"choices": [{"token_')
        elif fault == "claim":
            self.cut(b"{", 10**30)
        elif fault == "chunk":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}")
            self.close_connection = True
        elif fault == "refuse":
            self.answer(400, "[" * 200_000)
        elif fault in ("flood", "drip", "drip of headers"):
            self.pour(fault)
        elif fault == "slam":
            self.close_connection = True
            self.connection.close()
        elif isinstance(fault, dict) and "words" in fault:
            self.answer(fault["status"], {"error": {"message": fault["words"]}})
        elif isinstance(fault, int):
            self.answer(fault, {"error": {"message": f"told to say {fault}"}})
        else:  # a literal answer
            self.answer(200, fault if isinstance(fault, str) else json.dumps(fault))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        pass


class Process:
    """A fake server, in a process of its own."""

    def __init__(self, port=0):
        self.process = subprocess.Popen([sys.executable, __file__, str(port)], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def set(self, **values):
        body = json.dumps(values).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/set", body)).close()

    def hold(self):
        self.set(held=True)

    def received(self, count):
        """Return whether so many requests for completions have arrived."""
        return self.count("/v1/completions") >= count

    def log(self):
        with urllib.request.urlopen(f"{self.url}/log") as answer:
            return json.load(answer)

    def count(self, path):
        return sum(what == path for what, _ in self.log()["log"])

    def kill(self):
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


if __name__ == "__main__":
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
