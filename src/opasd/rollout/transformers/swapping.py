"""One base model, through transformers, that gets one adapter after another."""

import json
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opasd.config import ModelConfig, SamplingConfig
from opasd.errors import ConfigError, NonFiniteError
from opasd.model.loading import load_model
from opasd.rollout.engine import AdapterEngine, Completion, Prompts
from opasd.rollout.stops import stop_ids
from opasd.rollout.transformers.engine import TransformersEngine

_ADAPTER = "evaluated"


class SwappingEngine(AdapterEngine):
    """Samples from the base `config` alone or with an adapter; each adapter acts as if it were loaded alone."""

    def __init__(self, config: ModelConfig, tokenizer: PreTrainedTokenizerBase, max_batch: int) -> None:
        self._config, self._tokenizer, self._max_batch = config, tokenizer, max_batch
        self._path: Path | None = None
        self._base_is_clean = True
        """Whether no adapter so far has changed the base."""
        self._load()

    def _load(self) -> None:
        self._model: PreTrainedModel | PeftModel = load_model(self._config)
        torch.nn.Module.to(self._model, "cuda" if torch.cuda.is_available() else "cpu")
        self._renew_engine()

    def _renew_engine(self) -> None:
        """Forget the engine's plan, which need not hold with another adapter."""
        self._engine = TransformersEngine(self._model, stop_ids(self._model, self._tokenizer), self._max_batch)

    def use_adapter(self, path: Path | None) -> None:
        self._path = path
        leaves_no_trace = path is None or _leaves_no_trace(path)
        if isinstance(self._model, PeftModel) and not (self._base_is_clean and leaves_no_trace):
            del self._model, self._engine  # before there are two models in memory
            self._load()
        self._base_is_clean = leaves_no_trace
        if path is not None:
            self._put_on(path)
        self._renew_engine()

    def _put_on(self, path: Path) -> None:
        try:
            with warnings.catch_warnings(action="ignore"):  # PEFT warns about missing weights, which are checked here
                if isinstance(self._model, PeftModel):
                    self._model.delete_adapter(_ADAPTER)
                    self._model.load_adapter(str(path), adapter_name=_ADAPTER)
                    self._model.set_adapter(_ADAPTER)
                else:
                    self._model = PeftModel.from_pretrained(self._model, str(path), adapter_name=_ADAPTER)
            _check_weights(self._model, path)
        except (SafetensorError, UnpicklingError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"the adapter in {path} is damaged ({reason}); give a whole one") from error
        except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"the adapter in {path} does not fit its base model: {reason[:200]}; evaluate it on the model it was "
                "trained on"
            ) from error

    def generate(
        self, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        peft = self._model if isinstance(self._model, PeftModel) else None
        with peft.disable_adapter() if peft is not None and self._path is None else nullcontext():
            completions = self._engine.generate(prompts, sampling, seeds)
        if any(completion.finish_reason == "error" for completion in completions):
            raise NonFiniteError(
                f"{self._path or self._config.name_or_path}: NaN or infinity in the output, so it has no score; "
                "give an earlier checkpoint, or another --dtype"
            )
        return completions

    def close(self) -> None:
        del self._engine, self._model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _leaves_no_trace(path: Path) -> bool:
    """Return whether another adapter may follow on the same base: this one is plain LoRA from random weights."""
    try:
        config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    start = config.get("init_lora_weights", True)
    return (
        config.get("peft_type") == "LORA"
        and (isinstance(start, bool) or start == "gaussian")
        and config.get("bias", "none") == "none"
        and not any(config.get(key) for key in ("modules_to_save", "trainable_token_indices", "layer_replication"))
    )


def _check_weights(model: PeftModel, path: Path) -> None:
    """Refuse an adapter that lacks a weight of the model's adapter layers, or has one that they lack."""
    file = path / "adapter_model.safetensors"
    if not file.exists():
        return
    with safe_open(file, "pt") as weights:
        stored = set(weights.keys())
    expected = set(get_peft_model_state_dict(model, adapter_name=_ADAPTER, save_embedding_layers=False))
    # PEFT also stores the base's embeddings if they have an adapter.
    if unmatched := sorted(name for name in stored ^ expected if ".base_layer." not in name):
        raise ValueError(f"{unmatched[0]} is {'left over' if unmatched[0] in stored else 'missing'}")
