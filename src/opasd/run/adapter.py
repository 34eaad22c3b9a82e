"""The base model that an adapter's files name."""

import json
from pathlib import Path

from opasd.config import ModelConfig
from opasd.errors import ConfigError
from opasd.lab import LAB
from opasd.recipes.checking import to_config
from opasd.recipes.reading import read_yaml

_LAB_FOLDER = ("opasd", "lab", "model")


def base_of(adapter: Path) -> ModelConfig | None:
    """The model that an adapter says it was trained on, loaded as the run did in whose folder the adapter lies."""
    described = adapter / "adapter_config.json"
    try:
        values = json.loads(described.read_text(encoding="utf-8"))
        if not (base := values.get("base_model_name_or_path")):
            return None
        if Path(base).parts[-3:] == _LAB_FOLDER:
            base = LAB  # a checkpoint names the folder, which is elsewhere on another machine
        found = ModelConfig(name_or_path=base, revision=values.get("revision") or None)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{described} cannot be read ({str(error).splitlines()[0]}); give a whole adapter") from error
    beside = adapter.absolute().parent / "config.yaml"
    try:
        run = to_config(read_yaml(beside), str(beside)).model if beside.is_file() else None
    except ConfigError:  # not a run's
        return found
    if run is None or run.name_or_path != base:
        return found
    loading = {"revision": found.revision or run.revision, "trust_remote_code": run.trust_remote_code}
    return found.model_copy(update=loading)
