"""A step with `rollout.ahead` 0 and 1, with a server that takes a set time, in turns within one run.

    python benchmarks/overlap.py --json benchmarks/results/overlap-cpu.json
    python benchmarks/overlap.py --server http://localhost:8000 --model MODEL --json overlap-h200.json

The embedded model with LoRA trains on a CPU. Its rollouts come from a stand-in for a vLLM server in another process:
it waits and then answers, so it takes no time of the CPU that updates. First the update is timed by itself. Then the
server takes a half, one and two times as long. Each case runs several times, 0 and 1 in turns; the medians are shown.
The update of a row is what remains of its step without the server. Times depend on the machine; the ratio does less.

With --server a real vLLM server of MODEL answers, which may share the trainer's GPU: start it with `--enable-lora`,
`--max-lora-rank 64` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass, fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

SHARES = (0.5, 1.0, 2.0)
"""The server's time, in units of the update's."""


class Handler(BaseHTTPRequestHandler):
    """What the engine asks of a server: its models, adapters, completions."""

    seconds = 0.0

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "base", "parent": None, "max_model_len": 4096}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/set":
            Handler.seconds = body["seconds"]
        if self.path != "/v1/completions":
            return self.answer({})
        time.sleep(Handler.seconds)
        ids = [5 + (body["seed"] + n) % 200 for n in range(body["max_tokens"])]
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "length",
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
        }
        return self.answer({"model": body["model"], "choices": [choice]})

    def answer(self, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def serve() -> None:
    ThreadingHTTPServer.request_queue_size = 64
    server = ThreadingHTTPServer(("localhost", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


@dataclass(frozen=True)
class Setting:
    """What is trained, and on how much."""

    model: str = "lab"
    dtype: str = "float32"
    tokens: int = 32
    problems: int = 4
    accumulated: int = 4
    """Parts of a step."""
    steps: int = 7


def set_server(url: str, seconds: float) -> None:
    """Let the stand-in take so long for an answer."""
    content = json.dumps({"seconds": seconds}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{url}/set", content)).read()


def step_seconds(folder: Path, url: str, ahead: int, setting: Setting) -> list[float]:
    """Return the time of each step but the first, which has nothing drawn ahead."""
    from transformers import TrainerCallback

    from opasd.config import RunConfig
    from opasd.trainer.session import make_trainer

    rollout = {"engine": "vllm_server", "servers": {"urls": [url]}, "max_new_tokens": setting.tokens, "ahead": ahead}
    train = {"max_steps": setting.steps, "gradient_accumulation_steps": setting.accumulated}
    train |= {"per_device_train_batch_size": setting.problems // setting.accumulated}
    config = RunConfig.model_validate(
        {
            "model": {"name_or_path": setting.model, "dtype": setting.dtype},
            "data": {"source": "lab", "sample": setting.problems * (setting.steps + 2)},
            "rollout": rollout | {"drift": {"every": 0}}, "objective": {"gradients_every": 0},
            "train": train, "save_samples_every": 0,
        }
    )  # fmt: skip
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ends.append(time.perf_counter())

    trainer = make_trainer(config, folder)
    trainer.add_callback(Clock())
    trainer.train()
    trainer.close()
    return [after - before for before, after in pairwise(ends[:-1])]  # the last one also saves


def stand_in(turns: int) -> list[dict[str, Any]]:
    """Time both ways with a server that takes a set time; print and return the rows."""
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout is not None
        url, runs = f"http://localhost:{int(server.stdout.readline())}", iter(range(1000))

        def timed(ahead: int, seconds: float) -> list[float]:
            set_server(url, seconds)
            return step_seconds(Path(folder, str(next(runs))), url, ahead, Setting())

        try:
            update = statistics.median(timed(0, 0.0))
            print(f"an update alone: {update:.2f} s")
            print("| server, s | update, s | ahead 0, s | ahead 1, s | ratio | longer of both / sum |", flush=True)
            for share in SHARES:
                waiting = share * update
                seconds: dict[int, list[float]] = {0: [], 1: []}
                for _ in range(turns):
                    for ahead, times in seconds.items():
                        times += timed(ahead, waiting)
                behind, sooner = (statistics.median(times) for times in seconds.values())
                rest = behind - waiting
                figures = (waiting, rest, behind, sooner, sooner / behind, max(waiting, rest) / behind)
                rows.append({"server": waiting, "ahead_0": seconds[0], "ahead_1": seconds[1]})
                print("".join(f"| {figure:.2f} " for figure in figures) + "|", flush=True)
        finally:
            server.terminate()
    return rows


def real(url: str, setting: Setting, turns: int) -> list[dict[str, Any]]:
    """Time both ways with a real server, in turns; print the medians and return the rows."""
    seconds: dict[int, list[float]] = {0: [], 1: []}
    with tempfile.TemporaryDirectory() as folder:
        step_seconds(Path(folder, "first"), url, 0, replace(setting, steps=2))  # kernels compile
        for turn in range(turns):
            for ahead, times in seconds.items():
                times += step_seconds(Path(folder, f"{turn}-{ahead}"), url, ahead, setting)
                print(f"ahead {ahead}: {' '.join(f'{one:.2f}' for one in times)}", flush=True)
    behind, sooner = (statistics.median(times) for times in seconds.values())
    print(f"| ahead 0, s | ahead 1, s | ratio |\n| {behind:.2f} | {sooner:.2f} | {sooner / behind:.2f} |", flush=True)
    return [{"server": "real", **asdict(setting), "model": "", "ahead_0": seconds[0], "ahead_1": seconds[1]}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--server", help="address of a real vLLM server of MODEL")
    parser.add_argument("--model", default="lab", help="what it serves")
    parser.add_argument("--dtype", default="bfloat16", help="MODEL's")
    for name, default in (("tokens", 256), ("problems", 32), ("accumulated", 1), ("steps", 5)):
        parser.add_argument(f"--{name}", type=int, default=default, help="with --server; default: %(default)s")
    parser.add_argument("--json")
    options = parser.parse_args()
    from measure import gpu_heading, save

    found = gpu_heading("Rollouts ahead of the update", 0)
    if options.server:
        names = [field.name for field in fields(Setting)]
        rows = real(options.server, Setting(**{name: getattr(options, name) for name in names}), options.turns)
    else:
        rows = stand_in(options.turns)
    if options.json:
        save(options.json, found, rows)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
