"""Find the sizes of a model that is named in a configuration, without loading it."""

import os
from pathlib import Path
from typing import Any

from opasd.errors import ConfigError
from opasd.files import read_object
from opasd.lab import LAB, model_path
from opasd.plan.shapes import KNOWN, Shape


def find_shape(name: str) -> Shape:
    """Return the shape of `lab`, of a local folder, of a model in the hub's cache, or of a well-known hub model."""
    if name == LAB:
        return Shape.of(read_object(Path(model_path()) / "config.json"), name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return Shape.of(read_object(folder / "config.json"), name)
    cached = sorted(hub_cache("models", name).glob("snapshots/*/config.json"), key=os.path.getmtime)
    if cached:
        return Shape.of(read_object(cached[-1]), name)
    known: dict[str, dict[str, Any]] = {key.lower(): config for key, config in KNOWN.items()}
    if name.lower() in known:
        return Shape.of(known[name.lower()], name)
    raise ConfigError(
        f"model.name_or_path: the config.json of {name!r} is not on this machine, and a plan needs the model's sizes; "
        f"give a folder that has it, run `hf download {name} config.json`, or plan for one of {', '.join(KNOWN)}"
    )


def hub_cache(kind: str, name: str) -> Path:
    """Return the folder of a model (`models`) or data set (`datasets`) in the hub's cache."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()
    return cache / f"{kind}--{name.replace('/', '--')}"
