"""The embedded model with an adapter, prompts over which vLLM's caches reach, and servers to start."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from opasd.config import ModelConfig, RolloutConfig, SamplingConfig
from opasd.lab import model_path

GREEDY = SamplingConfig(temperature=0, max_new_tokens=48)
LAB = str(model_path())
FLOAT32 = ModelConfig(name_or_path=LAB, dtype="float32")
"""The embedded model, as `serve_base` loads it."""
LONGEST = 600
SMALL = {"memory_share": 0.05, "cache_bytes": 64 << 20}
BLOCK = 128
"""Tokens of a block of vLLM's prefix cache on a CPU: shorter prompts would hide what it does wrong."""


def config(engine: str = "vllm", **settings) -> RolloutConfig:
    return RolloutConfig.model_validate({"engine": engine, "vllm": SMALL, "max_batch": 64, **settings})


def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(LAB)


def base() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(LAB, dtype=torch.float32).eval()


def student(seed: int = 0, rank: int = 8) -> PeftModel:
    """The model with an adapter that changes what it says."""
    torch.manual_seed(seed)
    adapted = get_peft_model(
        base(), LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    change(adapted)
    return adapted.eval()


@torch.no_grad()
def change(model: torch.nn.Module, size: float = 0.05) -> None:
    """What an update does, only more of it."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(size * torch.randn_like(parameter))


def prompts(count: int = 8, seed: int = 0, *, lengths: tuple[int, int] = (2 * BLOCK, 3 * BLOCK)) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(500) for _ in range(rng.randint(*lengths))] for _ in range(count)]


def greedy(model: torch.nn.Module, prompt: list[int], limit: int = GREEDY.max_new_tokens) -> tuple[int, ...]:
    """transformers' own greedy tokens, nothing of ours in between."""
    ids = torch.tensor([prompt])
    output = model.generate(  # pyright: ignore
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=limit,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tuple(output[0, len(prompt) :].tolist())


class Server:
    """A `vllm serve` process over the embedded model."""

    def __init__(self, port: int | None = None, max_rank: int = 16, *options: str) -> None:
        self.port = port or _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", LAB, "--host", "127.0.0.1",
                "--port", str(self.port), "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager",
                "--enable-lora", "--max-lora-rank", str(max_rank), "--max-loras", "1", "--max-num-seqs", "32",
                "--kv-cache-memory-bytes", str(64 << 20), "--gpu-memory-utilization", "0.05",
                "--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048", *options,
            ],
            env=os.environ
            | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def wait(self, seconds: float = 400) -> "Server":
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log()
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return self
            except OSError:
                time.sleep(0.5)
        raise AssertionError(f"not ready within {seconds} s\n{self.log()}")

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:]

    def served(self) -> int:
        """Requests that ended well since the start."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total{")))

    def stop(self) -> None:
        """Let it go in peace, so that it takes its shared memory along."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to all of its processes; what they leave in shared memory is removed."""
        if self.process.poll() is None:
            shared = _shared_memory(self.process.pid)
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for path in shared:
                path.unlink(missing_ok=True)
        self._log.close()


def _shared_memory(group: int) -> set[Path]:
    """Files in shared memory that the processes of a group have open."""
    found: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone, or not ours
            if os.getpgid(int(process.name)) == group:
                lines = (process / "maps").read_text().splitlines()
                found |= {Path(line.split()[-1]) for line in lines if "/dev/shm/" in line and "deleted" not in line}
    return found


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
