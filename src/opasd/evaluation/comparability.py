"""Which evaluations were made in the same way, so that they can be resumed, reused or compared. Imports no torch.

An evaluation's *settings* are the contents of its settings.json. Three questions are answered from them:

    conflicts(settings, requested)              may the folder be resumed with what is requested now?
    differences_from_request(settings, …)       is a finished evaluation the one that the options would make?
    Conditions.differences_from(other, name)    may two targets be compared on a benchmark?
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

from opasd.config import ModelConfig
from opasd.errors import OpasdError
from opasd.evaluation.benchmarks import Benchmark, is_local, load, requested_benchmarks
from opasd.evaluation.profiles import ENGINE, GROUP, Profile, requested_profile
from opasd.lab import LAB
from opasd.recipes.evaluate import EvaluateConfig

Settings = Mapping[str, Any]

GROWING = ("targets", "benchmarks")
"""Parts of the settings that may grow when a folder is resumed; each maps names to descriptions."""
GRADING = "grading"
"""The part of the settings with the versions of the grader and its libraries."""
_IDENTITY = {"targets": ("model", "dtype", "fingerprint"), "benchmarks": ("fingerprint",)}


def settings_of(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an evaluation.json in the form of a settings.json."""
    return dict(evaluation["settings"]) | {part: evaluation[part] for part in GROWING}


def identity(settings: Settings) -> dict[str, Any]:
    """Return all that decides the samples: the settings without where a benchmark or an adapter was read from."""
    parts = {
        part: {name: [about[key] for key in _IDENTITY[part]] for name, about in settings[part].items()}
        for part in GROWING
    }
    # Another grader grades the same samples anew.
    return {name: value for name, value in settings.items() if name != GRADING} | parts


def digest(settings: Settings) -> str:
    """Return eight hexadecimal digits that differ when the identity does."""
    return hashlib.blake2b(json.dumps(identity(settings), sort_keys=True).encode(), digest_size=4).hexdigest()


def conflicts(settings: Settings, requested: Settings) -> list[str]:
    """Say what is requested differently than the settings have it; targets and benchmarks may be new."""
    before, now = identity(settings), identity(requested)
    alone, other = ({name: value for name, value in side.items() if name not in GROWING} for side in (before, now))
    differing = [f"{name} is {old} there and {new} now" for name, old, new in _differences(alone, other)]
    for part in GROWING:
        differing += [
            f"{part}: {name} is another one"
            for name in now[part]
            if before[part].get(name, now[part][name]) != now[part][name]
        ]
    return differing


