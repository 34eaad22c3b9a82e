"""One run in a sweep's folder: what exists, what is left to do, and how earlier attempts ended.

NAME/               the run, as `opasd train` makes it
NAME.evaluation/    its evaluation, as `opasd evaluate` makes it
logs/NAME.log       the output of both
state/NAME.json     how each ended: after a mistake (exit code 2) the same settings are not tried again
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from opasd.config import RunConfig
from opasd.errors import ConfigError
from opasd.evaluation.comparability import differences_from_request
from opasd.files import read_object, write_json
from opasd.recipes.evaluate import template_option
from opasd.recipes.fields import differing_fields, to_flags, value_of
from opasd.run.folder import RunFolder, with_absolute_paths
from opasd.run.locks import in_use
from opasd.run.manifest import is_finished
from opasd.sweep.spec import EVALUATION, OWN_FIELDS, SweepRun

Stage = Literal["train", "evaluate"]
MISTAKE, STOPPED = 2, 75
TRUST = "model.trust_remote_code"
"""A run's folder never says it."""


class Job:
    """One run in a sweep's folder."""

    def __init__(self, run: SweepRun, folder: Path, processes: int = 1, sources: Sequence[Path] = ()) -> None:
        """`sources` are other sweeps' folders whose samples may be taken over."""
        self.run, self.sources = run, sources
        self.folder = folder
        self.processes = processes
        self.path = folder / run.name
        self.evaluation = folder / f"{run.name}{EVALUATION}"
        self.log = folder / "logs" / f"{run.name}.log"
        self._state = folder / "state" / f"{run.name}.json"

    def begun(self) -> bool:
        return (self.path / "config.yaml").is_file()

    def trained(self) -> bool:
        """Return whether there is nothing left to train."""
        return self.run.evaluate_only or is_finished(self.path)

    def evaluated(self) -> bool:
        """Return whether there is nothing left to evaluate; another command may have made the same evaluation."""
        if self.run.evaluate is None:
            return True
        if entry := self.state().get("evaluate"):
            return entry.get("code") == 0 and "results" in self.results()
        return self._differing_settings() == []

    def next_stage(self) -> Stage | None:
        """Return what is left to do first, None if everything is done."""
        return "train" if not self.trained() else "evaluate" if not self.evaluated() else None

    def results(self) -> dict[str, Any]:
        """Return the contents of the evaluation's results, empty if they cannot be read."""
        return read_object(self.evaluation / "evaluation.json")

    def _differing_settings(self) -> list[str] | None:
        """Name the settings in which a whole evaluation differs from the sweep's; None if there is none."""
        settings, results = read_object(self.evaluation / "settings.json"), self.results().get("results")
        if not settings or not isinstance(results, list) or not results or self.run.evaluate is None:
            return None
        config, path = self.run.config, None if self.run.evaluate_only else self.path
        return differences_from_request(
            settings, self.run.evaluate, config.model, config.prompts.template_options, path
        )

    def command(self, stage: Stage, *, resume: bool = False) -> list[str]:
        """Return the arguments of `opasd` for the stage."""
        run, path = self.run, str(self.path)
        if stage == "evaluate":
            target = run.base_target() if run.evaluate_only else [path]
            target += ["--trust-remote-code"] if run.config.model.trust_remote_code else []
            flags = run.evaluate.flags() if run.evaluate else []
            options = run.config.prompts.template_options.items()
            flags += [f"--template-option={template_option(name, value)}" for name, value in options]
            # What another run of the sweep has asked of the same model is not asked again.
            reuse = [word for folder in (self.folder, *self.sources) for word in ("--reuse", str(folder))]
            return ["evaluate", *target, *flags, "--output", str(self.evaluation), *reuse]
        source = [run.recipe, *to_flags(run.settings), "--name", run.name, "--output-dir", str(self.folder)]
        launch = ["--num-processes", str(self.processes)] if self.processes > 1 else []
        return ["train", *(["--resume", path, *self._named_code()] if resume else source), *launch]

    def _named_code(self) -> list[str]:
        """Return the flags that a run's own folder cannot give: the code that the sweep's file names."""
        config = self.run.config
        grader = {"grader": config.grader} if ":" in config.grader else {}
        plugins = {"plugins": config.plugins} if config.plugins else {}
        trust = {TRUST: True} if config.model.trust_remote_code else {}
        return to_flags(grader | plugins | trust)

    def busy(self) -> bool:
        """Return whether another process works on it, such as one that outlives a killed sweep for a moment."""
        return in_use(self.path) or in_use(self.evaluation)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return how each stage ended."""
        return {stage: entry for stage, entry in read_object(self._state).items() if isinstance(entry, dict)}

    def record(self, stage: Stage, code: int, seconds: float, message: str) -> None:
        """Write down how a stage ended."""
        entry = {"code": code, "seconds": round(seconds, 1), "message": message}
        entry |= {"settings": self._digest(stage), "command": self.command(stage)}
        self._write(self.state() | {stage: entry})

    def forget_failures(self) -> None:
        """Let a stage that failed by a mistake be tried again."""
        self._write({stage: entry for stage, entry in self.state().items() if entry.get("code") == 0})

    def mistake(self) -> str | None:
        """Return the message of the mistake by which the next stage failed with these settings, None if it may run."""
        stage = self.next_stage()
        entry = self.state().get(stage or "", {})
        if stage is None or entry.get("code") != MISTAKE or entry.get("settings") != self._digest(stage):
            return None
        return str(entry.get("message", ""))

    def _digest(self, stage: Stage) -> str:
        """Return a digest of the settings that the stage depends on, whatever its folder."""
        content = self.run.config.model_dump_json(exclude={"name", "output_dir"})
        if stage == "evaluate":
            content = f"{self.run.base_target() if self.run.evaluate_only else ''} {self.run.evaluate}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def _write(self, state: dict[str, Any]) -> None:
        self._state.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._state, state)

    def find_in(self, folder: Path) -> "tuple[Path | None, Job | None]":
        """Return the same run and the job with the same evaluation in another sweep's folder, if missing here."""
        run = None
        if not self.run.evaluate_only and not self.path.exists():
            wanted = with_absolute_paths(self.run.config)
            finished = (path.parents[1] for path in sorted(folder.glob("*/final/README.md")))
            whole = (path for path in finished if (path / "config.yaml").is_file())
            run = next((path for path in whole if not differing_settings(RunFolder.open(path).config, wanted)), None)
        if self.evaluation.exists() or not (run or self.trained()):
            return run, None
        for state in sorted((folder / "state").glob("*.json")):
            other = Job(replace(self.run, name=state.stem), folder)
            same = other.state().get("evaluate", {}).get("settings") == self._digest("evaluate")
            same_model = self.run.evaluate_only or other.path.resolve() == (run or self.path).resolve()
            if same and same_model and other.evaluated():
                return run, other
        return run, None

    def reuse(self, folder: Path) -> list[str]:
        """Link the same run and evaluation of another sweep's folder, and return the paths of what was linked."""
        run, other = self.find_in(folder)
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
            config = RunFolder.open(self.path).config
            if changed := differing_settings(config, with_absolute_paths(self.run.config)):
                raise _other_settings(self.path, [f"{name} {value_of(config, name)!r:.40}" for name in changed[:5]])
        elif self.path.exists():
            raise ConfigError(f"{self.path} exists and is no run; give another --output")
        elif any(self.evaluation.glob("*.json")) and not self.run.evaluate_only:
            raise ConfigError(
                f"{self.evaluation} is of a run that is no longer there; remove it too, or give another --output"
            )
        if self.run.evaluate is None or not self.evaluation.exists():
            return
        if entry := self.state().get("evaluate"):
            if entry.get("settings", self._digest("evaluate")) != self._digest("evaluate"):
                raise _other_settings(self.evaluation, [])
        elif changed := self._differing_settings():
            raise _other_settings(self.evaluation, changed)


def differing_settings(first: RunConfig, second: RunConfig) -> list[str]:
    """Return the names of the fields in which two runs differ, apart from where they lie."""
    return [name for name in differing_fields(first, second) if name not in (*OWN_FIELDS, TRUST)]


def _other_settings(path: Path, changed: list[str]) -> ConfigError:
    names = f" ({', '.join(changed)})" if changed else ""
    return ConfigError(f"{path} was made with other settings{names}; give the same ones, or another --output")
