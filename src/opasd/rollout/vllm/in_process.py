"""Rollouts with vLLM in the training process; the one file that imports it.

It has its own copy of the base weights on the training device and takes the student's adapter as an adapter, never
merged. Without adapters all weights are copied over. Between batches it sleeps where the device can, so that rollout
and update have the memory in turn.

In the process of another, vLLM seeds the global generators, replaces `torch.set_num_threads` and sets environment
variables that child processes would inherit; all that is put back.
"""

import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from opasd.config import VLLMConfig
from opasd.errors import ConfigError
from opasd.rollout.adapters import AdapterExport, check_folder, check_whole
from opasd.rollout.engine import Completion
from opasd.rollout.vllm.serving import ServingEngine

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM can be set up for."""


class VLLMEngine(ServingEngine):
    """vLLM over the base in `source`; samples from `student` where one is given, else from what `use_adapter` says."""

    def __init__(
        self,
        source: str,
        stop: frozenset[int],
        longest: int,
        config: VLLMConfig,
        *,
        dtype: str,
        max_batch: int = 256,
        rank: int = 0,
        student: AdapterExport | nn.Module | None = None,
        processes: int = 1,
        **options: Any,
    ) -> None:
        """`rank` is the largest one of an adapter, 0 for none; `options` go to `vllm.LLM`."""
        super().__init__(stop, longest)
        self.student = student
        self._on_gpu = torch.cuda.is_available()
        self._sleeps = config.sleep and self._on_gpu
        self._asleep = False
        self._versions = 0
        self._adapter: Any = None
        settings: dict[str, Any] = {
            "model": source,
            "dtype": dtype,
            "max_model_len": longest,
            "max_num_seqs": max_batch,
            "gpu_memory_utilization": config.memory_share,
            "kv_cache_memory_bytes": config.cache_bytes,
            "enforce_eager": config.eager or not self._on_gpu,
            "enable_sleep_mode": self._sleeps,
            "logprobs_mode": "raw_logprobs",
            "skip_tokenizer_init": True,
            "use_tqdm_on_load": False,
            "generation_config": "vllm",
        }
        if not self._on_gpu:
            # A CPU's generator cannot be set back after a part of a prompt, which vLLM does to seeded requests.
            settings |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(longest, 2048)}
        if rank:
            largest = next(known for known in RANKS if known >= rank)
            settings |= {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": largest}
        if processes > 1:
            settings["distributed_executor_backend"] = "external_launcher"
        with _undisturbed():
            self._vllm = _import()
            try:
                self._llm = self._vllm.LLM(**settings, **options)
            except (ValueError, RuntimeError, NotImplementedError) as error:
                raise ConfigError(
                    f"vLLM cannot serve {source}: {_reason(error)} (its gpu_memory_utilization is our "
                    "rollout.vllm.memory_share, its max_model_len our rollout.max_model_len)"
                ) from error
        self._rest()

    def hand_over(self) -> None:
        if isinstance(self.student, AdapterExport):
            path = self.student.write()
            old = self._adapter
            self.use_adapter(path)
            if old is not None:
                self.student.forget(Path(old.lora_path))
        elif self.student is not None:
            self._wake()
            self._copy_weights(self.student)

    def use_adapter(self, path: Path | None) -> None:
        if path is not None:
            check_folder(path)
        self._wake()
        if self._adapter is not None:
            self._llm.llm_engine.remove_lora(self._adapter.lora_int_id)
        self._adapter = None
        if path is None:
            return
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        self._versions += 1
        adapter = LoRARequest(f"opasd-{self._versions}", self._versions, str(path))
        try:
            self._llm.llm_engine.add_lora(adapter)
        except Exception as error:  # vLLM has many of its own
            raise ConfigError(f"vLLM cannot use the adapter in {path}: {_reason(error)}") from error
        self._adapter = adapter

    def close(self) -> None:
        if isinstance(self.student, AdapterExport):
            self.student.close()
        self._llm.llm_engine.engine_core.shutdown()

    def _complete(self, prompts: list[list[int]], requests: list[dict[str, Any]]) -> list[Completion]:
        if not prompts:
            self._rest()
            return []
        self._wake()
        # On a CPU, log-probabilities would first wait for a C++ compiler, for a sum.
        with _random_numbers_kept(), nullcontext() if self._on_gpu else torch.compiler.set_stance("force_eager"):
            try:
                outputs = self._llm.generate(
                    [{"prompt_token_ids": prompt} for prompt in prompts],
                    [self._vllm.SamplingParams(**request, detokenize=False) for request in requests],
                    lora_request=self._adapter,
                    use_tqdm=False,
                )
            finally:
                self._rest()
        return [self._read(output.outputs[0]) for output in outputs]

    def _read(self, found: Any) -> Completion:
        ids = list(found.token_ids)
        logprobs = None
        if found.logprobs is not None:
            logprobs = [place[token].logprob for token, place in zip(ids, found.logprobs, strict=True)]
        return self._completion(ids, logprobs)

    def _copy_weights(self, student: nn.Module) -> None:
        check_whole(student)
        weights = ((name, parameter.detach()) for name, parameter in student.named_parameters())
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not self._on_gpu:
            self._llm.apply_model(_pack_heads)
        self._llm.reset_prefix_cache()

    def _wake(self) -> None:
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False

    def _rest(self) -> None:
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=1)
            self._asleep = True


def _pack_heads(model: nn.Module) -> None:
    """On a CPU a head that is tied to the embedding has a packed copy of it, which a reload leaves as it was."""
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if method is not None and type(method).__name__ == "UnquantizedEmbeddingMethod":
            method.process_weights_after_loading(layer)


def _import() -> Any:
    """The module, told beforehand to stay in this process and off the standard output."""
    if find_spec("vllm") is None:
        raise ConfigError("rollout.engine: vllm needs vLLM; pip install 'opasd[vllm]'")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    import vllm  # pyright: ignore[reportMissingImports]

    return vllm


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put back what vLLM changes in the process around it; its own variables stay."""
    threads, environment = torch.set_num_threads, dict(os.environ)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (vLLM seeds it)
    with _random_numbers_kept():
        try:
            yield
        finally:
            torch.set_num_threads = threads
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            for name in [name for name in os.environ if not name.startswith("VLLM_")]:
                if name not in environment:
                    del os.environ[name]
            os.environ.update({name: value for name, value in environment.items() if not name.startswith("VLLM_")})


def _random_numbers_kept() -> AbstractContextManager[None]:
    """Seeded requests too take numbers from the global generator, and do not use them."""
    return torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else [])


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
