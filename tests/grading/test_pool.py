"""The worker processes: killed when they hang, replaced when they die, gone when the grader is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opasd.grading.algebra import compare
from opasd.grading.pool import Grader, Job
from tests.grading.pairs import box
from tests.processes import PATIENCE, run, wait_until

HARD = Job(box(r"2\sqrt{3}"), r"\sqrt{12}")
ENDLESS = Job(box("9^{9^{9^{9}}}"), "7")


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers(pid: int | None = None) -> list[int]:
    """Return the grading processes that a process has started, by default this one."""
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children(pid or os.getpid())}
    return [child for child, command in commands.items() if b"opasd.grading" in command]


def test_easy_pairs_start_no_process():
    with Grader() as grader:
        assert [g.verdict for g in grader.grade_all([Job(box("5"), "5"), Job(box("6"), "5"), Job("", "5")])] == [
            "correct",
            "wrong",
            "no_answer",
        ]
        assert not workers()


def test_hanging_and_dying_pairs_do_not_disturb_the_others():
    with Grader(workers=2, seconds=0.4) as grader:
        graded = grader.grade_all(
            [HARD, ENDLESS, HARD, Job(box("1000000000!"), "7"), Job(box(r"\sqrt{8}"), r"2\sqrt{2}")]
        )
        assert [g.verdict for g in graded] == ["correct", "grader_failed", "correct", "grader_failed", "correct"]
        assert graded[1].answer == "9^{9^{9^{9}}}"


def test_a_killed_worker_is_replaced_and_its_pair_compared_again():
    """Whatever ends a worker, it is not the pair: those are compared in a process of their own."""
    with Grader(workers=1, seconds=60) as grader:
        grader.start()
        wait_until(workers)  # a process that has just begun has no command line yet
        os.kill(workers()[0], signal.SIGKILL)
        assert grader.grade(HARD).verdict == "correct"
        (second,) = workers()
        os.kill(second, signal.SIGKILL)
        assert grader.grade(Job(box(r"3\sqrt{2}"), r"\sqrt{18}")).verdict == "correct"
        (third,) = workers()
        assert third != second


def test_a_worker_that_never_starts_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Grader(workers=1) as grader, pytest.raises(RuntimeError, match="does not start"):
        grader.grade(HARD)


def test_nothing_is_left_behind():
    grader = Grader(workers=1, seconds=60)
    grader.grade(HARD)
    (worker,) = workers()
    (child,) = children(worker)
    grader.close()
    assert not Path(f"/proc/{worker}").exists()
    wait_until(lambda: not Path(f"/proc/{child}").exists())


SCRIPT = """
import sys
from opasd.grading.pool import Grader, Job
grader = Grader(workers=1)
print(grader.grade(Job(r"\\boxed{2\\sqrt{3}}", r"\\sqrt{12}")).verdict, flush=True)
if "wait" in sys.argv:
    grader.grade(Job(r"\\boxed{9^{9^{9^{9}}}}", "7"))
"""


def test_a_plain_script_without_a_main_guard(tmp_path):
    """Started anywhere, beside files that shadow modules of the library."""
    (tmp_path / "statistics.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-P", "script.py"]
    done = run(command, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("correct\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_script_that_is_stopped_takes_its_workers_along(tmp_path, number):
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "script.py", "wait"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    with process:
        assert process.stdout
        assert process.stdout.readline() == "correct\n"
        pids = workers(process.pid)
        pids += [child for pid in pids for child in children(pid)]
        assert len(pids) == 2
        process.send_signal(number)
        process.wait(PATIENCE)
    wait_until(lambda: not any(map(_alive, pids)))


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_busy_machine_changes_no_verdict():
    """Ten processes that never rest, and a limit below what a comparison then takes on the clock of two processors.

    The limit follows from what the hardest comparison takes on this machine, however slow it is.
    """
    jobs = [Job(box(rf"{n}\sqrt{{3}}"), rf"\sqrt{{{3 * n * n + (n == 4)}}}") for n in range(2, 8)]
    jobs += [Job(box(r"\frac{x^2-1}{x-1}"), "x+1"), Job(box("x^2+2x+5=0"), "x^2-2x+5=0")]
    for _ in range(2):  # the first time takes the library's set-up along
        began = time.process_time()
        compare("x^2-2x+5=0", "x^2+2x+5=0", 0.0)
        limit = 3 * (time.process_time() - began)
    with Grader(workers=2, seconds=limit) as grader:
        idle = [graded.verdict for graded in grader.grade_all(jobs)]
    assert "grader_failed" not in idle
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(10)]
    try:
        with Grader(workers=2, seconds=limit) as grader:
            assert [graded.verdict for graded in grader.grade_all(jobs)] == idle
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_a_failure_is_tried_again_alone_with_twice_the_time(monkeypatch):
    asked: list[tuple[int, float]] = []
    with Grader(workers=2, seconds=0.2) as grader:
        side_by_side = grader._compare_side_by_side

        def recorded(pairs, seconds):
            asked.append((len(pairs), seconds))
            side_by_side(pairs, seconds)

        monkeypatch.setattr(grader, "_compare_side_by_side", recorded)
        graded = grader.grade_all([ENDLESS, HARD, ENDLESS])
    assert [g.verdict for g in graded] == ["grader_failed", "correct", "grader_failed"]
    assert asked[:2] == [(2, 0.2), (1, 0.4)]


def test_a_comparison_that_sleeps_is_given_up():
    with Grader(workers=1, seconds=0.3, function="time:sleep") as grader:
        job = Job("", "", problem=None)
        assert grader.grade(job).verdict == "grader_failed"
