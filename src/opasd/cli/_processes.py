"""Several processes: which one this is, how they agree on the run's folder, how `--num-processes` starts them."""

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from opasd.cli import LOST, STOPPED
from opasd.errors import ConfigError
from opasd.files import read_object
from opasd.progress import say

_MEETING, _PARENT = "OPASD_MEETING", "OPASD_PARENT"
_WAIT_S = 300
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of the run."""

    rank: int = 0
    world: int = 1

    @classmethod
    def current(cls) -> "Processes":
        """Read rank and world size as torchrun, accelerate and deepspeed set them."""
        try:
            return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        except ValueError:
            raise ConfigError("RANK and WORLD_SIZE in the environment are not numbers; unset them") from None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def join(self) -> None:
        """Register this process for signals, and let processes without an accelerator work together over gloo."""
        if folder := os.environ.get(_MEETING):
            Path(folder, f"{self.rank}.pid").write_text(str(os.getpid()))
            end_with_parent()
        if self.world > 1:
            import torch

            if not torch.accelerator.is_available():
                os.environ["ACCELERATE_USE_CPU"] = "true"  # without it accelerate sees several separate runs

    def announce(self, folder: Path | None) -> None:
        """Tell the other processes the folder that the first one has made, or None if it could not make one."""
        if (meeting := os.environ.get(_MEETING)) and folder is not None:
            Path(meeting, "folder").write_text(str(folder))
        if self.world > 1 and (store := _store()):
            store.set("folder", json.dumps(None if folder is None else str(folder.absolute())))

    def wait_for_folder(self, expected: Path | None, ready: Callable[[Path], bool]) -> Path | None:
        """Wait until the first process has announced its folder and return it, or None if there will be none.

        Without torchrun's store, wait until the `expected` folder is `ready`.
        """
        if store := _store():
            answer = json.loads(store.get("folder"))
            return None if answer is None else Path(answer)
        if expected is None:
            raise ConfigError("this launcher has no store in which processes can agree on a name; give --name")
        for _ in range(_WAIT_S * 5):
            if ready(expected):
                return expected
            time.sleep(0.2)
        raise ConfigError(f"process {self.rank}: {expected} did not appear within {_WAIT_S} s; is the disk shared?")


def relaunch(args: list[str], count: int) -> int:
    """Run `opasd train ARGS` in `count` processes through `accelerate launch`, handing signals to each of them.

    If this process is killed, the launcher and with it the others get SIGTERM, save and end.
    """
    command = [sys.executable, "-m", "opasd.cli._launcher", str(count), *args]
    with tempfile.TemporaryDirectory(prefix="opasd-") as meeting:
        # A session of its own: Ctrl-C reaches this process alone, which hands it on once.
        own = {_MEETING: meeting, _PARENT: str(os.getpid())}
        launcher = subprocess.Popen(command, env=os.environ | own, start_new_session=True)
        previous = {
            number: signal.signal(number, lambda number, _: _hand_on(number, Path(meeting), launcher))
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN  # under nohup it is ignored
        }
        try:
            code = launcher.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return _conclude(Path(meeting), code, count)


def _conclude(meeting: Path, code: int, count: int) -> int:
    """Print what the processes have not printed themselves, and return the exit code of them all."""
    errors = {rank: _read(meeting / f"error-{rank}") for rank in range(count)}
    codes = {rank: int(text) for rank in range(count) if (text := _read(meeting / f"exit-{rank}"))}
    own = [text for rank, text in errors.items() if rank and text and text not in (LOST, errors[0])]
    for rank, text in errors.items():
        if text in own:
            say(f"error: process {rank}: {text}")
            own.remove(text)
    lost = [rank for rank, text in errors.items() if text == LOST]
    ended = read_object(meeting / "ended")
    if lost or ended.get("code", 0) < 0:
        folder = _read(meeting / "folder")
        hint = f"; continue with: opasd train --resume {shlex.quote(folder)} --num-processes {count}" if folder else ""
        say(f"error: {_described(ended)}, and the others were ended{hint}")
        return next((own for rank, own in codes.items() if rank not in lost and own not in (0, STOPPED)), 1)
    # The first process may have been ended for another's mistake.
    return codes.get(0, next((own for own in codes.values() if own), code if code >= 0 else 1))


def _described(ended: dict[str, Any]) -> str:
    code = ended.get("code", 0)
    if code >= 0:
        return "a process failed" if not ended else f"process {ended['rank']} failed"
    return f"process {ended['rank']} {killed_by(-code)}"


def killed_by(number: int) -> str:
    """Say that a signal ended a process, and what often sends it."""
    why = " (often because the machine's memory ran out)" if number == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(number).name}{why}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def report_exit(code: int) -> None:
    """Leave this process's exit code for `relaunch`; launchers turn every failure into 1."""
    meeting = os.environ[_MEETING]
    if os.path.isdir(meeting):
        Path(meeting, f"exit-{os.environ.get('RANK', '0')}").write_text(str(code))


def leave_error(rank: int, message: str) -> bool:
    """Leave a process's error for `relaunch`; return whether there is one."""
    meeting = os.environ.get(_MEETING, "")
    if not os.path.isdir(meeting):
        return False
    Path(meeting, f"error-{rank}").write_text(message, encoding="utf-8", errors="replace")
    return True


def lost_connection(error: Exception) -> bool:
    """Return whether another process of the run has gone: gloo and NCCL then fail in this one."""
    words = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "gloo", "Socket")
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return "DistError" in kinds or (isinstance(error, RuntimeError) and any(word in str(error) for word in words))


def end_with_parent() -> None:
    """Get SIGTERM when the process that started this one ends, however it ends. Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _hand_on(number: int, meeting: Path, launcher: "subprocess.Popen[bytes]") -> None:
    pids = [int(text) for file in meeting.glob("*.pid") if (text := file.read_text())]
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    if not pids:
        launcher.send_signal(number)


def _store():
    """Return the store that torchrun and accelerate keep for the processes of a launch, None under other launchers."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_WAIT_S))
    return PrefixStore(f"opasd/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
