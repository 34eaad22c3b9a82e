"""Show versions and devices, and what is missing for what."""

import json
import os
import platform
import sys
from typing import Any

from opasd.choices import ENGINES
from opasd.cli._parser import Parser
from opasd.run.environment import versions

NEEDED_FOR = {
    "bitsandbytes": "model.adaptation: qlora",
    **{entry.package: f"rollout.engine: {name}" for name, entry in ENGINES.items() if entry.package},
    "flash-attn": "model.attn_implementation: flash_attention_2",
    "liger-kernel": "fused norms, rotary embeddings and activations on a GPU",
    "triton": "fused kernels (comes with torch for CUDA)",
    "deepspeed": "`accelerate launch` with DeepSpeed",
    "wandb": "train.report_to: wandb",
    "tensorboard": "train.report_to: tensorboard",
    "trackio": "train.report_to: trackio",
    "mlflow": "train.report_to: mlflow",
}


def parser() -> Parser:
    """Return the command's parser."""
    command = Parser("env", __doc__, usage="opasd env [--json]")
    command.add_argument("--json", action="store_true", help="Print one JSON object instead.")
    return command


def run(args: list[str]) -> int:
    """The command."""
    options = parser().parse_args(args)
    installed = versions()
    about: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": installed,
        "devices": _devices(),
        "missing": {name: use for name, use in NEEDED_FOR.items() if installed.get(name) is None},
    }
    if options.json:
        sys.stdout.write(json.dumps(about, indent=2) + "\n")
        return 0
    lines = [f"{'python':<13} {about['python']} on {about['platform']}"]
    lines += [f"{name:<13} {version}" for name, version in installed.items() if version]
    lines += ["", "devices"]
    for device in about["devices"]:
        memory = f", {device['free_gb']:.1f} of {device['memory_gb']:.1f} GB free" if "memory_gb" in device else ""
        lines.append(f"  {device['name']}{memory}")
    lines += ["", "not installed, needed only for", *(f"  {name:<13} {use}" for name, use in about["missing"].items())]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _devices() -> list[dict[str, Any]]:
    try:
        import torch
    except ImportError as error:
        return [{"kind": "none", "name": f"torch cannot be imported ({error}); pip install torch"}]
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices: list[dict[str, Any]] = [{"kind": "cpu", "name": f"CPU, {cpus} cores"}]
    try:
        memory, free = (os.sysconf("SC_PAGE_SIZE") * os.sysconf(f"SC_{kind}PHYS_PAGES") / 1e9 for kind in ("", "AV"))
        devices[0] |= {"memory_gb": memory, "free_gb": free}
    except (ValueError, OSError):
        pass
    for index in range(torch.cuda.device_count()):
        free, memory = torch.cuda.mem_get_info(index)
        name = f"cuda:{index} {torch.cuda.get_device_name(index)}"
        devices.append({"kind": "cuda", "name": name, "memory_gb": memory / 1e9, "free_gb": free / 1e9})
    if torch.backends.mps.is_available():
        devices.append({"kind": "mps", "name": "mps"})
    return devices
