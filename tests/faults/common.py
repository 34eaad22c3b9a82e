"""What the parts of the long suite share: a line of the page, forked processes, and the comparison of two runs."""

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.training import make_trainer, rows

STEPS = 14
QUICK = "--quick" in sys.argv


@dataclass
class Result:
    """One line of the page."""

    fault: str
    promise: str
    tried: int = 0
    slowest: float = 0.0
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def expect(self, holds: object, what: str) -> None:
        if not holds:
            self.failures.append(what)

    def line(self) -> str:
        happened = (
            f"**failed {len(self.failures)} times**: {' '.join(self.failures[0].split())}"
            if self.failures
            else "as promised"
        )
        slowest = [f"slowest {self.slowest:.1f} s"] if self.slowest else []
        return f"| {self.fault} | {self.tried:,} | {self.promise} | {'; '.join([happened, *slowest, *self.notes])} |"

    def add(self, other: "Result") -> None:
        """Take in what another process has tried of the same."""
        self.tried += other.tried
        self.slowest = max(self.slowest, other.slowest)
        self.notes += other.notes
        self.failures += other.failures


EXACT = "the resumed run equals the undisturbed one bit for bit; nothing is left behind"


def child(function: Callable[[], object], output: Path | None = None) -> int:
    """Run a function in a process of its own; its exit code is 75 for `stopped`."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if output is not None:
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        code = 75 if function() == "stopped" else 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train(folder: Path, steps: int = STEPS, **arguments: object) -> str:
    from opasd.trainer import session

    trainer = make_trainer(folder, max_steps=steps, save_steps=2, save_total_limit=2, **arguments)
    with session._stopping_on_signals(trainer):
        trainer.train(trainer.has_begun() or None)
    return session.ending(trainer)


def same(result: Result, run: Path, whole: Path) -> None:
    first, second = (load_file(folder / "final" / "adapter_model.safetensors") for folder in (run, whole))
    result.expect(all(torch.equal(first[name], second[name]) for name in second), "other weights")
    result.expect(rows(run) == rows(whole), "other metrics")
    result.expect(rows(run, "samples.jsonl") == rows(whole, "samples.jsonl"), "other samples")
    left = [path.name for path in run.iterdir() if path.name.startswith(".") and path.name != ".lock"]
    result.expect(not left, f"left behind: {left}")


def undisturbed(place: Path) -> tuple[Path, float]:
    began = time.monotonic()
    if end_of(child(lambda: train(place / "whole"))) != 0:
        raise SystemExit("the undisturbed run fails")
    return place / "whole", time.monotonic() - began
