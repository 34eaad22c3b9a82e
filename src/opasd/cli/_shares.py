"""Commands that several processes share without talking to one another: each runs the same command on its share."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from opasd.cli._flags import without_flags
from opasd.cli._processes import end_with_parent, killed_by
from opasd.errors import ConfigError, EngineError

_SHARE, _PARENT = "OPASD_SHARE", "OPASD_PARENT"
LOG = "log.txt"


def current() -> tuple[int, int] | None:
    """Return which of how many processes this is; None for a command that a user has given."""
    if not (share := os.environ.get(_SHARE)):
        return None
    end_with_parent()
    if os.getppid() != int(os.environ[_PARENT]):
        sys.exit(1)  # it ended before we could ask to end with it
    rank, world = map(int, share.split("/"))
    return rank, world


def run(command: str, args: list[str], count: int, more: list[str], folder: Callable[[int], Path]) -> None:
    """Run the command in `count` processes, each on a GPU of its own, and wait for all; raise what one of them says.

    The first one shows its progress; the others write theirs to a log in their folders.
    """
    devices = _devices(count)
    rest = [*without_flags(args, ["--num-processes", more[0]]), *more]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(count):
            folder(rank).mkdir(parents=True, exist_ok=True)
            own = {_SHARE: f"{rank}/{count}", _PARENT: str(os.getpid())} | (
                {"CUDA_VISIBLE_DEVICES": devices[rank]} if devices else {}
            )
            with open(folder(rank) / LOG, "wb") as log:
                children.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "opasd", command, *rest],
                        env=os.environ | own,
                        stdout=subprocess.DEVNULL,
                        stderr=log if rank else None,
                    )
                )
        codes = [child.wait() for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()
        for child in children:
            child.wait()
    for rank, code in enumerate(codes):
        name = f"process {rank} of {count}"
        if (number := -code if code < 0 else code - 128) in set(signal.Signals):
            raise EngineError(f"{name} {killed_by(number)}; give the command again")
        if code:
            lines = (folder(rank) / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason = lines[-1].removeprefix("error: ") if lines else "see above"
            raise (ConfigError if code == 2 else EngineError)(f"{name} ended with {code}: {reason}")


def _devices(count: int) -> list[str]:
    """Return a GPU for each process, nothing on a machine without GPUs; refuse fewer GPUs than processes."""
    import torch

    found = torch.cuda.device_count()
    if found and found < count:
        raise ConfigError(f"--num-processes: got {count}, and {found} GPUs are there; give that number at most")
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(n) for n in range(found)])[:count] if found else []
