"""The parser of every command: one width, one set of colours, and the nearest flags for a mistyped one."""

import argparse
import difflib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from opasd.errors import ConfigError

WIDEST = 100
_BOLD, _FLAG, _DIM, _END = "\033[1m", "\033[36m", "\033[2m", "\033[0m"
_NEAR = 0.62
"""Likeness from which a flag is suggested."""


def page_width() -> int:
    """Return the columns of a page: the terminal's, but not more than are easily read."""
    return max(40, min(shutil.get_terminal_size().columns, WIDEST))


def coloured(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that wants colours."""
    if "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def painted(page: str) -> str:
    """Return a page with headings, flags and defaults in colour."""
    page = re.sub(r"(?m)^(\w[^\n]{0,60}:)$|^(usage:)", lambda found: f"{_BOLD}{found[0]}{_END}", page)
    page = re.sub(r"(?<![\w./-])--?[a-zA-Z][\w.-]*(?<!\.)", lambda found: f"{_FLAG}{found[0]}{_END}", page)
    return re.sub(r"\(default: [^)]*\)", lambda found: f"{_DIM}{found[0]}{_END}", page)


def listed(name: str, text: str, column: int) -> str:
    """Return a row of a list: a name and its text, wrapped on a terminal beside a column of names of this width."""
    width = max(20, page_width() - column - 4) if sys.stdout.isatty() else sys.maxsize
    lines = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    rows = [f"  {name:<{column}}  {lines[0]}", *(f"  {'':<{column}}  {line}" for line in lines[1:])]
    return "".join(f"{row.rstrip()}\n" for row in rows)


def nearest(flag: str, flags: Iterable[str]) -> list[str]:
    """Return the three flags most like a mistyped one, in whole or in the part behind the last dot, best first."""
    name = flag.lstrip("-").lower().replace("_", "-")

    def likeness(other: str) -> float:
        whole = other.lstrip("-").lower()
        last = whole.rpartition(".")[2]
        ratio = max(difflib.SequenceMatcher(None, name, text).ratio() for text in (whole, last))
        contained = (len(name) > 3 and name in whole) or (len(last) > 3 and last in name)
        return max(ratio, 0.7 if contained else 0)

    near = sorted(((likeness(other), other) for other in dict.fromkeys(flags)), key=lambda pair: -pair[0])
    return [other for likeness, other in near[:3] if likeness >= max(_NEAR, near[0][0] - 0.2)]


class Parser(argparse.ArgumentParser):
    """argparse with this package's help and messages. Flags are not abbreviated, and may stand anywhere."""

    def __init__(self, command: str, about: str | None, *, usage: str | None = None, more: str = "") -> None:
        super().__init__(
            f"opasd {command}",
            usage=usage,
            description=about,
            epilog=more or None,
            formatter_class=_Layout,
            allow_abbrev=False,
            add_help=False,
        )
        self.color = False  # argparse's own, from Python 3.14 on
        self._positionals.title = "what"
        self.add_argument("-h", "--help", action="help", help="Show this page.")

    def parse_known_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        for word in args:
            flag, equals, value = word.partition("=")
            if equals and value == "--" and flag.startswith("--"):  # argparse would take it for no value at all
                self.error(f"{flag[:60]}: expected a value, got --")
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        options, unknown = self.parse_known_intermixed_args(list(args), namespace)
        self.refuse(unknown)
        return options

    def refuse(self, unknown: Sequence[str]) -> None:
        """Raise an error for arguments that the command does not have."""
        for word in unknown:
            flag = word.partition("=")[0]
            if flag.startswith("-") and flag.strip("-"):
                near = " or ".join(self.described(other) for other in nearest(flag, self.flags()))
                hint = f"did you mean {near}?" if near else f"`{self.prog} --help` lists the flags"
                raise ConfigError(f"{self.prog} has no flag {flag[:60]}; {hint}")
        if unknown:
            raise ConfigError(f"{self.prog}: {unknown[0][:60]!r} is one argument too many; see `{self.prog} --help`")

    def flags(self) -> list[str]:
        """Return every flag of the command."""
        return [flag for action in self._actions for flag in action.option_strings]

    def described(self, flag: str) -> str:
        """Return a flag as a message suggests it."""
        return flag

    def error(self, message: str) -> Any:
        raise ConfigError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")

    def format_help(self) -> str:
        page = super().format_help()
        return painted(page) if coloured(sys.stdout) else page


class _Layout(argparse.HelpFormatter):
    """Paragraphs at the width of the page; lines that are indented stay as they are."""

    def __init__(self, prog: str, **_: Any) -> None:  # later versions of Python pass colours
        super().__init__(prog, max_help_position=26, width=page_width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = (part.strip("\n") for part in text.strip().split("\n\n"))
        return "\n\n".join(
            part if "\n  " in f"\n{part}" else textwrap.fill(" ".join(part.split()), width, break_on_hyphens=False)
            for part in paragraphs
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)
