"""Runs of a sweep in processes of their own, some at a time; what is done is skipped, what was cut short goes on.

A sweep's folder:

    NAME/               the run, as `opasd train` makes it
    NAME.evaluation/    its evaluation, as `opasd evaluate` makes it
    logs/NAME.log       what both printed
    state/NAME.json     how each ended: a mistake (exit code 2) is told again, not made again
    tables/             results.csv, .md, .tex, .json
"""

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from opasd.config import RunConfig
from opasd.errors import ConfigError
from opasd.progress import StatusLine, clock
from opasd.recipes.fields import differing_fields, value_of
from opasd.run.folder import RunFolder, with_absolute_paths
from opasd.run.locks import in_use
from opasd.sweep.commands import Commands
from opasd.sweep.logs import beside_strangers, last_words, tail
from opasd.sweep.machine import Machine
from opasd.sweep.spec import EVALUATION, OURS, Planned

Stage = Literal["train", "evaluate"]
MISTAKE, STOPPED = 2, 75
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1


class Place:
    """One run in a sweep's folder: what of it is there."""

    def __init__(self, run: Planned, folder: Path, processes: int = 1) -> None:
        self.run = run
        self.path = folder / run.name
        self.evaluation = folder / f"{run.name}{EVALUATION}"
        self.log = folder / "logs" / f"{run.name}.log"
        self.commands = Commands.of(run, folder, processes)
        self._state = folder / "state" / f"{run.name}.json"

    def begun(self) -> bool:
        return (self.path / "config.yaml").is_file()

    def trained(self) -> bool:
        """The card is the last thing a run writes."""
        return self.run.evaluate_only or (self.path / "final" / "README.md").is_file()

    def evaluated(self) -> bool:
        """By the sweep, or as it would by someone else."""
        if self.run.evaluate is None:
            return True
        if noted := self.state().get("evaluate"):
            return noted.get("code") == 0 and "results" in self.results()
        return self._differing_settings() == []

    def results(self) -> dict[str, Any]:
        """What the evaluation wrote; nothing where it cannot be read."""
        return _read_json(self.evaluation / "evaluation.json")

    def _differing_settings(self) -> list[str] | None:
        """Name the settings that a whole evaluation does not share with the sweep; None where there is none."""
        settings, results = _read_json(self.evaluation / "settings.json"), self.results().get("results")
        if not settings or not isinstance(results, list) or not results or self.run.evaluate is None:
            return None
        from opasd.evaluation.comparability import differences_from_request

        config, path = self.run.config, None if self.run.evaluate_only else self.path
        return differences_from_request(
            settings, self.run.evaluate, config.model, config.prompts.template_options, path
        )

    def next(self) -> Stage | None:
        """What is to be done; None when all is."""
        return "train" if not self.trained() else "evaluate" if not self.evaluated() else None

    def command(self, stage: Stage) -> list[str]:
        """The arguments of `opasd`, to begin or to go on."""
        train = self.commands.resume if self.begun() else self.commands.train
        found = self.commands.evaluate if stage == "evaluate" else train
        assert found is not None
        return found

    def busy(self) -> bool:
        """Whether another process works on it, such as one that outlives a killed sweep for a moment."""
        return any(in_use(path) for path in (self.path, self.evaluation))

    def mistake(self) -> str | None:
        """What was wrong when the next thing to do was tried before as it is now; None when it may be tried."""
        stage = self.next()
        found = self.state().get(stage or "", {})
        same = stage is not None and found.get("settings") == self._settings(stage)
        return str(found.get("message", "")) if found.get("code") == MISTAKE and same else None

    def _settings(self, stage: Stage) -> str:
        """What the stage depends on, in short; not where it is written."""
        content = self.run.config.model_dump_json(exclude={"name", "output_dir"})
        if stage == "evaluate":
            content = f"{self.run.untrained() if self.run.evaluate_only else ''} {self.run.evaluate}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def state(self) -> dict[str, dict[str, Any]]:
        """How each stage ended."""
        return {stage: entry for stage, entry in _read_json(self._state).items() if isinstance(entry, dict)}

    def note(self, stage: Stage, code: int, seconds: float, message: str) -> None:
        """Record how a stage ended."""
        command = self.commands.evaluate if stage == "evaluate" else self.commands.train
        entry = {"code": code, "seconds": round(seconds, 1), "message": message}
        self._write(self.state() | {stage: entry | {"settings": self._settings(stage), "command": command}})

    def forget(self) -> None:
        """Let a mistake be tried again."""
        self._write({stage: entry for stage, entry in self.state().items() if entry.get("code") == 0})

    def _write(self, state: dict[str, Any]) -> None:
        self._state.parent.mkdir(parents=True, exist_ok=True)
        staged = self._state.with_name(f".{self._state.name}.part")
        staged.write_text(json.dumps(state, indent=1), encoding="utf-8")
        staged.replace(self._state)

    def found_in(self, folder: Path) -> "tuple[Path | None, Place | None]":
        """What another sweep's folder has of this very run and this does not: the run, and whose evaluation it is."""
        run = None
        if not self.run.evaluate_only and not self.path.exists():
            wanted = with_absolute_paths(self.run.config)
            finished = (path.parents[1] for path in sorted(folder.glob("*/final/README.md")))
            whole = (path for path in finished if (path / "config.yaml").is_file())
            run = next((path for path in whole if not differing(RunFolder.open(path).config, wanted)), None)
        if self.evaluation.exists() or not (run or self.trained()):
            return run, None
        for state in sorted((folder / "state").glob("*.json")):
            other = Place(replace(self.run, name=state.stem), folder)
            same = other.state().get("evaluate", {}).get("settings") == self._settings("evaluate")
            mine = self.run.evaluate_only or other.path.resolve() == (run or self.path).resolve()
            if same and mine and other.evaluated():
                return run, other
        return run, None

    def reuse(self, folder: Path) -> list[str]:
        """Link what another sweep's folder has of this very run instead of making it again: what was linked."""
        run, other = self.found_in(folder)
        if run:
            self.path.symlink_to(run.resolve())
        if other:
            self.evaluation.symlink_to(other.evaluation.resolve())
            self._write(self.state() | {"evaluate": other.state()["evaluate"]})
        return [str(path) for path in (run, other and other.evaluation) if path]

    def check(self) -> None:
        """Refuse a folder that was made with other settings."""
        for path in (self.path, self.evaluation):
            if path.is_symlink() and not path.exists():
                raise ConfigError(f"{path} is a link to {path.readlink()}, which is no longer there; remove the link")
        if self.begun() and not self.run.evaluate_only:
            there = RunFolder.open(self.path).config
            if changed := differing(there, with_absolute_paths(self.run.config)):
                told = ", ".join(f"{name} {value_of(there, name)!r:.40}" for name in changed[:5])
                raise ConfigError(
                    f"{self.path} was made with other settings ({told}); give the same ones, or another --output"
                )
        elif self.path.exists():
            raise ConfigError(f"{self.path} exists and is no run; give another --output")
        elif any(self.evaluation.glob("*.json")) and not self.run.evaluate_only:
            raise ConfigError(
                f"{self.evaluation} is of a run that is no longer there; remove it too, or give another --output"
            )
        if self.run.evaluate is None or not self.evaluation.exists():
            return
        noted, told = self.state().get("evaluate"), ""
        if noted is None and (changed := self._differing_settings()):
            told = f" ({', '.join(changed)})"
        if told or (noted and noted.get("settings", self._settings("evaluate")) != self._settings("evaluate")):
            raise ConfigError(
                f"{self.evaluation} was made with other settings{told}; give the same ones or another --output"
            )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def differing(first: RunConfig, second: RunConfig) -> list[str]:
    """The fields in which two configurations differ, apart from where the run lies."""
    return [name for name in differing_fields(first, second) if name not in OURS]


