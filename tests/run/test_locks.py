"""A folder is held by one process, until it ends in any way."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opasd.errors import ConfigError
from opasd.run.locks import hold, in_use


def test_the_lock_is_held_by_one_and_falls_with_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from opasd.run.locks import hold\n"
        "with hold(Path(sys.argv[1]), 'run'): print('held', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], text=True, **pipes) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        assert in_use(tmp_path)
        with pytest.raises(ConfigError, match=rf"in use by a live process \(pid {holder.pid}\)"), hold(tmp_path, "run"):
            pass
        os.kill(holder.pid, signal.SIGKILL)
    assert not in_use(tmp_path)
    with hold(tmp_path, "run"):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
