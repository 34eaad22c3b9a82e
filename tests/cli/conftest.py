"""Runs of the real command line in processes of their own."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import PATIENCE, environment

STAND_IN = '''
"""A stand-in for opasd.trainer.session: records how it was called and does what STAND_IN says."""
import os, signal, sys, time, types

def train(config, folder, *, resume):
    rank = os.environ.get("RANK", "0")
    (folder / f"called-{rank}").write_text(f"{config.train.max_steps} {resume} {os.environ.get('ACCELERATE_USE_CPU')}")
    what = os.environ.get("STAND_IN")
    if what == "later mistake":
        (folder / "metrics.jsonl").write_text('{"step": 1}\\n{"step": 2}\\n')
    if what in ("mistake", "later mistake"):
        from opasd.errors import DataError
        raise DataError("no such column; name another")
    if what == "bug":
        raise RuntimeError("a bug")
    if what == "wait":
        stopped = []
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
        (folder / f"ready-{rank}").touch()
        while not stopped:
            time.sleep(0.02)
        time.sleep(0.3 if rank == "0" else 0)
        return "stopped"
    return "finished"

def merge(adapter, output):
    output.mkdir(exist_ok=True)
    (output / "merged").write_text(str(adapter))

module = types.ModuleType("opasd.trainer.session")
module.train, module.merge = train, merge
sys.modules["opasd.trainer.session"] = module
'''


class CommandLine:
    """`python -m opasd.cli` in a folder of its own, with the stand-in for training."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(STAND_IN)
        inherited = environment(folder / "site", COLUMNS="200")
        self.environment = {k: v for k, v in inherited.items() if k not in ("RANK", "WORLD_SIZE", "OPASD_DEBUG")}

    def start(self, *args: str, module: tuple[str, ...] = ("opasd.cli",), **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *module, *args],
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *args: str, **options: object) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        with self.start(*args, **options) as process:  # pyright: ignore[reportArgumentType]
            output, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, output, errors

    def refuses(self, *args: str, **environment: str) -> str:
        """The message of a mistake: exit code 2, no traceback, one error."""
        code, _, errors = self(*args, **environment)
        assert code == 2, errors
        assert "Traceback" not in errors
        return errors


@pytest.fixture
def opasd(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    return CommandLine(tmp_path)
