"""Measure, before any training, whether a model has a teacher worth learning from.

The model answers held-out problems as student and as teacher, and reads the student's answers in both roles. Takes
what `opasd train` takes; nothing is trained.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from opasd.cli._options import ConfigOptions, parse
from opasd.cli._preview import check
from opasd.cli._processes import Processes
from opasd.config import RunConfig
from opasd.errors import ConfigError
from opasd.progress import SampleProgress
from opasd.rounding import fixed, per_cent
from opasd.run.environment import environment


@dataclass(frozen=True)
class ProbeOptions(ConfigOptions):
    """The command's own options."""

    problems: int = 64
    """Problems: the first ones of the validation sets that have solutions; of the training data if there is none."""
    samples: int = 4
    """Answers of the student to each problem; a problem tells something where some are right and some are wrong."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the summary, every answer's figures, the settings and the versions to this file, which must be new."""


def run(args: list[str]) -> int:
    """The command."""
    options, recipe, config = parse(ProbeOptions, args, prog="opasd probe", about=__doc__ or "")
    if (world := Processes.current().world) > 1:
        raise ConfigError(f"opasd probe is one process, got a launch of {world}; run it without a launcher")
    for name in ("problems", "samples"):
        if (value := getattr(options, name)) < 1:
            raise ConfigError(f"--{name}: got {value}; give 1 or more")
    target = None if options.json is None else Path(os.path.expanduser(options.json))
    if target is not None:
        _check_new(target)
    check(config, 1)
    from opasd.probe.measure import probe
    from opasd.probe.summary import summarise

    progress = SampleProgress()
    try:
        found = probe(config, count=options.problems, samples=options.samples, progress=progress)
    finally:
        progress.end()
    summary = summarise(found)
    sys.stdout.write(_page(recipe.name, config, len(found.student), options.samples, summary))
    if target is not None:
        settings = {"source": options.source, "problems": options.problems, "samples": options.samples}
        settings["config"] = config.model_dump(mode="json")
        about = {"settings": settings, "environment": environment(["opasd", *sys.argv[1:]])}
        _write(target, json.dumps({"summary": summary, **about, **found.to_dict()}, indent=1, ensure_ascii=False))
        sys.stderr.write(f"{target}\n")
    return 0


def _check_new(target: Path) -> None:
    """Refuse a file that is there, or that could not be written in the end."""
    _write(target, "")
    target.unlink()


def _write(target: Path, text: str) -> None:
    try:
        with target.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"--json: {target} exists and is not overwritten; give another name") from None
    except OSError as error:
        raise ConfigError(
            f"--json: {target} cannot be written ({error.strerror}); give a file in an existing folder"
        ) from None


