"""The command line. A command is a module of this package whose name has no underscore in front.

Its docstring's first line is its line in `opasd --help`, and `run(args) -> int` does the work and returns the exit
code. Heavy imports stand inside functions, so that every `--help` is fast.
"""

import difflib
import errno
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib import metadata

from opasd.errors import ConfigError, OpasdError

USER_MISTAKE, INTERRUPTED, BROKEN_PIPE, STOPPED = 2, 130, 141, 75
EXIT_CODES = """\
Exit codes: 0 finished; 2 a mistake in what was given, explained in one message; 75 stopped by a signal with a
checkpoint saved (continue with `opasd train --resume FOLDER`); 1 a bug in opasd. `--debug` or OPASD_DEBUG=1 shows
the traceback of a mistake."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; a user's mistake is a message, not a traceback."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args or os.environ.get("OPASD_DEBUG", "") not in ("", "0")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        code = _dispatch([word for word in args if word != "--debug"])
        sys.stdout.flush()
    except OpasdError as error:
        if debug:
            raise
        code = _fail(str(error))
    except ModuleNotFoundError as error:
        missing = (error.name or "opasd").split(".")[0]
        if debug or missing == "opasd":
            raise
        code = _fail(f'the package "{missing}" is not installed; install it, or opasd again with all that it needs')
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit would fail too
        code = BROKEN_PIPE
    except OSError as error:
        if debug or error.filename is None or error.errno not in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
            raise
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
        shown = name if len(name) <= 200 else f"{name[:200]}…"
        code = _fail(
            f"{shown} cannot be read or written ({error.strerror}); give another path, or the right to this one"
        )
    except ValueError as error:
        # Only pydantic's own error is a user's mistake; importing pydantic here would slow `opasd --help` down.
        if debug or type(error).__name__ != "ValidationError" or "pydantic" not in sys.modules:
            raise
        from pydantic import ValidationError

        from opasd.recipes.checking import explain

        if not isinstance(error, ValidationError):
            raise
        code = _fail("the configuration is wrong:\n" + "\n".join(f"  {line}" for line in explain(error)))
    if "OPASD_MEETING" in os.environ:
        from opasd.cli._processes import report_exit

        report_exit(code)
    return code


def _dispatch(args: list[str]) -> int:
    commands = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    if not args or args[0] in ("-h", "--help", "help"):
        _print_help(commands)
        return 0 if args else USER_MISTAKE
    name, rest = args[0], args[1:]
    if name == "--version":
        sys.stdout.write(f"opasd {metadata.version('opasd')}\n")
        return 0
    if name not in commands:
        close = difflib.get_close_matches(name, commands, 1, 0.5)
        hint = f"did you mean {close[0]}?" if close else "see opasd --help."
        raise ConfigError(f'no command "{name[:60]}"; {hint} The commands are {", ".join(commands)}')
    return importlib.import_module(f"opasd.cli.{name}").run(rest)


def _print_help(commands: list[str]) -> None:
    lines = ["usage: opasd COMMAND ...", "", "On-policy attention self-distillation.", "", "commands:"]
    for name in commands:
        about = (importlib.import_module(f"opasd.cli.{name}").__doc__ or "").strip().splitlines()[0]
        lines.append(f"  {name:<10} {about}")
    lines += [
        "",
        "opasd COMMAND --help tells more. First steps: opasd validate lab, then opasd train lab.",
        "",
        EXIT_CODES,
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _fail(message: str) -> int:
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.flush()
        sys.stderr.write(f"error: {message}\n")
    return USER_MISTAKE