def _differences(before: Settings, now: Settings, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the old and the new value of every setting that differs, profile.seed for one in a section."""
    for name in dict.fromkeys([*now, *before]):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{place}{name}.")
        elif old != new:
            yield f"{place}{name}", old, new


def combined(settings: Settings, requested: Settings) -> dict[str, Any]:
    """Return the settings with the requested targets and benchmarks added."""
    return dict(settings) | {part: settings[part] | requested[part] for part in GROWING}


def continues(settings: Settings, earlier: Settings) -> bool:
    """Return whether the settings are the earlier ones, or these with targets and benchmarks added."""
    return not conflicts(earlier, settings) and identity(combined(earlier, settings)) == identity(settings)


def differences_from_request(
    settings: Settings,
    options: EvaluateConfig,
    model: ModelConfig,
    template_options: Mapping[str, Any],
    run: Path | None,
) -> list[str]:
    """Name the settings that an evaluation with these options would not have.

    Its only target is the run in the folder `run`, or `model` itself where that is None.
    """
    lab = model.name_or_path == LAB
    try:
        wanted = {
            "profile": requested_profile(options, lab=lab).model_dump(mode="json"),
            "engine": options.engine or ENGINE,
            "group": options.max_batch or GROUP,
            "template_options": dict(template_options),
        }
        recorded = {"template_options": {}} | dict(settings)
        differing = [name for name, value in wanted.items() if recorded.get(name) != value]
        (target,) = settings["targets"].values()
        if not (_is_model(target, model) if run is None else _is_run(target, run)):
            differing.append("targets")
        entries = requested_benchmarks(options, lab=lab)
        if {entry.name for entry in entries} != set(settings["benchmarks"]):
            differing.append("benchmarks")
        elif not all(_same_problems(settings["benchmarks"][entry.name], entry, options) for entry in entries):
            differing.append("problems")
    except (OpasdError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return ["settings.json"]  # it is damaged, or there is nothing to compare with
    return differing


def _is_model(target: Mapping[str, Any], model: ModelConfig) -> bool:
    same_name = Path(target["model"]).name == Path(model.name_or_path).name
    return same_name and target["dtype"] == model.dtype and not target["adapter"]


def _is_run(target: Mapping[str, Any], run: Path) -> bool:
    recorded = Path(target["run"])
    return recorded.name == run.name or recorded.resolve() == run.resolve()  # a folder may have been moved


def _same_problems(about: Mapping[str, Any], entry: Benchmark, options: EvaluateConfig) -> bool:
    """Compare the problems where they are on this machine, else their wording and their number."""
    limit = options.problems
    if is_local(entry, options.data_dir):
        return about["fingerprint"] == _fingerprint(entry.model_dump_json(), options.data_dir, limit)
    count = min(limit or 10**9, entry.problems or about["problems"])
    return [about[name] for name in ("prompt", "instruction", "problems")] == [entry.prompt, entry.instruction, count]


@cache
def _fingerprint(entry: str, data_dir: str | None, limit: int | None) -> str:
    return load(Benchmark.model_validate_json(entry), data_dir, limit).fingerprint


def sampling_key(profile: Profile | None, template_options: Mapping[str, Any]) -> str:
    """Return a text that two evaluations share if their answers were sampled alike, whatever the budget and seed."""
    drawn = profile and (profile.sampling.model_dump(exclude={"max_new_tokens"}), profile.thinking)
    return repr((drawn, sorted(template_options.items())))


_WORDING = ("prompt", "instruction", "kind")


@dataclass(frozen=True)
class Conditions:
    """How one target was evaluated. What the evaluation's record does not say is left out."""

    shared: dict[str, Any] = field(default_factory=dict)
    """What holds for every benchmark: the target, its engine, how its answers were sampled."""
    benchmarks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By benchmark: the fingerprint of its problems, their wording, samples for each, and samples drawn at once."""
    budgets: dict[str, int] = field(default_factory=dict)
    """By benchmark: the most tokens of an answer."""

    @classmethod
    def recorded(cls, record: Mapping[str, Any], target: Mapping[str, Any]) -> Self:
        """Read them from an evaluation.json or a settings.json and its description of the target; trust neither."""
        settings = _mapping(record.get("settings", record))
        profile = _mapping(settings.get("profile"))
        sampling = dict(_mapping(profile.get("sampling")))
        longest = sampling.pop("max_new_tokens", None)
        shared = {name: target.get(name) for name in ("model", "dtype", "fingerprint")}
        shared |= {name: profile.get(name) for name in ("seed", "thinking")} | {"sampling": sampling or None}
        shared["engine"] = settings.get("engine")
        shared[GRADING] = settings.get(GRADING)
        shared["template_options"] = settings.get("template_options", {} if profile else None)
        counts = {"samples": profile.get("samples"), "group": settings.get("group")}
        benchmarks = {
            name: {part: _mapping(about).get(part) for part in ("fingerprint", *_WORDING)} | counts
            for name, about in _mapping(record.get("benchmarks")).items()
        }
        budgets = dict.fromkeys(benchmarks, longest) if isinstance(longest, int) else {}
        return cls({name: value for name, value in shared.items() if value is not None}, benchmarks, budgets)

    def agree_with(self, other: Self) -> bool:
        """Return whether both may describe the same model, evaluated in the same way; the budgets may differ."""
        return all(
            own[name] == others[name]
            for own, others in ((self.shared, other.shared), (self.benchmarks, other.benchmarks))
            for name in own.keys() & others.keys()
        )

    def joined_with(self, other: Self) -> Self:
        """Return what both have on record, with the larger budgets."""
        largest = {name: max(self.budgets.get(name, 0), budget) for name, budget in other.budgets.items()}
        return type(self)(self.shared | other.shared, self.benchmarks | other.benchmarks, self.budgets | largest)

    def differences_from(self, first: Self, benchmark: str, *, counts: bool = True) -> list[str]:
        """Say in words how a benchmark was asked differently than of the first target; empty: they are comparable.

        What is not on record does not count, and without `counts` neither do the samples and the budget.
        """
        own, before = self.benchmarks.get(benchmark, {}), first.benchmarks.get(benchmark, {})
        problems = f" ({str(own['fingerprint'])[:6]})" if _differ("fingerprint", own, before) else ""
        words = [f"other {name}{problems}" for name in _WORDING if _differ(name, own, before)]
        if problems and not words:
            words.append(f"other problems{problems}")
        first_sampling = _mapping(first.shared.get("sampling"))
        words += [
            f"{name.replace('_', '-')} {value}"
            for name, value in _mapping(self.shared.get("sampling")).items()
            if name in first_sampling and value != first_sampling[name]
        ]
        if _differ("thinking", self.shared, first.shared):
            words.append("with thinking" if self.shared["thinking"] else "without thinking")
        if _differ("template_options", self.shared, first.shared):
            words.append("other template options")
        if _differ(GRADING, self.shared, first.shared):
            words.append("graded by other rules")
        if counts and _differ("samples", own, before):
            words.append(f"{own['samples']} samples a problem")
        budget = self.budgets.get(benchmark)
        if counts and budget is not None and budget != first.budgets.get(benchmark, budget):
            words.append(f"up to {budget:,} tokens")
        return words


def _differ(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether both have the value on record, and another one."""
    return None not in (first.get(name), second.get(name)) and first[name] != second[name]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
