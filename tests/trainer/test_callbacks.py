"""Progress: plain lines in a log, one redrawn line on a terminal."""

import io
import os
import pty
import re
import sys
import time
from contextlib import suppress

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from opasd.trainer.callbacks import Progress

ARGS = TrainingArguments(use_cpu=True, report_to=[])
LOGS = {"loss": 0.12345, "grad_norm": 1.0, "rollout/length_mean": 812.4}
FULL = {**LOGS, "token/loss": 0.1, "attention/divergence": 0.2, "attention/solution_mass": 0.3, "rollout/accuracy": 0.5}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(monkeypatch, stream, events, *, first=0, max_steps=3, zero=True) -> Progress:
    """Trainer's calls: (step, logs) in order."""
    monkeypatch.setattr(sys, "stderr", stream)
    progress, control = Progress(), TrainerControl()
    state = TrainerState(global_step=first, max_steps=max_steps, is_world_process_zero=zero)
    progress.on_train_begin(ARGS, state, control)
    for step, logs in events:
        state.global_step = step
        progress.on_log(ARGS, state, control, logs=logs)
    progress.on_train_end(ARGS, state, control)
    return progress


def test_one_line_a_step_in_a_log(monkeypatch):
    stream = io.StringIO()
    run(monkeypatch, stream, [(1, LOGS), (2, LOGS), (2, {"train_runtime": 3.0}), (2, {}), (2, None), (3, LOGS)])
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1/3", "step 2/3", "step 3/3"]
    assert stream.getvalue().endswith("\n")
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_what_a_line_says(monkeypatch):
    stream = io.StringIO()
    run(monkeypatch, stream, [(1, LOGS), (2, FULL)])
    short, full = (line.split("  ") for line in stream.getvalue().splitlines())
    assert short[:-1] == ["step 1/3", "loss 0.1235", "length 812"]
    assert full[:-1] == ["step 2/3", "loss 0.1235", "token 0.1000", "attention 0.2000", "ρ 0.3000", "length 812",
                         "accuracy 0.50"]  # fmt: skip
    assert re.fullmatch(r"left \d+:\d\d", full[-1])


def test_time_left(monkeypatch):
    """Steps of this run only: a resumed one has not done the earlier ones in its time."""
    clock = iter([0.0, 100.0, 130.0, 165.0])  # made, begun, after each step
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    run(monkeypatch, stream, [(11, LOGS), (12, LOGS)], first=10, max_steps=20)
    lefts = [line.rsplit("  ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lefts == ["left 4:30", "left 4:20"]  # 30 s x 9, 32.5 s x 8


def test_a_line_is_redrawn_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    run(monkeypatch, stream, [(1, LOGS), (2, LOGS), (3, LOGS)])
    text = stream.getvalue()
    assert text.count("\r\x1b[K") == 3
    assert text.count("\n") == 1
    assert text.endswith("\n")


@pytest.mark.parametrize("columns", [20, 80])
def test_a_line_does_not_wrap(monkeypatch, columns):
    """A wrapped line cannot be redrawn: its first part would stay for every step."""
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    run(monkeypatch, stream, [(1, FULL), (2, FULL)])
    drawn = stream.getvalue().removesuffix("\n").split("\r\x1b[K")[1:]
    assert len(drawn) == 2
    assert all(len(line) < columns for line in drawn)
    if columns == 80:  # a narrow line loses its less important parts
        assert all(f"{part} " in line for line in drawn for part in ("loss", "accuracy", "left"))


@pytest.mark.parametrize("terminal", [False, True])
def test_a_validation_stays(monkeypatch, terminal):
    stream = Terminal() if terminal else io.StringIO()
    run(monkeypatch, stream, [(1, LOGS), (1, {"validation/aime/avg@4": 0.3125, "validation/aime/truncated": 0.0})])
    assert "validation  aime/avg@4 0.312  aime/truncated 0\n" in stream.getvalue()


def test_only_the_first_process_speaks(monkeypatch):
    for stream in (io.StringIO(), Terminal()):
        run(monkeypatch, stream, [(1, LOGS), (1, {"validation/a/avg@1": 1.0})], zero=False)
        assert stream.getvalue() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_on_a_real_terminal(monkeypatch):
    master, terminal = pty.openpty()
    parts = []
    try:
        with open(terminal, "w", encoding="utf-8") as stream:
            run(monkeypatch, stream, [(1, LOGS), (2, LOGS)])
        with suppress(OSError):  # the end of the stream, once nobody writes any more
            while part := os.read(master, 65536):
                parts.append(part)
    finally:
        os.close(master)
    text = b"".join(parts).decode()
    assert text.count("\r\x1b[Kstep") == 2
    assert text.count("\n") == 1


def test_a_stream_that_cannot_write_greek(monkeypatch):
    """Python's own stderr escapes what its encoding lacks."""
    raw = io.BytesIO()
    run(monkeypatch, io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace"), [(1, FULL)])
    assert b"\\u03c1 0.3000" in raw.getvalue()
