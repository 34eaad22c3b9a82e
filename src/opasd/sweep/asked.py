"""Whether an evaluation that the sweep did not make, such as by the commands it printed, is the one it would make."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from opasd.errors import OpasdError
from opasd.evaluation.benchmarks import Benchmark, find_benchmarks, is_local, load
from opasd.evaluation.profiles import PAPER
from opasd.evaluation.targets import LAB
from opasd.sweep.spec import Planned


def asked_otherwise(run: Planned, path: Path, settings: Mapping[str, Any]) -> list[str]:
    """What an evaluation's settings.json has otherwise than the sweep would ask of the run in `path`."""
    asked = run.evaluate
    assert asked is not None
    lab = run.model == LAB
    try:
        chosen = run.asked()
        assert chosen is not None
        wanted = {
            "profile": chosen.model_dump(mode="json"),
            "engine": asked.engine or "transformers",
            "group": asked.max_batch or 128,
            "template_options": dict(run.config.prompts.template_options),
        }
        there = {"template_options": {}} | dict(settings)
        found = [name for name, value in wanted.items() if there.get(name) != value]
        if not _same_target(run, path, *settings["targets"].values()):
            found.append("targets")
        entries = find_benchmarks(list(asked.benchmarks) or ([LAB] if lab else list(PAPER)))
        data_dir = Path(asked.data_dir) if asked.data_dir else None
        if {entry.name for entry in entries} != set(settings["benchmarks"]):
            found.append("benchmarks")
        elif not all(_same(entry, data_dir, asked.problems, settings["benchmarks"][entry.name]) for entry in entries):
            found.append("problems")
    except (OpasdError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return ["settings.json"]  # damaged, or nothing to compare with
    return found


def _same_target(run: Planned, path: Path, about: Mapping[str, Any]) -> bool:
    if run.evaluate_only:
        same = Path(about["model"]).name == Path(run.model).name and about["dtype"] == run.config.model.dtype
        return same and not about["adapter"]
    made = Path(about["run"])
    return made.name == path.name or made.resolve() == path.resolve()  # a folder may have been moved


def _same(entry: Benchmark, data_dir: Path | None, limit: int | None, about: Mapping[str, Any]) -> bool:
    """By the problems where they are on this machine, else by how they are asked and how many there are."""
    if is_local(entry, data_dir):
        return about["fingerprint"] == _fingerprint(entry.model_dump_json(), data_dir, limit)
    count = min(limit or 10**9, entry.problems or about["problems"])
    return [about[name] for name in ("prompt", "instruction", "problems")] == [entry.prompt, entry.instruction, count]


@cache
def _fingerprint(entry: str, data_dir: Path | None, limit: int | None) -> str:
    return load(Benchmark.model_validate_json(entry), data_dir, limit).fingerprint