def _page(name: str, config: RunConfig, problems: int, samples: int, summary: dict[str, Any]) -> str:
    student, teacher, token = summary["student"], summary["teacher"], config.objective.token
    clip = "none" if token.clip == "none" else f"{token.clip}, {token.clip_threshold:g}"
    late = "" if summary["late"] is None else f"{100 * summary['late']:.0f} % in the last tenth"
    rows = [
        ("", "student", "teacher"),
        ("accuracy, %", _percent(student["accuracy"]), _percent(teacher["accuracy"])),
        ("tokens", _number(student["tokens"], 1), _number(teacher["tokens"], 1)),
        (
            f"cut off at {config.rollout.max_new_tokens} tokens, %",
            _percent(student["truncated"]),
            _percent(teacher["truncated"]),
        ),
        ("speak of what only the teacher sees, %", _percent(student["leaks"]), _percent(teacher["leaks"])),
        ("", "", ""),
        ("the student's answers, as both read them", "", ""),
        ("log ratio per token, right answers", _number(summary["log_ratio_right"], 4), ""),
        ("log ratio per token, wrong answers", _number(summary["log_ratio_wrong"], 4), ""),
        ("token divergence per token", _number(summary["divergence"], 4), ""),
        ("  held by the 10 % largest tokens, %", _percent(summary["top_share"]), ""),
        (f"  clipped ({clip}), %", _percent(summary["clipped"]), ""),
        ("attention divergence per token", _number(summary["attention_divergence"], 4), ""),
        ("attention on the solution, ρ", _number(summary["solution_mass"], 4), ""),
        ("", "", ""),
        ("right beside wrong answers to a problem", "", ""),
        ("preference for right over wrong", *_pairs(summary["preference"], "no problem has both")),
        ("  with another problem's reference", _number(summary["control_preference"], 3), _adds(summary, "")),
        ("  before the last tenth of the tokens", *_pairs(summary["preference_before_the_end"])),
        (
            "    with another problem's reference",
            _number(summary["control_preference_before_the_end"], 3),
            _adds(summary, "_before_the_end"),
        ),
        ("attention divergence lower for right", _number(summary["attention_preference"], 3), _attention(summary)),
        ("log ratio of an answer, right − wrong", _number(summary["log_ratio_difference"], 2), late),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(
        [
            f"{name}: {config.model.name_or_path}, {problems} problems, {samples} answers of the student to each",
            "",
            *lines,
            *_tenths(summary["tenths"]["log_ratio"]),
            "",
            "95 % intervals by bootstrap over problems. Right beside wrong: problems with both, no answers cut off.",
            *_reading(summary, samples),
            "",
        ]
    )


def _pairs(figure: dict[str, float] | None, none: str = "") -> tuple[str, str]:
    return _number(figure, 3), f"{figure['problems']} problems, {figure['pairs']} pairs" if figure else none


def _adds(summary: dict[str, Any], where: str) -> str:
    figure = summary[f"own_adds{where}"]
    return f"its own adds {_number(figure, 3)}" if figure else ""


def _attention(summary: dict[str, Any]) -> str:
    right, wrong = summary["attention_divergence_right"], summary["attention_divergence_wrong"]
    return f"right {right['mean']:.4f}, wrong {wrong['mean']:.4f}" if right else ""


def _tenths(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    rows = [f"{kind} answers" + "".join(f" {value:7.3f}" for value in found[kind]) for kind in ("right", "wrong")]
    return ["", "log ratio in each tenth of an answer's tokens, first to last", *rows]


def _reading(summary: dict[str, Any], samples: int) -> list[str]:
    """Sentences where the intervals call for them."""
    return [*_preference(summary, samples), *_leaks(summary["teacher"]["leaks"])]


def _leaks(figure: dict[str, float] | None) -> list[str]:
    return [_LEAKS] if figure and figure["low"] > 0 else []


def _preference(summary: dict[str, Any], samples: int) -> list[str]:
    verdict, before, late = summary["verdict"], summary["verdict_before_the_end"], summary["late"]
    if verdict == "none" and samples == 1:
        none = "One answer to a problem is not both right and wrong"
        return [f"{none}: there is no preference; give --samples 2 or more."]
    if verdict == "none":
        return [f"No problem has both right and wrong answers, cut off ones aside: there is no preference; {_MORE}."]
    if verdict == "too few":
        count = summary["preference"]["problems"]
        return [f"Only {count} problems have both right and wrong answers, too few to tell; {_MORE}."]
    lines = [_PREFERENCE[verdict]]
    if verdict == "above" and before in ("open", "below"):
        where = _LATE if late is not None and late > 0.5 else ""
        lines.append(f"Before the last tenth this is not shown{where}.")
    adds, adds_before = summary["own_adds"], summary["own_adds_before_the_end"]
    if verdict == "above" and adds and adds["low"] <= 0:
        lines.append("That it takes the problem's own reference for this is not shown.")
    elif verdict == "above" and adds_before and adds_before["low"] <= 0:
        lines.append("That it takes the problem's own reference for this before the last tenth is not shown.")
    return lines + _ATTENTION.get(summary["attention_verdict"], [])


_PREFERENCE = {
    "above": "The preference's interval excludes 0.5: the teacher's reading favours right answers of the student.",
    "below": "The preference's interval excludes 0.5: the teacher's reading favours wrong answers of the student.",
    "open": "The preference's interval holds 0.5: that the teacher tells right answers from wrong is not shown.",
}
_LATE = ": the teacher corrects final answers more than the steps before them"
_ATTENTION = {
    "open": ["Attention's interval holds 0.5: the attention loss has little to say about right and wrong here."],
    "below": ["Attention's interval excludes 0.5: right answers have the higher divergence."],
}
_LEAKS = "The teacher speaks of what only it sees, and the token loss teaches that too; see prompts.reference."
_MORE = "give more --problems or --samples, or problems that are neither too easy nor too hard"


def _percent(figure: dict[str, float] | None) -> str:
    if figure is None:
        return "–"
    mean, low, high = (fixed(per_cent(figure[name]), 1) for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _number(figure: dict[str, float] | None, digits: int) -> str:
    if figure is None:
        return "–"
    return f"{figure['mean']:.{digits}f} [{figure['low']:.{digits}f}, {figure['high']:.{digits}f}]"
