"""A run's folder: its configuration (config.yaml) and where it ran (environment.json, git.json).

    folder = RunFolder.create(config, "first-try")     # or RunFolder.open(Path("runs/first-try"))
    with hold(folder.path, "run"):
        train(folder.config, folder.path, resume=False)

The folder appears complete or not at all, and only one process can make it.
"""

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from opasd.config import ModelConfig, RunConfig
from opasd.data.made import TASKS
from opasd.errors import ConfigError
from opasd.files import read_object, refuse_traps, staged_folder, write_text
from opasd.lab import LAB
from opasd.recipes.checking import to_config
from opasd.recipes.reading import read_yaml, write_yaml
from opasd.run.environment import environment, repository, to_json
from opasd.run.records import Records

MAX_NAME = 200
_CONFIG, _ENVIRONMENT = "config.yaml", "environment.json"
_LAB_FOLDER = ("opasd", "lab", "model")
_CONTINUED = re.compile(r"(?:environment|config)-([1-9]\d*)\.(?:json|yaml)", re.ASCII)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run and its configuration."""

    path: Path
    config: RunConfig

    @classmethod
    def create(cls, config: RunConfig, name: str, *, command: Sequence[str] = ()) -> Self:
        """Make `output_dir/name`; of several processes that try, exactly one succeeds."""
        check_name(name)
        path = Path(config.output_dir).expanduser() / name
        config = with_absolute_paths(config.model_copy(update={"name": name}))
        about = environment(command) | {"run": secrets.token_hex(8)}
        files = {_CONFIG: write_yaml(config.model_dump()), _ENVIRONMENT: to_json(about)}
        files |= repository(Path.cwd(), with_diff=config.record_diff)
        exists = ConfigError(
            f"{path} exists and a run is never overwritten; continue it with `opasd train --resume {path}` or give "
            "another --name"
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(path):
                raise exists
            with staged_folder(path) as staged:
                for file, text in files.items():
                    write_text(staged / file, text, "surrogateescape")
        except OSError as error:
            if os.path.isdir(path):
                raise exists from None
            raise ConfigError(
                f"the run folder {path} cannot be made ({error.strerror}); set output_dir to a folder you can write to"
            ) from error
        return cls(path, config)

    @classmethod
    def adopt(cls, config: RunConfig, path: Path, *, command: Sequence[str] = ()) -> Self:
        """Make a run folder of a folder that a trainer writes to; what is there already stays."""
        about = environment(command) | {"run": secrets.token_hex(8)}
        files = {_CONFIG: write_yaml(config.model_dump(mode="json")), _ENVIRONMENT: to_json(about)}
        path.mkdir(parents=True, exist_ok=True)
        for file, text in (files | repository(Path.cwd(), with_diff=config.record_diff)).items():
            if not (path / file).exists():
                write_text(path / file, text, "surrogateescape")
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder of an earlier run."""
        path = path.expanduser()
        if not path.is_dir():
            raise ConfigError(f"no run folder {path}; give the folder that `opasd train` made, such as runs/NAME")
        if not (path / _CONFIG).is_file():
            raise ConfigError(f"{path} has no {_CONFIG}, so it is no run folder or a damaged one; start a new run")
        refuse_traps(path)
        values = read_yaml(path / _CONFIG)
        if missing := [name for name in ("model", "data", "train", "objective") if name not in values]:
            raise ConfigError(
                f"{path / _CONFIG} is damaged: it has no {missing[0]}, and the defaults would be another run; put the "
                "file back (config-N.yaml are older versions of it), or start a new run"
            )
        return cls(path, to_config(values, str(path / _CONFIG), of_run=True))

    def continued(self, config: RunConfig, *, command: Sequence[str] = ()) -> Self:
        """Record that the run continues: environment-N.json, and the old configuration in config-N.yaml if changed."""
        config = with_absolute_paths(config)
        number = self._times_continued() + 1
        files = {f"environment-{number}.json": to_json(environment(command))}
        if config != self.config:
            files[f"config-{number}.yaml"] = write_yaml(self.config.model_dump())
            files[_CONFIG] = write_yaml(config.model_dump())
        try:
            for file, text in files.items():
                write_text(self.path / file, text, "surrogateescape")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written to ({error.strerror}); free space or rights") from error
        return type(self)(self.path, config)

    def undo_continued(self) -> None:
        """Remove the last record of `continued`, for a run that failed before its first step."""
        number = self._times_continued()
        (self.path / f"environment-{number}.json").unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            (self.path / f"config-{number}.yaml").replace(self.path / _CONFIG)

    def _times_continued(self) -> int:
        matches = (_CONTINUED.fullmatch(path.name) for path in self.path.iterdir())
        return max((int(match[1]) for match in matches if match), default=0)

    def has_ended(self, max_steps: int) -> bool:
        """Return whether the run is finished and has no checkpoint; refuse to continue such a run to `max_steps`."""
        if any(self.path.glob("checkpoint-*")) or not (self.path / "final" / "README.md").exists():
            return False
        last = max((row["step"] for row in Records(self.path / "metrics.jsonl")), default=0)
        if last < max_steps:
            raise ConfigError(f"{self.path} ended at step {last} and has no checkpoint to continue; start a new run")
        return True

    def shared_by(self, config: RunConfig, count: int) -> RunConfig:
        """Return the run's configuration for `count` processes, so that a step keeps its problems.

        The folder's configuration is that of the processes that the run began with.
        """
        train = config.train
        began = read_object(self.path / _ENVIRONMENT).get("processes", count)
        if began == count or type(began) is not int or began < 1:
            return config
        batch = train.per_device_train_batch_size
        problems = batch * train.gradient_accumulation_steps * began
        if problems % count:
            raise ConfigError(
                f"{self.path} was begun with --num-processes {began} and has {problems} problems a step, which {count} "
                f"processes cannot share evenly; give a number of processes that divides {problems}"
            )
        batch = batch if problems // count % batch == 0 else 1
        divided = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": problems // count // batch}
        return config.model_copy(update={"train": train.model_copy(update=divided)})


