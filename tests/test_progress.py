"""Progress: plain lines in a log, one redrawn line on a terminal."""

import io
import time
from types import SimpleNamespace

import pytest

from opasd.progress import SampleProgress, StatusLine, clock, fitted, with_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def seconds(monkeypatch) -> dict[str, float]:
    """A clock that the test moves."""
    seconds = {"now": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: seconds["now"])
    return seconds


@pytest.fixture(params=[io.StringIO, Terminal], ids=["log", "terminal"])
def stream(request, monkeypatch) -> io.StringIO:
    stream = request.param()
    monkeypatch.setattr("opasd.progress.sys", SimpleNamespace(stderr=stream))  # pytest replaces sys.stderr for the call
    monkeypatch.setenv("COLUMNS", "60")
    return stream


def test_a_long_loop_shows_how_far_it_is(stream, seconds):
    taken = []
    for item in with_progress("rows", range(40)):
        taken.append(item)
        seconds["now"] += 0.5
    assert taken == list(range(40))
    text = stream.getvalue()
    if stream.isatty():
        shown = text.removesuffix("\r\x1b[K").split("\r\x1b[K")[1:]
        assert (shown[0], len(shown)) == ("rows: 10 of 40", 30)
    else:
        assert text == "rows: 10 of 40\n"


def test_a_quick_loop_shows_nothing(capsys):
    assert list(with_progress("rows", "abc")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


def test_lines_are_due_after_their_interval(stream, seconds):
    line, every = StatusLine(terminal_every=1, log_every=60), 1 if stream.isatty() else 60
    due = []
    for tick in range(130):
        seconds["now"] = float(tick)
        due += [tick] if line.due() else []
    assert due == list(range(every, 130, every))


def test_what_is_said_stays(stream):
    line = StatusLine()
    line.show("1 of 2")
    line.say("first done")
    line.show("2 of 2" + " " * 100)
    line.end()
    line.end()
    lines = ["first done", f"\r\x1b[K{'2 of 2':59}"] if stream.isatty() else ["1 of 2", "first done", f"{'2 of 2':106}"]
    assert stream.getvalue().removeprefix("\r\x1b[K1 of 2\r\x1b[K") == "".join(f"{text}\n" for text in lines)


def test_samples_speed_and_time_left(stream, seconds):
    progress = SampleProgress()
    progress.begin(10, 2)
    progress.advance("aime base", 2, 300, 3.0)
    progress.advance("aime base", 2, 300, 3.0)
    progress.advance("aime base", 4, 600, 6.0)
    progress.end()
    last = "████████████████████ 10/10  100 tokens/s  left 0:00  aime base"
    text = stream.getvalue()
    assert text.startswith("2 of 10 samples are there already\n")
    assert text.count("left 0:09") == 1
    assert text.count("left 0:06") == stream.isatty()
    assert text.endswith(f"{last[:59]}\n" if stream.isatty() else f"{last}\n")


def test_a_process_that_draws_more_than_its_share_is_not_beyond_the_end(seconds, stream):
    progress = SampleProgress()
    progress.begin(4, 0)
    progress.advance("lab", 8, 80, 1.0)
    progress.end()
    assert stream.getvalue().endswith(f"{'█' * 20} 8/8  80 tokens/s  left 0:00  lab\n")


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0:00"), (65, "1:05"), (3599, "59:59"), (3600, "1:00:00")])
def test_clock(seconds, text):
    assert clock(seconds) == text


PARTS = [
    ("step 100/200", 0), ("loss 0.1234", 0), ("token 0.1234", 2), ("attention 0.1234", 3), ("ρ 0.4321", 4),
    ("length 8192", 1), ("accuracy 0.50", 0), ("left 12:34:56", 0),
]  # fmt: skip


def test_a_narrow_terminal_keeps_what_matters_most(stream):
    StatusLine().show_parts(PARTS)
    shown = stream.getvalue().removeprefix("\r\x1b[K")
    for part in ("step 100/200", "loss 0.1234", "accuracy 0.50", "left 12:34:56"):
        assert part in shown
    assert ("ρ 0.4321" in shown) != stream.isatty()


def test_parts_leave_in_their_order():
    whole = [text for text, _ in PARTS]
    assert fitted(PARTS, None) == fitted(PARTS, 200) == whole
    eighty = fitted(PARTS, 79)
    assert [text for text in whole if text not in eighty] == ["token 0.1234", "attention 0.1234", "ρ 0.4321"]
    assert len("  ".join(eighty)) <= 79
    assert fitted(PARTS, 5) == [text for text, rank in PARTS if rank == 0]
