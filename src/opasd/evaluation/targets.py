"""What is evaluated: `base`, runs, adapters, merged models, hub names, `lab`, as base models with or without adapters.

Needs neither torch nor the models, so mistakes are found before anything is loaded.
"""

import difflib
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opasd.config import ModelConfig
from opasd.errors import ConfigError
from opasd.files import refuse_pipes
from opasd.lab import LAB
from opasd.recipes.checking import checked, without_trust
from opasd.recipes.reading import read_yaml
from opasd.run.folder import base_of
from opasd.run.manifest import damage_of, newest_result

BASE = "base"
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_WEIGHTS = (".safetensors", ".bin")
_TOKENIZER = (".json", ".jinja", ".model", ".txt")
_DESCRIPTIONS = ("config.json", "adapter_config.json")
MODEL_FILES = (*_WEIGHTS, *_TOKENIZER, ".py")
ADAPTER_FILES = (*_WEIGHTS, "adapter_config.json")
"""How the names of the files end that decide what a model or an adapter says."""
_EDGE = 1 << 20
"""Bytes at each end of a file that a fingerprint reads; they are enough to tell two trainings apart."""


@dataclass(frozen=True)
class Target:
    """A model, and the adapter on it if there is one."""

    name: str
    model: ModelConfig
    adapter: Path | None = None
    run: Path | None = None
    """The run folder that it comes from."""

    def describe(self) -> dict[str, Any]:
        """Return what settings and results say about it; `fingerprint` differs when the files do."""
        return {
            "model": self.model.name_or_path,
            "revision": self.model.revision,
            "dtype": self.model.dtype,
            "adapter": str(self.adapter) if self.adapter else None,
            "run": str(self.run) if self.run else None,
            "fingerprint": self._fingerprint(),
        }

    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for folder in filter(None, (Path(self.model.name_or_path).expanduser(), self.adapter)):
            paths = sorted(folder.iterdir()) if folder.is_dir() else []
            # The tokenizer, its chat template and the tokens that end an answer come from the base.
            kinds = _WEIGHTS if folder == self.adapter else (*_WEIGHTS, *_TOKENIZER)
            files = [path for path in paths if path.is_file() and (path.suffix in kinds or path.name in _DESCRIPTIONS)]
            digest.update(repr([(path.name, path.stat().st_size) for path in files]).encode())
            for path in files:
                with path.open("rb") as file:
                    digest.update(file.read(_EDGE))
                    file.seek(-min(_EDGE, path.stat().st_size), 2)
                    digest.update(file.read())
        digest.update(repr((Path(self.model.name_or_path).name, self.model.revision)).encode())
        return digest.hexdigest()


def resolve(names: Sequence[str], model: ModelConfig | None = None) -> list[Target]:
    """Return the targets that the names mean; `model`, if given, is what `base` means and what carries adapters."""
    targets = [_resolve(name, model) for name in names if name != BASE]
    if BASE in names:
        bases = {_with_revision(t.model): t.model for t in targets if t.adapter or t.run}
        if model is None and len(bases) != 1:
            which = f"there are {', '.join(bases)}" if bases else "no adapter or run says which"
            raise ConfigError(f"base: which model? {which}; give it with --model")
        targets.insert(list(names).index(BASE), Target(BASE, model or next(iter(bases.values()))))
    return _with_short_names(targets, list(names))


def _resolve(name: str, model: ModelConfig | None) -> Target:
    if name == LAB:
        return Target(LAB, ModelConfig(name_or_path=LAB))
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(name, path, model)
    if path.exists():
        raise ConfigError(f"{name} is a file; give the folder of a run, an adapter or a model")
    # A name such as runs/a is rather a missing folder than a hub name.
    looks_local = path.is_absolute() or path.parts[0] == "runs" or path.parent.is_dir()
    if _HUB_NAME.fullmatch(name) and not looks_local:
        return Target(name, _renamed(model, name))
    beside = [folder.name for folder in path.parent.iterdir() if folder.is_dir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, 1)
    hint = (
        f"did you mean {path.parent / close[0]}?" if close else "give base, lab, a folder, or a hub model as org/name"
    )
    raise ConfigError(f"no model, adapter or run {name!r}; {hint}")


def _folder(name: str, path: Path, model: ModelConfig | None) -> Target:
    if (path / "config.yaml").is_file():
        section = without_trust(read_yaml(path / "config.yaml")).get("model")
        if section is None:
            raise ConfigError(f"{path / 'config.yaml'} is damaged: it has no model; put the file back, or give --model")
        config = checked(ModelConfig, section, str(path / "config.yaml"), "model.")
        return _trained(name, path, _newest(path), config, model)
    if (path / "final").is_dir() and not (path / "config.json").exists():
        return _folder(name, path / "final", model)
    if fault := damage_of(path):
        raise ConfigError(f"{path} is damaged: {fault}; give a whole copy, or another checkpoint")
    if (path / "adapter_config.json").is_file():
        return _trained(name, None, path, None, model)
    if (path / "config.json").is_file():
        return Target(name, _renamed(model, str(path)))
    raise ConfigError(
        f"{path} is no run (config.yaml), no adapter (adapter_config.json) and no model (config.json); give one"
    )


def _newest(run: Path) -> Path:
    """Return the folder of the run's final result, or of its newest checkpoint, that is whole."""
    if newest := newest_result(run):
        return newest
    raise ConfigError(f"{run} has no result and no checkpoint yet; continue it with opasd train --resume {run}")


def _trained(name: str, run: Path | None, made: Path, config: ModelConfig | None, model: ModelConfig | None) -> Target:
    """Return the target that training wrote into the folder `made`; `config` is the run's, `model` the command's."""
    if not (made / "adapter_config.json").is_file():
        return Target(name, _renamed(config or model, str(made)), run=run)
    refuse_pipes(made)
    if not any(path.suffix in _WEIGHTS for path in made.iterdir()):
        raise ConfigError(f"{made} has no weights (adapter_model.safetensors); give a whole adapter")
    base = base_of(made)
    config = config or base or model
    if config is None:
        raise ConfigError(f"{made / 'adapter_config.json'} does not name the base model; give it with --model")
    if model is None:
        return Target(name, config, made, run)
    if _last_part(model.name_or_path) != _last_part(config.name_or_path):
        raise ConfigError(
            f"{name} was trained on {config.name_or_path}, but --model is {model.name_or_path}; leave --model out or "
            "evaluate them apart"
        )
    if model.name_or_path == config.name_or_path and config.revision and not model.revision:
        raise ConfigError(f"{name} was trained on {_with_revision(config)}; give --revision {config.revision} too")
    return Target(name, model, made, run)


def _renamed(model: ModelConfig | None, name: str) -> ModelConfig:
    """Return another model with the same settings, the defaults if there are none."""
    return (model or ModelConfig()).model_copy(update={"name_or_path": name, "revision": None})


def _with_revision(model: ModelConfig) -> str:
    return model.name_or_path + (f" at {model.revision}" if model.revision else "")


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].casefold()


def _with_short_names(targets: list[Target], given: list[str]) -> list[Target]:
    """Name the targets by the last part of a folder's path, or as they were given if that is not unique."""
    paths = [Path(name).expanduser() for name in given]
    short = [
        name if name in (BASE, LAB) or not path.exists() else path.resolve().name
        for name, path in zip(given, paths, strict=True)
    ]
    names = short if len(set(short)) == len(short) else given
    if len(set(names)) < len(names):
        raise ConfigError(f"the same target twice: {', '.join(given)}; give each once")
    return [replace(target, name=name) for name, target in zip(names, targets, strict=True)]
