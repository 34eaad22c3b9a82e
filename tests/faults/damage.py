"""Ways in which files of a run are damaged, and what a run must then do."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from opasd.run.manifest import write_manifest


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeroed(path: Path) -> None:
    """Zeros in the middle of the file, as a disk leaves that lost its cache; its header stays."""
    content = bytearray(path.read_bytes())
    size = min(4096, len(content) // 4)
    start = len(content) // 2
    content[start : start + size] = bytes(size)
    path.write_bytes(content)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def with_nan(path: Path) -> None:
    state = torch.load(path, weights_only=True)
    state["state"][0]["exp_avg"].fill_(float("nan"))
    torch.save(state, path)


def of_another_run(path: Path) -> None:
    """The checkpoint's own files, but of a run with another name in its manifest."""
    manifest = path.parent / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"run": "0123456789abcdef"}))


def altered_without_manifest(path: Path) -> None:
    (path.parent / "manifest.json").unlink()
    flipped(path)


def of_another_step(path: Path) -> None:
    checkpoint = path.parent
    earlier = checkpoint.parent / "checkpoint-1"
    shutil.rmtree(checkpoint)
    shutil.copytree(earlier, checkpoint)


def added(path: Path) -> None:
    """A file that a loader would take, which the run did not write."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")


def with_other_step(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"global_step": 3.0}))
    write_manifest(path.parent, None)


def with_other_history(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"log_history": [1, {"grad_norm": 1.0}]}))
    write_manifest(path.parent, None)


CHECKPOINT_DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "adapter cut": ("adapter_model.safetensors", cut),
    "4 KiB of zeros in the adapter": ("adapter_model.safetensors", zeroed),
    "a bit of the adapter flipped": ("adapter_model.safetensors", flipped),
    "adapter missing": ("adapter_model.safetensors", Path.unlink),
    "optimizer cut": ("optimizer.pt", cut),
    "a bit of the optimizer flipped": ("optimizer.pt", flipped),
    "optimizer with NaN": ("optimizer.pt", with_nan),
    "scheduler empty": ("scheduler.pt", emptied),
    "random state flipped": ("rng_state.pth", flipped),
    "state cut": ("trainer_state.json", cut),
    "manifest cut": ("manifest.json", cut),
    "manifest missing": ("manifest.json", Path.unlink),
    "manifest missing and the adapter altered": ("adapter_model.safetensors", altered_without_manifest),
    "weights added": ("pytorch_model.bin", added),
    "rollouts added": ("ahead.json", added),
    "an adapter added in a folder": ("other/adapter_model.safetensors", added),
    "a step that is no number": ("trainer_state.json", with_other_step),
    "a history of no rows": ("trainer_state.json", with_other_history),
    "checkpoint of another run": ("manifest.json", of_another_run),
    "checkpoint of another step": ("trainer_state.json", of_another_step),
}


def moments_of_another_shape(path: Path) -> None:
    state = torch.load(path, weights_only=True)
    state["state"][0]["exp_avg"] = torch.zeros(3)
    torch.save(state, path)


def without_a_moment(path: Path) -> None:
    state = torch.load(path, weights_only=True)
    del state["state"][0]["exp_avg_sq"]
    torch.save(state, path)


def nothing_in_it(path: Path) -> None:
    torch.save({}, path)


class _Executed:
    def __reduce__(self):
        return (exec, ("raise SystemExit",))


def an_object(path: Path) -> None:
    torch.save({"x": _Executed()}, path)


def a_batch_of_no_number(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"train_batch_size": None}))


UNFIT: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "moments of another shape": ("optimizer.pt", moments_of_another_shape, "the optimizer .* state of other weights"),
    "a moment missing": ("optimizer.pt", without_a_moment, "the optimizer .* state of other weights"),
    "an empty optimizer": ("optimizer.pt", nothing_in_it, "cannot be continued from the optimizer"),
    "an empty schedule": ("scheduler.pt", nothing_in_it, "the schedule of .*checkpoint-2"),
    "an empty random state": ("rng_state.pth", nothing_in_it, "from the random state of"),
    "an object in the random state": ("rng_state.pth", an_object, "it holds more than tensors and numbers"),
    "an object in the optimizer": ("optimizer.pt", an_object, "it holds more than tensors and numbers"),
    "a state of no numbers": ("trainer_state.json", a_batch_of_no_number, "trainer_state.json of its checkpoint"),
    "weights beside the adapter": ("pytorch_model.bin", added, "has pytorch_model.bin beside its adapter"),
}
"""Parts of a checkpoint that do not fit the run although its manifest says so."""