@dataclass
class Active:
    """A stage under way."""

    place: Place
    stage: Stage
    slot: int
    process: "subprocess.Popen[bytes]"
    log_start: int
    alone: bool = False  # nothing else may use its GPUs
    beside: int = 0  # how many others have used one of its GPUs at the same time
    began: float = field(default_factory=time.monotonic)


class Sweeping:
    """Works through places; `failed` has exit code and message of what did not end well, by name."""

    def __init__(self, places: Sequence[Place], machine: Machine, say: Callable[[str], None]) -> None:
        self.waiting = list(places)
        self.machine = machine
        self.active: list[Active] = []
        self.failed: dict[str, tuple[int, str]] = {}
        self.done = 0
        self.total = len(places)
        self.stopping = False
        self._busy: set[str] = set()
        self._alone: set[str] = set()
        self._say = say
        self._line = StatusLine(terminal_every=1, log_every=60)

    def run(self) -> None:
        """Until all is done, or a signal came."""
        self._skip()
        with self._signals():
            while (self.waiting and not self.stopping) or self.active:
                self._start()
                for one in [one for one in self.active if one.process.poll() is not None]:
                    self._end(one)
                if self._line.due():
                    self._line.show(self._status())
                time.sleep(_POLL_S)
        self._line.clear()

    def _tell(self, text: str) -> None:
        self._line.clear()
        self._say(text)

    def _skip(self) -> None:
        for place in list(self.waiting):
            if place.next() is None:
                self.done += 1
                self._tell(f"{place.run.name}: done before")
                self.waiting.remove(place)
            elif (message := place.mistake()) is not None:
                self.failed[place.run.name] = (MISTAKE, message)
                self._tell(f"{place.run.name}: failed before and is not tried again without --retry: {message}")
                self.waiting.remove(place)

    def _start(self) -> None:
        for place in list(self.waiting):
            alone = place.run.name in self._alone
            slot = self._free_slot(alone=alone)
            if self.stopping or slot is None:
                continue
            if place.busy():
                if place.run.name not in self._busy:
                    self._busy.add(place.run.name)
                    self._tell(f"{place.run.name}: another process works on it; waiting")
                continue
            self.waiting.remove(place)
            if (stage := place.next()) is not None:
                self._launch(place, stage, slot, alone=alone)
            else:
                self.done += 1

    def _free_slot(self, *, alone: bool) -> int | None:
        """One whose GPUs nobody uses, for a run that has to be alone; for others, one beside no such run."""
        for slot in sorted(set(range(self.machine.jobs)) - {one.slot for one in self.active}):
            sharing = (one for one in self.active if self.machine.shared(one.slot, slot))
            if not any(alone or one.alone for one in sharing):
                return slot
        return None

    def _launch(self, place: Place, stage: Stage, slot: int, *, alone: bool) -> None:
        command = place.command(stage)
        place.log.parent.mkdir(parents=True, exist_ok=True)
        with place.log.open("ab") as log:
            start = log.tell()
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} $ opasd {' '.join(command)}\n".encode(errors="replace"))
            log.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", "opasd.cli", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.machine.environment(slot),
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which hands it on once
                preexec_fn=_die_with_parent(),
            )
        going_on = "--resume" in command
        self._tell(f"{place.run.name}: {'going on with training' if going_on else _DOING[stage]}")
        self.active.append(Active(place, stage, slot, process, start, alone))
        for one in self.active:
            users = sum(self.machine.shared(one.slot, other.slot) for other in self.active)
            one.beside = max(one.beside, users - 1)
        if self.stopping:  # the signal came while the process was being made
            process.terminate()

    def _end(self, one: Active) -> None:
        self.active.remove(one)
        place, code = one.place, one.process.returncode
        seconds = time.monotonic() - one.began
        name = place.run.name
        if code == 0 and (one.stage == "evaluate" or place.trained()):
            place.note(one.stage, 0, seconds, "")
            self._tell(f"{name}: {_DONE[one.stage]} in {clock(seconds)}")
            following = place.next()
            if following is None:
                self.done += 1
            elif self.stopping:
                self.waiting.insert(0, place)
            else:
                self._launch(place, following, one.slot, alone=one.alone)
            return
        if self.stopping:
            self._tell(f"{name}: stopped")
            self.waiting.insert(0, place)
            return
        message, short_of_memory = last_words(place.log, one.log_start)
        if code != 0 and short_of_memory and not one.alone and (one.beside or beside_strangers(message)):
            # Not noted: nothing is known yet of how it ends.
            self._alone.add(name)
            self.waiting.append(place)
            others = f"{one.beside} others" if one.beside > 1 else "another run"
            self._tell(
                f"{name}: out of GPU memory beside {others}; tried again alone when they are done "
                "(fewer --jobs avoid this)"
                if one.beside
                else f"{name}: out of GPU memory beside processes of others; tried again at the end"
            )
            return
        place.note(one.stage, code, seconds, message)
        self.failed[name] = (code, message)
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._tell(f"{name}: failed ({how}): {message}\n  {place.log}")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and the first Ctrl-C let every run save and end; the second Ctrl-C kills them."""

        def request(number: int, _frame: FrameType | None) -> None:
            final = self.stopping and number == signal.SIGINT
            self.stopping = True
            for one in self.active:
                if one.process.poll() is None and final:
                    os.killpg(one.process.pid, signal.SIGKILL)
                elif one.process.poll() is None:
                    one.process.terminate()

        previous = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _status(self) -> str:
        parts = [f"{self.done} of {self.total} done"]
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        later = sum(place.run.name in self._alone for place in self.waiting)
        parts += [f"{later} to be tried again alone"] if later else []
        parts += ["stopping"] if self.stopping else []
        parts += [f"{one.place.run.name} {_progress(one)}" for one in self.active]
        return "  ".join(parts)


_DOING: dict[Stage, str] = {"train": "training", "evaluate": "evaluating"}
_DONE: dict[Stage, str] = {"train": "trained", "evaluate": "evaluated"}


def _progress(one: Active) -> str:
    if one.stage == "evaluate":
        return f"evaluating {clock(time.monotonic() - one.began)}"
    last = tail(one.place.path / "metrics.jsonl").rstrip().rpartition(b"\n")[2]
    try:
        step = json.loads(last)["step"]
    except (ValueError, KeyError, TypeError):
        step = 0
    return f"step {step}/{one.place.run.config.train.max_steps}"


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux a killed sweep takes its runs with it: they get SIGTERM, save and end."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(STOPPED)

    return prepare
