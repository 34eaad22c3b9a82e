"""Sample rollouts with vLLM in the training process; the only file that imports it.

vLLM has a copy of the base weights on the training device and serves the student's adapter as an adapter, never merged.
Without adapters all weights are copied over. Between batches it sleeps if the device allows it, so rollouts and updates
use the memory in turn.

vLLM changes the process around it: it seeds the global random generators, replaces `torch.set_num_threads` and sets
environment variables that child processes would inherit. The engine undoes all that. When vLLM ends it destroys the
process group of those that train together; the engine keeps the group.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from peft import PeftModel
from torch import nn
from transformers import PreTrainedTokenizerBase

from opasd.config import ModelConfig, RolloutConfig
from opasd.errors import ConfigError
from opasd.model.sharding import whole
from opasd.model.unwrap import unwrap
from opasd.rollout.adapters import AdapterExport, check_folder
from opasd.rollout.engine import AdapterEngine, Completion, RolloutEngine
from opasd.rollout.vllm.serving import HALF_PRECISION, ServedBase, ServingEngine
from opasd.together import processes, rank

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM can be set up for."""


class VLLMEngine(ServingEngine):
    """vLLM over `base`.

    It samples from the adapter `student`, or from the model `weights`, or from the adapter given to `use_adapter`.
    """

    def __init__(
        self,
        config: RolloutConfig,
        base: ServedBase,
        longest: int,
        *,
        dtype: str,
        rank: int = 0,
        student: AdapterExport | None = None,
        weights: nn.Module | None = None,
    ) -> None:
        """`rank` is the largest rank of an adapter, 0 for no adapters."""
        if rank and dtype == "float32" and torch.cuda.is_available():
            raise ConfigError(
                "rollout.engine: vllm serves adapters in 16 bits alone on a GPU, and these weights are float32; set "
                "rollout.vllm.dtype to bfloat16, or model.dtype"
            )
        if obstacle := config.vllm.obstacle(processes()):
            raise ConfigError(obstacle)
        super().__init__(config, base, longest)
        self._sharing = sharing(config.vllm.tensor_parallel)
        self.stops_alone = self._sharing is None
        self.student, self.weights = student, weights
        self.half_precision = dtype in HALF_PRECISION
        self._on_gpu = torch.cuda.is_available()
        self._joined = dist.is_available() and dist.is_initialized()
        self._sleeps = config.vllm.sleep and self._on_gpu
        self._asleep = False
        self._versions = 0
        self._adapter: Any = None
        settings = self._settings(base, dtype, rank)
        with undisturbed():
            self._vllm = _import_vllm()
            try:
                self._llm = self._vllm.LLM(**settings)
            except (ValueError, RuntimeError, NotImplementedError) as error:
                raise ConfigError(
                    f"vLLM cannot serve {base.source}: {_reason(error)} (its gpu_memory_utilization is our "
                    "rollout.vllm.memory_share, its max_model_len our rollout.max_model_len)"
                ) from error
        self._rest()

    def _settings(self, base: ServedBase, dtype: str, rank: int) -> dict[str, Any]:
        """Return vLLM's own settings."""
        config = self.config
        settings: dict[str, Any] = {
            "model": base.source,
            "dtype": dtype,
            "max_model_len": self.longest,
            "max_num_seqs": config.max_batch,
            "gpu_memory_utilization": config.vllm.memory_share,
            "kv_cache_memory_bytes": config.vllm.cache_bytes,
            "enforce_eager": config.vllm.eager or not self._on_gpu,
            "enable_sleep_mode": self._sleeps,
            "logprobs_mode": "raw_logprobs",
            "skip_tokenizer_init": True,
            "use_tqdm_on_load": False,
            "generation_config": "vllm",
            **base.loading,
        }
        if not self._on_gpu:
            # vLLM rewinds the generator of a seeded request after a part of its prompt, which a CPU's cannot do.
            settings |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(self.longest, 2048)}
        if rank:
            largest = next(known for known in RANKS if known >= rank)
            settings |= {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": largest}
        if processes() > 1:
            settings |= {"distributed_executor_backend": "external_launcher"}
            settings |= {"tensor_parallel_size": config.vllm.tensor_parallel}
        return settings

    @classmethod
    def for_training(
        cls, config: RolloutConfig, model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, longest: int
    ) -> RolloutEngine:
        base = ServedBase.of_student(model, tokenizer, config.engine)
        if not base.source:
            raise ConfigError(
                "rollout.engine: vllm loads the base itself, but the model was not loaded from a folder or the hub; "
                "save it with save_pretrained and load it from there"
            )
        dtype = str(unwrap(model).dtype).removeprefix("torch.") if config.vllm.dtype == "auto" else config.vllm.dtype
        if isinstance(model, PeftModel):
            student = AdapterExport(model)
            return cls(config, base, longest, dtype=dtype, rank=student.rank, student=student)
        trains = any(parameter.requires_grad for parameter in model.parameters())
        return cls(config, base, longest, dtype=dtype, weights=model if trains else None)

    @classmethod
    def for_evaluation(
        cls, config: RolloutConfig, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, *,
        longest: int, adapters: Sequence[Path],
    ) -> AdapterEngine:  # fmt: skip
        dtype = model.dtype if model.dtype != "auto" else config.vllm.dtype
        if dtype == "auto" and not torch.cuda.is_available():
            dtype = "float32"
        rank = max(map(check_folder, adapters), default=0)
        return cls(config, ServedBase.of_files(model, tokenizer), longest, dtype=dtype, rank=rank)

    def hand_over(self) -> None:
        if self.student is not None:
            old = self._adapter
            self.use_adapter(self.student.write())
            if old is not None:
                self.student.forget(Path(old.lora_path))
        elif self.weights is not None:
            self._wake()
            # One weight at a time: a sharded model is never whole on a GPU.
            weights = ((name, whole(parameter).detach()) for name, parameter in self.weights.named_parameters())
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            if not self._on_gpu:
                self._llm.apply_model(_pack_heads)
            self._llm.reset_prefix_cache()

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
        except Exception as error:  # vLLM raises many types of its own
            raise ConfigError(f"vLLM cannot use the adapter in {path}: {_reason(error)}") from error
        self._adapter = adapter

    def close(self) -> None:
        if self.student is not None:
            self.student.close()
        with process_group_kept() if self._joined else nullcontext():
            self._llm.llm_engine.engine_core.shutdown()

    def _complete(self, prompts: list[list[int]], requests: list[dict[str, Any]]) -> list[Completion]:
        if self._sharing is None:
            return self._completed(prompts, requests)
        # Processes that share the weights compute every layer together, so each of them asks for what all want.
        batches: list[Any] = [None] * self._sharing.size()
        dist.all_gather_object(batches, (prompts, requests), group=self._sharing)
        joined = [[item for batch in batches for item in batch[part]] for part in (0, 1)]
        first = sum(len(batch[0]) for batch in batches[: self._sharing.rank()])
        return self._completed(joined[0], joined[1])[first : first + len(prompts)]

    def _completed(self, prompts: list[list[int]], requests: list[dict[str, Any]]) -> list[Completion]:
        if not prompts:
            self._rest()
            return []
        self._wake()
        # On a CPU, log-probabilities would wait for a C++ compiler, only to compute a sum.
        with _random_state_kept(), nullcontext() if self._on_gpu else torch.compiler.set_stance("force_eager"):
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

    def _read(self, output: Any) -> Completion:
        ids, logprobs = list(output.token_ids), None
        if output.logprobs is not None:
            logprobs = [options[token].logprob for token, options in zip(ids, output.logprobs, strict=True)]
        return Completion.ended(ids, self.stop, logprobs=logprobs)

    def _wake(self) -> None:
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False

    def _rest(self) -> None:
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=1)
            self._asleep = True


