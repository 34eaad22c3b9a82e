"""The base model of an adapter."""

import json
from pathlib import Path

from opasd.config import ModelConfig
from opasd.errors import ConfigError
from opasd.lab import LAB
from opasd.recipes.checking import to_config
from opasd.recipes.reading import read_yaml

_LAB_FOLDER = ("opasd", "lab", "model")


def base_of(adapter: Path) -> ModelConfig | None:
    """Return the base model that an adapter names, with the loading settings of the run that made the adapter."""
    described = adapter / "adapter_config.json"
    try:
        values = json.loads(described.read_text(encoding="utf-8"))
        if not (base := values.get("base_model_name_or_path")):
            return None
        if Path(base).parts[-3:] == _LAB_FOLDER:
            base = LAB  # a checkpoint names the folder, whose path differs between machines
        model = ModelConfig(name_or_path=base, revision=values.get("revision") or None)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{described} cannot be read ({str(error).splitlines()[0]}); give a whole adapter") from error
    config = adapter.absolute().parent / "config.yaml"
    try:
        run = to_config(read_yaml(config), str(config)).model if config.is_file() else None
    except ConfigError:  # the file is not that of a run
        return model
    if run is None or run.name_or_path != base:
        return model
    loading = {"revision": model.revision or run.revision, "trust_remote_code": run.trust_remote_code}
    return model.model_copy(update=loading)
