"""Write the student's adapter as files for an engine to read; each version has its own folder, which appears whole.

    /dev/shm/opasd-adapters-4711-3f9a/000001/adapter_model.safetensors

The files lie in memory if there is room for them, where only their owner can read them, and are removed when the
process ends. In a folder that the caller names, everybody can read them whom the umask lets: a server there may run as
another user. A killed process leaves its files behind; the operating system has then released their lock, so the next
process finds and removes them.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import IO

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor

from opasd.errors import ConfigError, EngineError
from opasd.files import let_read, staged_folder
from opasd.model.sharding import held, whole

PREFIX = "opasd-adapters-"
MEMORY = Path("/dev/shm")
MAX_RANK = 512
_LOCK = ".lock"


class AdapterExport:
    """Writes the adapter of `model`, each version to a new folder that is never written to again."""

    def __init__(self, model: PeftModel, folder: Path | None = None) -> None:
        active = model.active_adapters
        if len(active) != 1:
            raise _refused(f"the model has {len(active)} active adapters")
        self.model = model
        self.rank = _check_config(model.peft_config[active[0]], "the model")
        self._name = active[0]
        self._version = 0
        self._private = folder is None
        root = _memory(model) if folder is None else folder
        try:
            root.mkdir(parents=True, exist_ok=True)
            sweep(root)
            self.folder = root / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
            with staged_folder(self.folder) as staged:  # it never has its name without its lock
                if self._private:
                    staged.chmod(0o700)
                lock = open(staged / _LOCK, "w", encoding="utf-8")  # noqa: SIM115 (`_remove` closes it)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"cannot keep adapters in {root}: {error.strerror}; give a folder to write to") from error
        self._end = weakref.finalize(self, _remove, self.folder, lock, os.getpid())

    def weights(self) -> dict[str, Tensor]:
        """Return the adapter's current weights, whole; processes that share them must call this together."""
        with held(p for p in self.model.parameters() if p.requires_grad):
            state = get_peft_model_state_dict(self.model, adapter_name=self._name, save_embedding_layers=False)
            return {name: whole(t.detach()).contiguous().to("cpu", copy=True) for name, t in state.items()}

    def write(self, weights: dict[str, Tensor] | None = None) -> Path:
        """Write the adapter with its current weights, or with these, and return its folder."""
        tensors = self.weights() if weights is None else weights
        self._version += 1
        path = self.folder / f"{self._version:06d}"
        try:
            with staged_folder(path) as staged:
                save_file(tensors, staged / "adapter_model.safetensors")
                self.model.peft_config[self._name].save_pretrained(str(staged))
                if not self._private:
                    let_read(staged)
        except OSError as error:
            raise EngineError(f"cannot write the adapter to {self.folder}: {error.strerror or error}") from error
        return path

    def forget(self, version: Path) -> None:
        """Remove the files of a version that no engine reads any more."""
        if version.parent == self.folder:
            shutil.rmtree(version, ignore_errors=True)

    def close(self) -> None:
        """Remove all files."""
        self._end()


def check_folder(path: Path) -> int:
    """Return the rank of the adapter in a folder, 0 if the folder is not visible here; refuse it like any adapter."""
    if not (path / "adapter_config.json").is_file():
        return 0
    try:
        config = PeftConfig.from_pretrained(str(path))
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ConfigError(f"{path}/adapter_config.json cannot be read: {error}") from error
    return _check_config(config, str(path))


def _check_config(config: PeftConfig, owner: str) -> int:
    """Return the adapter's rank; refuse an adapter that vLLM would not serve, or would silently serve wrongly."""
    if not isinstance(config, LoraConfig):
        raise _refused(f"{owner} has a {config.peft_type} adapter")
    unsupported = {
        "ranks or scalings that differ between layers": config.rank_pattern or config.alpha_pattern,
        "DoRA": config.use_dora,
        "trained biases": config.bias != "none" or config.lora_bias,
        "whole weights that train beside the adapter": config.modules_to_save or config.trainable_token_indices,
        f"rank {config.r}, above {MAX_RANK}": config.r > MAX_RANK,
    }
    if used := [feature for feature, is_used in unsupported.items() if is_used]:
        raise _refused(f"{owner} has {used[0]}")
    return config.r


def _refused(reason: str) -> ConfigError:
    return ConfigError(f"vLLM serves one plain LoRA adapter, but {reason}; use rollout.engine: transformers")


def sweep(root: Path) -> None:
    """Remove the folders in `root` that processes left behind when they were killed."""
    for folder in root.glob(f"{PREFIX}*"):
        try:
            with open(folder / _LOCK, encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, owned by another user, or already gone


def _remove(folder: Path, lock: IO[str], owner: int) -> None:
    if os.getpid() == owner:  # a forked child has the same finalizer
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()


def _memory(model: PeftModel) -> Path:
    """Return the file system in memory if it has room for three versions, else the folder for temporary files."""
    needed_bytes = 3 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= needed_bytes:
        return MEMORY
    return Path(tempfile.gettempdir())
