"""The command line. A command is a module of this package whose name has no underscore in front.

The first line of its docstring is its line in `opasd --help`, and `run(args) -> int` does the work and returns the exit
code. Heavy imports are inside functions, so that every `--help` is fast.
"""

import errno
import importlib
import os
import pkgutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

from opasd.cli._output import tamed
from opasd.errors import ConfigError, OpasdError, closest, without_secrets

USER_MISTAKE, INTERRUPTED, BROKEN_PIPE, STOPPED = 2, 130, 141, 75
SHORT_EXIT_CODES = """\
Exit codes: 0 finished; 2 a mistake, explained in one message; 75 stopped by a signal with a checkpoint saved (continue
with `opasd train --resume FOLDER`); 1 a bug."""
EXIT_CODES = f"{SHORT_EXIT_CODES} `--debug` or OPASD_DEBUG=1 shows the traceback of a mistake."
FIRST_STEPS = """\
First steps: `opasd demo --quick`, then `opasd validate lab` and `opasd train lab`. `opasd COMMAND --help` says more,
`opasd --version` names the version, and `opasd --print-completion bash` (or zsh, fish) lets a shell complete commands,
recipes and flags."""
ORDER = {
    "first": ("demo", "env", "recipes"),
    "before a run": ("validate", "plan", "prompt", "probe"),
    "runs": ("train", "sweep"),
    "results": ("evaluate", "leaderboard", "regrade", "report", "attend", "merge"),
}
"""The commands as `opasd --help` lists them; those that are not named here come last."""


LOST = "the connection to another process was lost"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; a user's mistake is a message, not a traceback."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args or os.environ.get("OPASD_DEBUG", "") not in ("", "0")
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us; a file that is opened later must not take its place
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    with tamed(), _interrupted_by_signals():
        try:
            try:
                code = _command([word for word in args if word != "--debug"])()
            except SystemExit as stop:  # argparse has shown a help page
                code = int(stop.code or 0)
            sys.stdout.flush()
        except (KeyboardInterrupt, Exception) as error:
            code = _exit_code(error, debug=debug)
            if code is None:
                raise
    if "OPASD_MEETING" in os.environ:
        from opasd.cli._processes import report_exit

        report_exit(code)
    return code


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, so that it cleans up; `train` and `sweep` do more."""
    numbers = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(128 + number)

    previous = {
        number: signal.signal(number, interrupt) for number in numbers if signal.getsignal(number) == signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _exit_code(error: BaseException, *, debug: bool) -> int | None:
    """Say what ended a command, and return its exit code; None for what needs a traceback."""
    if isinstance(error, KeyboardInterrupt):
        return error.args[0] if error.args else INTERRUPTED
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit would fail too
        return BROKEN_PIPE
    assert isinstance(error, Exception)
    if debug or (message := _message(error)) is None:
        return None
    _show_error(message)
    return USER_MISTAKE


def _show_error(message: str) -> None:
    """Print the error; one of several processes leaves it for the launcher, which prints what they do not share."""
    from opasd.cli._processes import Processes, leave_error

    rank, message = Processes.current().rank, without_secrets(message)
    if leave_error(rank, message) and (rank or message == LOST):
        return
    sys.stdout.flush()
    from opasd.cli._parser import coloured

    label = "\033[1;31merror:\033[0m" if coloured(sys.stderr) else "error:"
    sys.stderr.write(f"{label} {f'process {rank}: ' if rank else ''}{message}\n")


def _command(args: list[str]) -> Callable[[], int]:
    """Return the command that the first word names, with the other words; `main` calls it."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    name = args[0] if args else ""
    if name == "help" and len(args) > 1:
        args, name = [args[1], "--help"], args[1]
    if name in ("", "-h", "--help", "help"):
        return partial(_print, _help(names), exit_code=0 if args else USER_MISTAKE)
    if name == "--version":
        from opasd.run.environment import own_version

        return partial(_print, f"opasd {own_version()}\n", exit_code=0)
    if name in ("--print-completion", "--complete"):
        from opasd.cli import _completion

        return partial(_completion.run, name, args[1:], names)
    if name not in names:
        hint = closest(name, names, 0.5) or "see opasd --help."
        raise ConfigError(f'no command "{name[:60]}"; {hint} The commands are {", ".join(names)}')
    return partial(importlib.import_module(f"opasd.cli.{name}").run, args[1:])


def _print(text: str, *, exit_code: int) -> int:
    sys.stdout.write(text)
    return exit_code


def _help(commands: list[str]) -> str:
    from opasd.cli._parser import coloured, listed, page_width, painted

    others = sorted(set(commands) - {name for names in ORDER.values() for name in names})
    page = "usage: opasd COMMAND [options]\n\nOn-policy attention self-distillation.\n"
    for heading, names in (*ORDER.items(), ("more", others)):
        page += f"\n{heading}:\n"
        for name in names:
            about = (importlib.import_module(f"opasd.cli.{name}").__doc__ or "").strip().splitlines()[0]
            page += listed(name, about, 11)
    for text in (FIRST_STEPS, EXIT_CODES):
        page += f"\n{textwrap.fill(' '.join(text.split()), page_width(), break_on_hyphens=False)}\n"
    return painted(page) if coloured(sys.stdout) else page


def _message(error: Exception) -> str | None:
    """Return what the user did wrong, or None for an error of ours."""
    if isinstance(error, OpasdError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "opasd").split(".")[0]
        if missing != "opasd":
            return f'the package "{missing}" is not installed; install it, or opasd again with all that it needs'
    if os.environ.get("WORLD_SIZE", "1") != "1" and type(error).__module__.startswith(("torch", "builtins")):
        from opasd.cli._processes import lost_connection

        if lost_connection(error):
            return LOST
    if isinstance(error, RuntimeError) and str(error) == "Could not determine home directory.":
        return "a path begins with ~ and the name of a user who is not known here; give the whole path"
    if str(error) == "embedded null byte" or (isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason):
        return "a path has a character that no file's name can have; give another path"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error):
        return "the machine's memory is too small for this; `opasd plan` says how much a run needs"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT):
        where = "standard output" if error.filename is None else str(error.filename)[:200]
        return f"{where} could not be written ({error.strerror}); free some space, or write elsewhere"
    if isinstance(error, OSError) and error.filename is not None:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
        if error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            name = name if len(name) <= 200 else f"{name[:200]}…"
            return f"{name} cannot be read or written ({error.strerror}); give another path, or the right to this one"
    # Importing pydantic for every error would slow `opasd --help` down.
    if type(error).__name__ == "ValidationError" and "pydantic" in sys.modules:
        from pydantic import ValidationError

        from opasd.recipes.checking import explain

        if isinstance(error, ValidationError):
            return "the configuration is wrong:\n" + "\n".join(f"  {line}" for line in explain(error))
    return None
