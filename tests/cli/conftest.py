"""Runs of the command line in a folder, with a stand-in for training: in this process, or in one of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

import opasd.trainer
from opasd.cli import evaluate
from tests import commands
from tests.nursery import Python
from tests.processes import PATIENCE, environment

STAND_IN = '''
"""Stand-ins for training and merging: they record how they were called and do what STAND_IN says."""
import contextlib, os, signal, sys, time, types

def train(config, folder, *, resume):
    rank = os.environ.get("RANK", "0")
    (folder / f"called-{rank}").write_text(f"{config.train.max_steps} {resume} {os.environ.get('ACCELERATE_USE_CPU')}")
    what = os.environ.get("STAND_IN")
    if what == "later mistake":
        (folder / "metrics.jsonl").write_text('{"step": 1}\\n{"step": 2}\\n')
    if what in ("mistake", "later mistake"):
        from opasd.errors import DataError
        raise DataError("no such column; name another")
    if what == "mistake of another process" and rank == "1":
        from opasd.errors import DataError
        raise DataError("no such file here; copy it")
    if what == "mistake of another process":
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
    if what == "bug":
        raise RuntimeError("a bug")
    if what == "wait":
        stopped = []
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: stopped.append(1))
        (folder / f".ready-{rank}").write_text(str(os.getpid()))
        (folder / f".ready-{rank}").rename(folder / f"ready-{rank}")
        while not stopped:
            time.sleep(0.02)
        time.sleep(0.3 if rank == "0" else 0)
        return "stopped"
    return "finished"

class Trainer:
    def __init__(self, config, folder):
        self.config, self.folder = config, folder

    def has_begun(self):
        return True

    def train(self, resume):
        self.ending = module.train(self.config, self.folder, resume=resume is True)

@contextlib.contextmanager
def opened(config, folder):
    yield Trainer(config, folder)

module = types.ModuleType("opasd.trainer.session")
module.train = train
module.opened = opened
module.ending = lambda trainer: trainer.ending
sys.modules["opasd.trainer.session"] = module
if "opasd.trainer" in sys.modules:
    sys.modules["opasd.trainer"].session = module
'''


class CommandLine:
    """`opasd` in a folder of its own, with the stand-in for training."""

    def __init__(self, folder: Path, stand_in: str = "") -> None:
        self.folder = folder
        self.stand_in = STAND_IN + stand_in
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(self.stand_in)
        inherited = environment(folder / "site", COLUMNS="200")
        self.environment = {k: v for k, v in inherited.items() if k not in ("RANK", "WORLD_SIZE", "OPASD_DEBUG")}

    def __call__(self, *args: str, **environment: str) -> tuple[int, str, str]:
        """Run a command in this process; return its exit code, standard output and standard error."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "opasd.trainer.session", None)
            # The stand-in may replace it; afterwards other tests need it as it was.
            patch.setitem(sys.modules, evaluate.__name__, evaluate)
            patch.setattr(opasd.trainer, "session", None, raising=False)
            exec(self.stand_in, {})
            done = commands.opasd(self.folder, *args, env=self.environment | environment)
        return done.returncode, done.stdout, done.stderr

    def refuses(self, *args: str, **environment: str) -> str:
        """Run a command that is a mistake: exit code 2, no traceback; return its one error."""
        code, _, errors = self(*args, **environment)
        assert code == 2, errors
        assert "Traceback" not in errors
        return errors

    def start(self, *args: str, module: tuple[str, ...] = ("opasd.cli",), **environment: str) -> subprocess.Popen[str]:
        """Start a command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", *module, *args],
            cwd=self.folder,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def forked(self, *args: str, **environment: str) -> Python:
        """Start a command in a process of its own, where the seconds of its imports are not what is tested."""
        return Python("-m", "opasd.cli", *args, cwd=self.folder, env=self.environment | environment)

    def apart(self, *args: str, module: tuple[str, ...] = ("opasd.cli",), **environment: str) -> tuple[int, str, str]:
        """Run a command in a process of its own; return its exit code, standard output and standard error."""
        with self.start(*args, module=module, **environment) as process:
            output, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, output, errors


@pytest.fixture(name="opasd")
def command_line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)
