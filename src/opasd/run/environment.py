"""Describe where a run takes place: machine, versions, command and repository. Imports none of the packages."""

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from opasd.choices import ENGINES
from opasd.errors import without_secrets

PACKAGES = (
    "opasd", "torch", "transformers", "peft", "accelerate", "datasets", "tokenizers", "safetensors", "numpy", "triton",
    *(engine.package for engine in ENGINES.values() if engine.package), "flash-attn", "liger-kernel", "bitsandbytes",
    "deepspeed", "wandb", "tensorboard", "trackio", "mlflow",
)  # fmt: skip
MAX_DIFF_BYTES = 1 << 20
_SECRET = re.compile(r"(?<!\.first[-_])(token|secret|password|key)$", re.IGNORECASE)
"""The end of a flag with a secret value; `objective.token.clip` and `objective.attention.first_token` are no such."""

_ADDRESS = re.compile(r"(\w://)(?:[^/@\s]+@)?([^\s?#]*)(?:\?[^\s#]*)?")
"""An address; what may be secret in it stands before an @ or behind a question mark."""


def versions() -> dict[str, str | None]:
    """Return the version of each package that matters here, None if it is not installed."""
    installed: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed


def own_version() -> str:
    """Return this package's version; one that is used without being installed has none."""
    return versions()["opasd"] or "not installed"


def environment(command: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a reader needs to judge or repeat a run, without the host name or secrets of the command line."""
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


def repository(folder: Path, *, with_diff: bool = False) -> dict[str, str]:
    """Return git.json of the repository around `folder`, nothing if there is none; git.diff too, if asked for.

    The changes of whatever repository one stands in may hold secrets.
    """
    revision = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if not revision:
        return {}
    differences = ["git", "-C", str(folder), "diff", "HEAD", "--no-color", "--no-ext-diff"]
    diff = _output(differences) or "" if with_diff else ""
    status = _output(["git", "-C", str(folder), "status", "--porcelain"]) or ""
    cut = diff.encode(errors="surrogateescape")[:MAX_DIFF_BYTES].decode(errors="surrogateescape")
    summary = {
        "revision": revision.strip(),
        "clean": not status.strip(),
        "untracked": [line[3:] for line in status.splitlines() if line.startswith("??")][:100],
        "diff_cut": len(cut) < len(diff),
    }
    return {"git.json": to_json(summary)} | ({"git.diff": cut} if cut else {})


def to_json(value: object) -> str:
    """Return the text of a JSON file."""
    return json.dumps(value, indent=2) + "\n"


def _masked(command: Sequence[str]) -> list[str]:
    """Replace the values of secret flags, given as `--flag=value` or `--flag value`, and secrets in addresses."""
    masked: list[str] = []
    for index, word in enumerate(command):
        flag, equals, _ = word.partition("=")
        before = command[index - 1] if index else ""
        if equals and _SECRET.search(flag):
            masked.append(f"{flag}=***")
        elif before.startswith("--") and "=" not in before and _SECRET.search(before) and not word.startswith("--"):
            masked.append("***")
        else:
            masked.append(without_secrets(_ADDRESS.sub(r"\1\2", word)))
    return masked


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="surrogateescape")
