"""The command line in this process, without the seconds that a process of its own needs to start."""

import io
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from opasd.cli import main


def opasd(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder and with an environment; return its exit code and its output."""
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        patch.chdir(folder)
        wanted = dict(os.environ) if env is None else env
        for name in os.environ.keys() - wanted.keys():
            patch.delenv(name)
        for name, value in wanted.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["opasd", *words])
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code
        except Exception:  # a bug, which ends a process with its traceback and 1
            code = 1
            traceback.print_exc()
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())
