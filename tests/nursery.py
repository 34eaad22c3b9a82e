"""Python processes that start at once: forks of one process that has imported what a training needs.

`Python("-m", "opasd.cli", "train", …)` is a process of its own with its own folder, environment, signals and exit code.
Its interface is that of `subprocess.Popen`. What a library reads from the environment at its import is as it was for
the first of them. A Python that such a process starts is a fork of that process, and its child as ever.
"""

import atexit
import gc
import io
import itertools
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from tests.processes import PATIENCE, environment

IMPORTED = ("opasd.cli.train", "opasd.cli.evaluate", "opasd.evaluation.loop", "opasd.trainer.session", "tests.training")
SHARED = "OPASD_TEST_NURSERY"
"""The environment variable with the address of the process that forks, where pytest's workers share one."""
LONGEST = 1 << 17
"""Bytes of a request, most of which is the environment."""


class Python:
    """A process that runs `python` with these words (-m, -c or a file). Its output is read from pipes."""

    def __init__(self, *words: str, cwd: Path | str = ".", env: Mapping[str, str] | None = None) -> None:
        request = {"words": words, "cwd": os.path.abspath(cwd), "env": dict(env or environment())}
        (own_in, stdin), (stdout, own_out), (stderr, own_err) = (os.pipe() for _ in range(3))
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "w"), os.fdopen(stdout), os.fdopen(stderr)
        self.returncode: int | None = None
        given = (own_in, own_out, own_err)
        self._connection = _connection(address(), request, given)
        for descriptor in given:
            os.close(descriptor)
        self.pid = int(self._connection.recv(64))

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = int(self._connection.recv(64))
        return self.returncode

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """Return what it writes until it ends."""
        texts = {stream: io.StringIO() for stream in (self.stdout, self.stderr) if not stream.closed}
        readers = [threading.Thread(target=lambda s, t: t.write(s.read()), args=pair) for pair in texts.items()]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return texts[self.stdout].getvalue(), texts[self.stderr].getvalue()

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        self.wait()
        self._connection.close()


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run such a process to its end and return its exit code and its output."""
    with Python(*words, **options) as process:
        output, errors = process.communicate()
    return subprocess.CompletedProcess(words, process.wait(), output, errors)


def run_together(count: int, *words: str, **values: str) -> list[subprocess.CompletedProcess[str]]:
    """Run so many processes of one training, as torchrun does; when one fails, the others are killed."""
    from torch.distributed import TCPStore

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "localhost"}
    shared |= {
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count))
    together = [Python(*words, env=environment(**shared, **rank, **values)) for rank in ranks]

    def finish(process: Python) -> subprocess.CompletedProcess[str]:
        with process:
            output, errors = process.communicate()
        if process.returncode:
            for other in together:
                other.kill()
        return subprocess.CompletedProcess(words, process.wait(), output, errors)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(finish, together))


def _connection(address: str, request: dict[str, Any], descriptors: Sequence[int]) -> socket.socket:
    """Ask for a process with these as its input, output and errors; its number and its exit code come back."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
    return connection


_started: list[tuple[subprocess.Popen[bytes], str]] = []


def address() -> str:
    """Return the address of the process that forks; start it first if there is none. It imports when it is asked."""
    if SHARED in os.environ:
        return os.environ[SHARED]
    if not _started:
        place = f"{tempfile.mkdtemp()}/socket"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(place)
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(listener.fileno())],
            stdin=subprocess.PIPE,
            env=environment(),
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        listener.close()
        _started.append((server, place))
    return _started[0][1]


def end() -> None:
    """End the process that forks, if there is one, and wait for it: its time is the suite's."""
    for server, place in _started:
        server.communicate()
        shutil.rmtree(os.path.dirname(place))
    _started.clear()


def _serve(listener: socket.socket) -> None:
    forks: set[int] = set()
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        forks -= {pid for pid in forks if os.waitpid(pid, os.WNOHANG)[0]}
        if listener not in ready:  # the tests have ended
            break
        connection, _ = listener.accept()
        for name in IMPORTED if IMPORTED[-1] not in sys.modules else ():
            __import__(name)
        gc.freeze()  # no fork looks through what was imported
        if (pid := os.fork()) == 0:
            listener.close()
            _raise_one(connection)
        forks.add(pid)
        connection.close()
    for pid in forks:
        os.waitpid(pid, 0)
    gc.unfreeze()


def _raise_one(connection: socket.socket) -> None:
    """Fork the process that was asked for, and tell its number and how it ended."""
    message, descriptors, _, _ = socket.recv_fds(connection, LONGEST, 3)
    if (pid := os.fork()) == 0:
        connection.close()
        _become(json.loads(message), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.send(str(pid).encode())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.send(str(status).encode())
    finally:
        os._exit(0)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be what `python WORDS` is after its imports."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    how, *rest = request["words"]
    what = rest.pop(0) if how in ("-m", "-c") else how
    sys.argv = [how, *rest]
    first = {"-m": os.getcwd(), "-c": ""}.get(how, os.path.dirname(how))
    sys.path[:0] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    code = 1
    try:
        if find_spec("sitecustomize"):
            import_module("sitecustomize")
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        elif how == "-c":
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(what, run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def _execute_child(self: Any, args: Any, *options: Any) -> None:
    """Start what `Popen` was asked for: a Python by a fork, anything else as ever."""
    before, _, kept, cwd, env, _, _, shell, stdin, _, _, stdout, _, stderr = options[1:15]
    new_session = options[20]
    if shell or isinstance(args, str) or args[0] != sys.executable:
        return _execute(self, args, *options)
    self.pid = os.fork()
    if self.pid:
        self._child_created = True
        self._close_pipe_fds(*options[9:15])
        return None
    try:
        for number, descriptor in enumerate((stdin, stdout, stderr)):
            os.dup2(number if descriptor == -1 else descriptor, number)
        for low, high in itertools.pairwise([2, *sorted(kept), os.sysconf("SC_OPEN_MAX")]):
            os.closerange(low + 1, high)
        if new_session:
            os.setsid()
        if before is not None:
            before()
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        atexit._clear()  # what the parent does at its end
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
        words = list(itertools.dropwhile(lambda word: word in ("-u", "-P"), map(os.fspath, args[1:])))
        _become({"words": words, "cwd": cwd or os.getcwd(), "env": dict(env or os.environ)}, [])
    finally:
        os._exit(1)


def _stand_for(address: str, *words: str) -> int:
    """Be `python WORDS` for a shell: ask for it, with this process's input and output, and return its exit code."""
    connection = _connection(address, {"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}, range(3))
    connection.recv(64)
    code = int(connection.recv(64))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if sys.argv[2:]:
        sys.exit(_stand_for(*sys.argv[1:]))
    _serve(socket.socket(fileno=int(sys.argv[1])))
