"""Base models in an engine, for evaluation: adapters are swapped on one copy of the base.

base = TransformersBase(ModelConfig(name_or_path="lab"), max_batch=128)
engine = base.engine(longest=1024, adapters=[path])
engine.use_adapter(path)
"""

import json
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedModel

from opasd.config import ModelConfig, RolloutConfig, SamplingConfig
from opasd.errors import ConfigError
from opasd.evaluation.loop import Base
from opasd.model.checks import context
from opasd.model.loading import load_model, load_tokenizer, model_source
from opasd.rollout.engine import AdapterEngine, Completion
from opasd.rollout.factory import serve_base
from opasd.rollout.transformers.engine import TransformersEngine, stop_ids

_ADAPTER = "evaluated"


def open_base(model: ModelConfig, rollout: RolloutConfig) -> Base:
    """The base in the engine that `rollout` names."""
    return (
        TransformersBase(model, rollout.max_batch) if rollout.engine == "transformers" else ServedBase(model, rollout)
    )


class TransformersBase:
    """The model itself, through transformers."""

    def __init__(self, model: ModelConfig, max_batch: int) -> None:
        self.tokenizer = load_tokenizer(model)
        self._config, self._max_batch = model, max_batch
        self._model = self._loaded()
        self.context = context(self._model.config)

    def engine(self, longest: int, adapters: Sequence[Path]) -> AdapterEngine:
        return SwappingEngine(self, stop_ids(self._model, self.tokenizer), self._max_batch)

    def model(self, *, anew: bool = False) -> PreTrainedModel:
        """The base; `anew` as it is on disk, when an adapter may have changed it."""
        if anew:
            del self._model  # before there are two
            self._model = self._loaded()
        return self._model

    def _loaded(self) -> PreTrainedModel:
        model = load_model(self._config)
        torch.nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
        return model


class SwappingEngine(AdapterEngine):
    """A transformers engine whose model gets one adapter after another."""

    def __init__(self, base: TransformersBase, stop: frozenset[int], max_batch: int) -> None:
        self._base, self._stop, self._max_batch = base, stop, max_batch
        self._model: PreTrainedModel | PeftModel = base.model()
        self._alone = self._untouched = True
        self.use_adapter(None)

    def use_adapter(self, path: Path | None) -> None:
        self._alone = path is None
        untouched = path is None or _leaves_no_trace(path)
        if isinstance(self._model, PeftModel) and not (self._untouched and untouched):
            del self._model, self._engine
            self._model = self._base.model(anew=True)
        self._untouched = untouched
        if path is not None:
            self._put_on(path)
        # What an engine has found out about a model need not hold with another adapter.
        self._engine = TransformersEngine(self._model, self._stop, self._max_batch)

    def _put_on(self, path: Path) -> None:
        try:
            with warnings.catch_warnings(action="ignore"):  # of weights that are missing, which is checked here
                if isinstance(self._model, PeftModel):
                    self._model.delete_adapter(_ADAPTER)
                    self._model.load_adapter(str(path), adapter_name=_ADAPTER)
                    self._model.set_adapter(_ADAPTER)
                else:
                    self._model = PeftModel.from_pretrained(self._model, str(path), adapter_name=_ADAPTER)
            _check_weights(self._model, path)
        except SafetensorError as error:
            raise ConfigError(f"the adapter in {path} is damaged ({error}); give a whole one") from error
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"the adapter in {path} does not fit its base model: {reason[:200]}; evaluate it on the model it was "
                "trained on"
            ) from error

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        peft = self._model if isinstance(self._model, PeftModel) else None
        with peft.disable_adapter() if peft is not None and self._alone else nullcontext():
            return self._engine.generate(prompts, sampling, seeds)

    def close(self) -> None:
        del self._engine
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _leaves_no_trace(path: Path) -> bool:
    """Whether another adapter may follow this one on the same base: LoRA alone, begun without the base's weights."""
    try:
        found = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    begun = found.get("init_lora_weights", True)
    return (
        found.get("peft_type") == "LORA"
        and (isinstance(begun, bool) or begun == "gaussian")
        and found.get("bias", "none") == "none"
        and not any(found.get(key) for key in ("modules_to_save", "trainable_token_indices", "layer_replication"))
    )


def _check_weights(model: PeftModel, path: Path) -> None:
    """Refuse an adapter of which a part has no place, or whose place got no part."""
    file = path / "adapter_model.safetensors"
    if not file.exists():
        return
    with safe_open(file, "pt") as weights:
        there = set(weights.keys())
    wanted = set(get_peft_model_state_dict(model, adapter_name=_ADAPTER, save_embedding_layers=False))
    # PEFT keeps the base's embeddings too where they have an adapter.
    if odd := sorted(name for name in there ^ wanted if ".base_layer." not in name):
        raise ValueError(f"{odd[0]} is {'left over' if odd[0] in there else 'missing'}")


class ServedBase:
    """vLLM, in this process or on servers."""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig) -> None:
        self.tokenizer = load_tokenizer(model)
        self._model, self._rollout = model, rollout
        self._loading: dict[str, Any] = {"revision": model.revision} if model.revision else {}
        self._loading |= {"trust_remote_code": True} if model.trust_remote_code else {}
        self._config = AutoConfig.from_pretrained(model_source(model), **self._loading)
        self.context = rollout.max_model_len or context(self._config)

    def engine(self, longest: int, adapters: Sequence[Path]) -> AdapterEngine:
        dtype = self._model.dtype if self._model.dtype != "auto" else self._rollout.vllm.dtype
        if dtype == "auto" and not torch.cuda.is_available():
            dtype = "float32"
        return serve_base(
            self._rollout,
            model_source(self._model),
            self.tokenizer,
            longest=longest,
            rank=max((_rank(path) for path in adapters), default=0),
            dtype=dtype,
            configured=False,
            **self._loading,
        )


def _rank(adapter: Path) -> int:
    try:
        return int(json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{adapter}: its adapter_config.json has no rank `r`; vLLM serves LoRA adapters only"
        ) from error
