"""A run's folder: what was asked (config.yaml), where it ran (environment.json, git.json), and who is writing to it.

    folder = RunFolder.create(config, "first-try")     # or RunFolder.open(Path("runs/first-try"))
    with folder.lock():
        train(folder.config, folder.path, resume=False)

The folder appears complete or not at all, and only one process can make it.
"""

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from opasd.config import RunConfig
from opasd.data.made import TASKS
from opasd.errors import ConfigError
from opasd.files import staged_folder, write_text
from opasd.recipes.checking import to_config
from opasd.recipes.reading import read_yaml, write_yaml
from opasd.run.records import Records

PACKAGES = (
    "opasd", "torch", "transformers", "peft", "accelerate", "datasets", "tokenizers", "safetensors", "numpy", "triton",
    "vllm", "flash-attn", "liger-kernel", "bitsandbytes", "deepspeed", "wandb", "tensorboard", "trackio", "mlflow",
)  # fmt: skip
MAX_NAME = 200
MAX_DIFF_BYTES = 1 << 20
_CONFIG, _ENVIRONMENT, _LOCK = "config.yaml", "environment.json", ".lock"
_CONTINUED = re.compile(r"environment-([1-9]\d*)\.json", re.ASCII)
_SECRET = re.compile(r"(token|secret|password|key)$", re.IGNORECASE)
"""The end of a flag whose value is nobody's business; objective.token.clip is no such flag."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run and the configuration it is run with."""

    path: Path
    config: RunConfig

    @classmethod
    def create(cls, config: RunConfig, name: str, *, command: Sequence[str] = ()) -> Self:
        """Make `output_dir/name`; of several processes that try, exactly one does."""
        check_name(name)
        parent = Path(config.output_dir).expanduser()
        path = parent / name
        config = with_absolute_paths(config.model_copy(update={"name": name}))
        files = {_CONFIG: write_yaml(config.model_dump()), _ENVIRONMENT: _json(environment(command))}
        files |= repository(Path.cwd())
        try:
            parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(path):
                raise _exists(path)
            with staged_folder(path) as staged:
                for file, text in files.items():
                    write_text(staged / file, text, "surrogateescape")
        except OSError as error:
            if os.path.isdir(path):
                raise _exists(path) from None
            raise ConfigError(
                f"the run folder {path} cannot be made ({error.strerror}); set output_dir to a folder you can write to"
            ) from error
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The folder of an earlier run, to be continued."""
        path = path.expanduser()
        if not path.is_dir():
            raise ConfigError(f"no run folder {path}; give the folder that `opasd train` made, such as runs/NAME")
        if not (path / _CONFIG).is_file():
            raise ConfigError(f"{path} has no {_CONFIG}, so it is no run folder or a damaged one; start a new run")
        return cls(path, to_config(read_yaml(path / _CONFIG), str(path / _CONFIG)))

    def continued(self, config: RunConfig, *, command: Sequence[str] = ()) -> Self:
        """Record that the run goes on: environment-N.json, and config-N.yaml with the old one if it changed."""
        config = with_absolute_paths(config)
        number = 1
        while (self.path / f"environment-{number}.json").exists() or (self.path / f"config-{number}.yaml").exists():
            number += 1
        try:
            write_text(self.path / f"environment-{number}.json", _json(environment(command)))
            if config != self.config:
                write_text(self.path / f"config-{number}.yaml", write_yaml(self.config.model_dump()), "surrogateescape")
                write_text(self.path / _CONFIG, write_yaml(config.model_dump()), "surrogateescape")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written to ({error.strerror}); free space or rights") from error
        return type(self)(self.path, config)

    def take_back(self) -> None:
        """Undo the last `continued`, of which nothing came."""
        numbers = [int(found[1]) for path in self.path.iterdir() if (found := _CONTINUED.fullmatch(path.name))]
        if numbers:
            (self.path / f"environment-{max(numbers)}.json").unlink()
            with suppress(FileNotFoundError):
                (self.path / f"config-{max(numbers)}.yaml").replace(self.path / _CONFIG)

    def has_ended(self, max_steps: int) -> bool:
        """Whether the run is finished and keeps no checkpoint; an error if it should then go on to `max_steps`."""
        if any(self.path.glob("checkpoint-*")) or not (self.path / "final" / "README.md").exists():
            return False
        last = max((row["step"] for row in Records(self.path / "metrics.jsonl")), default=0)
        if last < max_steps:
            raise ConfigError(f"{self.path} ended at step {last} and has no checkpoint to go on from; start a new run")
        return True

    def check_processes(self, count: int) -> None:
        """Refuse to go on with more or fewer processes: a step would have more or fewer problems."""
        try:
            before = json.loads((self.path / _ENVIRONMENT).read_text(encoding="utf-8"))["processes"]
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return
        if before != count:
            raise ConfigError(
                f"{self.path} was begun with --num-processes {before}, this is {count}: a step would have other "
                "problems; give that number, or launch as many"
            )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder while training."""
        with hold(self.path, "run"):
            yield

    def in_use(self) -> bool:
        """Whether a process holds the folder."""
        try:
            with open(self.path / _LOCK, encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


@contextmanager
def hold(path: Path, what: str) -> Iterator[None]:
    """Hold the folder of one `what`; the operating system lets go of it when the process ends in any way."""
    try:
        file = open(path / _LOCK, "a+", encoding="utf-8")  # noqa: SIM115 (the `with` below closes it)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written to ({error.strerror}); check its rights") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read(20).strip() or "unknown"
            raise ConfigError(
                f"{what} folder {path} in use by a live process (pid {pid}); wait for it or start another {what}"
            ) from None
        except OSError as error:
            warnings.warn(f"{path}: this file system has no locks ({error.strerror})", stacklevel=4)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def run_name(recipe: str, now: time.struct_time | None = None) -> str:
    """`<recipe>-<YYYYmmdd-HHMMSS>`, for a run that was given no name."""
    return f"{recipe[: MAX_NAME - 16]}-{time.strftime('%Y%m%d-%H%M%S', now or time.localtime())}"


def check_name(name: str) -> None:
    """Refuse a name that is no single, visible folder inside output_dir."""
    bad = not name.strip() or name.startswith(".") or len(name.encode(errors="surrogateescape")) > MAX_NAME
    if bad or any(character in "/\\" or not character.isprintable() for character in name):
        raise ConfigError(
            f"name: got {name[:60]!r}; give one folder's name of at most {MAX_NAME} bytes, without slashes, control "
            "characters or a dot at its beginning (output_dir says where it is made)"
        )


def check_disk(folder: Path, needed_bytes: int) -> None:
    """Refuse to start where the first checkpoint would not fit."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise ConfigError(
            f"{folder}: {free / 1e9:.2f} GB free on the disk, the first checkpoint needs about "
            f"{needed_bytes / 1e9:.2f} GB; free some space or set output_dir to another disk"
        )


def versions() -> dict[str, str | None]:
    """The version of each package that matters here, None where it is not installed; imports none of them."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def environment(command: Sequence[str] = ()) -> dict[str, Any]:
    """What a reader needs to judge or repeat a run; no host name, and secrets on the command line masked."""
    gpus = _output(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": _masked(command or sys.argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpus": (gpus or "").splitlines(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "versions": versions(),
    }


def repository(folder: Path) -> dict[str, str]:
    """git.json and git.diff of the repository that `folder` is in, nothing where there is none."""
    revision = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if not revision:
        return {}
    diff = _output(["git", "-C", str(folder), "diff", "HEAD", "--no-color", "--no-ext-diff"]) or ""
    status = _output(["git", "-C", str(folder), "status", "--porcelain"]) or ""
    cut = diff.encode(errors="surrogateescape")[:MAX_DIFF_BYTES].decode(errors="surrogateescape")
    about = {
        "revision": revision.strip(),
        "clean": not status.strip(),
        "untracked": [line[3:] for line in status.splitlines() if line.startswith("??")][:100],
        "diff_cut": len(cut) < len(diff),
    }
    return {"git.json": _json(about)} | ({"git.diff": cut} if cut else {})


def _exists(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} exists and a run is never overwritten; continue it with `opasd train --resume {path}` or give "
        "another --name"
    )


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Local sources by their full path, so that the run can be continued from any directory."""

    def full(source: str, embedded: Sequence[str]) -> str:
        path = Path(source).expanduser()
        return str(path.absolute()) if source not in embedded and source and path.exists() else source

    values = config.model_dump()
    values["model"]["name_or_path"] = full(config.model.name_or_path, ("lab",))
    for data in (values["data"], *values["validation_data"].values()):
        data["source"] = full(data["source"], TASKS)
    return RunConfig.model_validate(values)


def _masked(command: Sequence[str]) -> list[str]:
    masked = [
        word.split("=")[0] + "=***" if "=" in word and _SECRET.search(word.split("=")[0]) else word for word in command
    ]
    for place, word in enumerate(command[:-1]):
        if (
            word.startswith("--")
            and "=" not in word
            and _SECRET.search(word)
            and not command[place + 1].startswith("--")
        ):
            masked[place + 1] = "***"
    return masked


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="surrogateescape")


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