def base_of(adapter: Path) -> ModelConfig | None:
    """Return the base model that an adapter names, with the revision of the run that made the adapter.

    Refuse a description that names a module to import.
    """
    described = adapter / "adapter_config.json"
    try:
        values = json.loads(described.read_text(encoding="utf-8"))
        if values.get("megatron_config"):
            raise ConfigError(f"{described}: megatron_config names a Python module to import; give a plain adapter")
        if not (base := values.get("base_model_name_or_path")):
            return None
        if Path(base).parts[-3:] == _LAB_FOLDER:
            base = LAB  # the adapter names the folder, but its path differs between machines
        model = ModelConfig(name_or_path=base, revision=values.get("revision") or None)
    except ConfigError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{described} cannot be read ({str(error).splitlines()[0]}); give a whole adapter") from error
    try:
        run = RunFolder.open(adapter.absolute().parent).config.model
    except ConfigError:  # the adapter lies in no run folder
        return model
    if run.name_or_path != base:
        return model
    return model.model_copy(update={"revision": model.revision or run.revision})


def run_name(recipe: str, now: time.struct_time | None = None) -> str:
    """Return `<recipe>-<YYYYmmdd-HHMMSS>`, for a run without a name."""
    return f"{recipe[: MAX_NAME - 16]}-{time.strftime('%Y%m%d-%H%M%S', now or time.localtime())}"


def check_name(name: str) -> None:
    """Refuse a name that is not a single, visible folder inside output_dir."""
    bad = not name.strip() or name.startswith(".") or len(name.encode(errors="surrogatepass")) > MAX_NAME
    if bad or any(character in "/\\" or not character.isprintable() for character in name):
        raise ConfigError(
            f"name: got {name[:60]!r}; give one folder's name of at most {MAX_NAME} bytes, without slashes, control "
            "characters or a dot at its beginning (output_dir says where the folder is made)"
        )


def check_disk(folder: Path, needed_bytes: int) -> None:
    """Refuse to start if the first checkpoint would not fit."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise ConfigError(
            f"{folder}: {free / 1e9:.2f} GB free on the disk, the first checkpoint needs about "
            f"{needed_bytes / 1e9:.2f} GB; free some space or set output_dir to another disk"
        )


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return the configuration with the full paths of local sources, so that the run continues from any directory."""

    def absolute(source: str, embedded: Sequence[str]) -> str:
        path = Path(source).expanduser()
        return str(path.absolute()) if source not in embedded and source and path.exists() else source

    values = config.model_dump()
    values["model"]["name_or_path"] = absolute(config.model.name_or_path, (LAB,))
    for data in (values["data"], *values["validation_data"].values()):
        data["source"] = absolute(data["source"], TASKS)
    return RunConfig.model_validate(values)
