"""Several processes: which one this is, how they agree on the run's folder, how `--num-processes` starts them."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from opasd.errors import ConfigError

_MEETING = "OPASD_MEETING"
_WAIT_S = 300


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
        if self.world > 1:
            import torch

            if not torch.accelerator.is_available():
                os.environ["ACCELERATE_USE_CPU"] = "true"  # without it accelerate sees several separate runs

    def announce(self, folder: Path | None) -> None:
        """Tell the other processes the folder that the first one has made, or None if it could not make one."""
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
    """Run `opasd train ARGS` in `count` processes through `accelerate launch`, handing signals to each of them."""
    command = [sys.executable, "-m", "opasd.cli._launcher", str(count), *args]
    with tempfile.TemporaryDirectory(prefix="opasd-") as meeting:
        # A session of its own: Ctrl-C reaches this process alone, which hands it on once.
        launcher = subprocess.Popen(command, env=os.environ | {_MEETING: meeting}, start_new_session=True)
        previous = {
            number: signal.signal(number, lambda number, _: _hand_on(number, Path(meeting), launcher))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            code = launcher.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        exit_file = Path(meeting, "exit")
        return int(exit_file.read_text()) if exit_file.exists() else (code if code >= 0 else 1)


def report_exit(code: int) -> None:
    """Leave the first process's exit code for `relaunch`; launchers turn every failure into 1."""
    meeting = os.environ[_MEETING]
    if os.environ.get("RANK", "0") == "0" and os.path.isdir(meeting):
        Path(meeting, "exit").write_text(str(code))


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