def sharing(count: int) -> dist.ProcessGroup | None:
    """Return the group of the `count` neighbours that share vLLM's weights with this process; None for one alone."""
    if count == 1:
        return None
    starts = range(0, processes(), count)  # every process takes part in the making of every group
    groups = [dist.new_group(list(range(first, first + count)), backend="gloo") for first in starts]
    own = groups[rank() // count]
    assert isinstance(own, dist.ProcessGroup)
    return own


def _pack_heads(model: nn.Module) -> None:
    """Renew the packed copy that a head tied to the embedding has on a CPU; a reload leaves the old one."""
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if method is not None and type(method).__name__ == "UnquantizedEmbeddingMethod":
            method.process_weights_after_loading(layer)


def _import_vllm() -> Any:
    """Import vLLM, set up to stay in this process and off the standard output."""
    if find_spec("vllm") is None:
        raise ConfigError("rollout.engine: vllm needs vLLM; pip install 'opasd[vllm]'")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    import vllm  # pyright: ignore[reportMissingImports]

    return vllm


@contextmanager
def undisturbed() -> Iterator[None]:
    """Undo what vLLM changes in the process around it, except for its own environment variables."""
    threads, environment = torch.set_num_threads, dict(os.environ)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (vLLM seeds it)
    with _random_state_kept():
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


@contextmanager
def process_group_kept() -> Iterator[None]:
    """Keep the processes' default group: vLLM destroys it when it ends, also if it found it there."""
    destroy = dist.destroy_process_group
    dist.destroy_process_group = lambda group=None: None if group is None else destroy(group)
    try:
        yield
    finally:
        dist.destroy_process_group = destroy


def _random_state_kept() -> AbstractContextManager[None]:
    """Restore PyTorch's generators afterwards: seeded requests take numbers from them too, without using them."""
    return torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else [])


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
