"""A run's checkpoints, and whether one is whole."""

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from transformers import TrainerState

from opasd.errors import ConfigError
from opasd.progress import say
from opasd.run.manifest import MANIFEST, checkpoints, damage_of, run_id

Way = Literal["whole", "parts", "deepspeed"]
_WAYS = {
    "whole": "whole",
    "parts": "in parts (FSDP2 with SHARDED_STATE_DICT)",
    "deepspeed": "by DeepSpeed",
}


def set_aside(checkpoint: Path) -> None:
    """Rename a checkpoint, so that no run continues from it."""
    names = (f"aside{n or ''}-{checkpoint.name}" for n in count())
    checkpoint.rename(next(path for name in names if not (path := checkpoint.with_name(name)).exists()))


def check_way(path: Path, way: Way, processes: int) -> None:
    """Refuse a checkpoint whose weights were spread in a way that this run, of so many processes, cannot read."""
    parts = {"deepspeed": "global_step*", "parts": "*/*.distcp"}
    found: Way = next((name for name, files in parts.items() if any(path.glob(files))), "whole")  # pyright: ignore[reportAssignmentType]
    if found != way:
        raise ConfigError(
            f"{path} was saved {_WAYS[found]}, and this run reads one {_WAYS[way]}; resume it as it began"
        )
    before = len([*path.glob("global_step*/*zero_pp_rank_*_optim_states.pt")])
    if before and before != processes:
        raise ConfigError(
            f"{path} was saved by DeepSpeed with {before} processes, got {processes}; give --num-processes {before}"
        )


def check_checkpoint(path: Path, needed: Iterable[str], run_id: str | None = None) -> int:
    """Return the checkpoint's step; refuse it if a file is cut or changed, or if none matches a `needed` pattern.

    With `run_id` refuse a checkpoint of another run, and one without a manifest; without it, say that there is none.
    """
    if not path.is_dir():
        raise ConfigError(f"no checkpoint {path}; give the folder of one")
    if damage := _damage(path, ("trainer_state.json", *needed)) or damage_of(path, run_id):
        raise ConfigError(
            f"{path} is damaged: {damage}; delete it, and --resume continues from the one before, or starts again"
        )
    if not (path / MANIFEST).exists():
        say(f"{path} has no {MANIFEST}, so whether its files have changed cannot be told; the run continues from it")
    return _step(path)


def check_adapter(path: Path, trained: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose adapter has other names or shapes than the weights that a run trains."""
    with safe_open(path / "adapter_model.safetensors", "pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    own = {name: tuple(weight.shape) for name, weight in trained.items()}
    if different := sorted(name for name in saved.keys() | own.keys() if saved.get(name) != own.get(name)):
        raise ConfigError(
            f"{path} has other weights than this run trains, such as {different[0]}: put its config.yaml back, or give "
            "the model and adapter that the run began with"
        )


def newest_checkpoint(folder: Path, needed: Iterable[str]) -> tuple[Path, int] | None:
    """Return the run's newest checkpoint that is whole, and its step; say which are passed over.

    None if the run has none; refuse a run in which none is whole.
    """
    needed, faults, found = tuple(needed), [], checkpoints(folder)
    for path in reversed(found):
        try:
            step = check_checkpoint(path, needed, run_id(folder))
        except ConfigError as error:
            faults.append(error)
            continue
        for fault in faults:
            say(f"{str(fault).split(';', 1)[0]}; the run continues from {path.name}")
        return path, step
    if faults:
        raise faults[0]
    return None


def _is_zip(file: Path) -> bool:
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:  # its end names other disks
        return False


def _step(path: Path) -> int:
    state = TrainerState.load_from_json(str(path / "trainer_state.json"))
    if type(state.global_step) is not int:
        raise ValueError("global_step is no number of steps")
    if not (isinstance(state.log_history, list) and all(isinstance(row, dict) for row in state.log_history)):
        raise ValueError("log_history is no list of rows")
    if not all(isinstance(row.get("step"), int) for row in state.log_history):
        raise ValueError("log_history has rows without a step")
    return state.global_step


def _damage(path: Path, needed: Iterable[str]) -> str | None:
    try:
        for index in path.glob("*.index.json"):
            needed = (*needed, *json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if missing := [pattern for pattern in needed if not any(path.rglob(pattern))]:
            return f"it has no {missing[0]}"
        for file in sorted(path.rglob("*")):
            if file.suffix in (".pt", ".pth") and not _is_zip(file):
                return f"{file.name} is cut"
            if file.suffix == ".safetensors":
                try:
                    with safe_open(file, "pt"):
                        pass
                except SafetensorError:
                    return f"{file.name} is cut"
        step = _step(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"trainer_state.json or an index file cannot be read ({error})"
    named = re.fullmatch(r"checkpoint-(\d+)", path.name)  # a copy may have another name
    return None if named is None or int(named[1]) == step else f"its trainer_state.json is of step {step}"
