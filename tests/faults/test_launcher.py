"""Several processes on one machine: none outlives the command, and what went wrong in any of them is shown."""

import os
import signal
from pathlib import Path

import pytest

from opasd import cli
from opasd.cli._launcher import culprit
from tests.cli.conftest import CommandLine
from tests.processes import PATIENCE, wait_until

ARGS = ("train", "lab", "--num-processes", "2", "--train.max-steps", "3", "--name", "x")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waiting_ranks(command: CommandLine, process) -> list[int]:
    ready = [command.folder / "runs" / "x" / f"ready-{rank}" for rank in (0, 1)]
    for path in ready:
        wait_until(path.exists, process)
    return [int(path.read_text()) for path in ready]


def test_no_process_outlives_the_command(tmp_path):
    command = CommandLine(tmp_path)
    with command.start(*ARGS, STAND_IN="wait") as process:
        ranks = waiting_ranks(command, process)
        process.kill()
        process.communicate(timeout=PATIENCE)
        wait_until(lambda: not any(map(alive, ranks)))


def test_a_killed_process_is_named_with_what_to_do(tmp_path):
    command = CommandLine(tmp_path)
    with command.forked(*ARGS, STAND_IN="wait") as process:
        ranks = waiting_ranks(command, process)
        os.kill(ranks[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE)
        wait_until(lambda: not any(map(alive, ranks)))
    assert process.returncode == 1
    assert errors.count("error: ") == 1
    assert "error: process 1 was killed by SIGKILL (often because the machine's memory ran out)" in errors
    assert "continue with: opasd train --resume runs/x --num-processes 2\n" in errors
    assert "Traceback" not in errors


def test_the_mistake_of_another_process_is_shown(tmp_path):
    with CommandLine(tmp_path).forked(*ARGS, STAND_IN="mistake of another process") as process:
        _, errors = process.communicate()
    assert process.returncode == 2, errors
    assert "error: process 1: no such file here; copy it\n" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("codes", "named"),
    [({0: 2, 1: -15}, (0, 2)), ({0: 1, 1: -9}, (1, -9)), ({0: -15, 1: -9, 2: 1}, (1, -9)), ({1: -15}, (1, -15))],
)
def test_whom_the_launcher_has_ended_is_not_blamed(codes, named):
    assert culprit(codes) == named


def test_a_lost_connection_is_the_launchers_to_tell(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPASD_MEETING", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    cli._show_error(cli.LOST)
    assert capsys.readouterr().err == ""
    assert (tmp_path / "error-0").read_text() == cli.LOST
    cli._show_error("no such column")
    assert capsys.readouterr().err == "error: no such column\n"
