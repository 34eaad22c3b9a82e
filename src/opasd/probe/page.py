"""Print a probe's summary: a table of figures, and sentences that say what the intervals show."""

from typing import Any

from opasd.config import RunConfig
from opasd.rounding import aligned, per_cent, with_interval

Figure = dict[str, float]
"""A mean and its 95 % interval: `mean`, `low`, `high`."""
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


def probe_page(name: str, config: RunConfig, problems: int, samples: int, summary: dict[str, Any]) -> str:
    """Return the page of a summary, for a terminal."""
    teacher_leaks = summary["teacher"]["leaks"]
    return "\n".join(
        [
            f"{name}: {config.model.name_or_path}, {problems} problems, {samples} answers of the student to each",
            "",
            *aligned(_rows(config, summary)),
            *_tenths(summary["tenths"]["log_ratio"]),
            "",
            "95 % intervals for problems like these. Right beside wrong: problems with both, no answers cut off.",
            *_sentences(summary, samples),
            *([_LEAKS] if teacher_leaks and teacher_leaks["low"] > 0 else []),
            "",
        ]
    )


def _rows(config: RunConfig, summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the table: a label, and what the two columns say."""
    student, teacher, token = summary["student"], summary["teacher"], config.objective.token
    clip = "none" if token.clip == "none" else f"{token.clip}, {token.clip_threshold:g}"
    shares = {
        "truncated": f"cut off at {config.rollout.max_new_tokens} tokens, %",
        "leaks": "speak of what only the teacher sees, %",
    }
    right, wrong = summary["attention_divergence_right"], summary["attention_divergence_wrong"]
    means = f"right {right['mean']:.4f}, wrong {wrong['mean']:.4f}" if right else ""
    late = "" if summary["late"] is None else f"{100 * summary['late']:.0f} % in the last tenth"
    return [
        ("", "student", "teacher"),
        ("accuracy, %", _percent(student["accuracy"]), _percent(teacher["accuracy"])),
        ("tokens", _number(student["tokens"], 1), _number(teacher["tokens"], 1)),
        *((label, _percent(student[name]), _percent(teacher[name])) for name, label in shares.items()),
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
        ("  with another problem's reference", *_control(summary, "")),
        ("  before the last tenth of the tokens", *_pairs(summary["preference_before_the_end"])),
        ("    with another problem's reference", *_control(summary, "_before_the_end")),
        ("attention divergence lower for right", _number(summary["attention_preference"], 3), means),
        ("log ratio of an answer, right − wrong", _number(summary["log_ratio_difference"], 2), late),
    ]


def _pairs(figure: Figure | None, none: str = "") -> tuple[str, str]:
    return _number(figure, 3), f"{figure['problems']} problems, {figure['pairs']} pairs" if figure else none


def _control(summary: dict[str, Any], ending: str) -> tuple[str, str]:
    adds = summary[f"own_adds{ending}"]
    added = f"its own adds {_number(adds, 3)}" if adds else ""
    return _number(summary[f"control_preference{ending}"], 3), added


def _tenths(tenths: dict[str, Any] | None) -> list[str]:
    if tenths is None:
        return []
    rows = [f"{kind} answers" + "".join(f" {value:7.3f}" for value in tenths[kind]) for kind in ("right", "wrong")]
    return ["", "log ratio in each tenth of an answer's tokens, first to last", *rows]


def _sentences(summary: dict[str, Any], samples: int) -> list[str]:
    """Return what the intervals show about the teacher's preference."""
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
        lines.append(f"Before the last tenth this is not shown{_LATE if late is not None and late > 0.5 else ''}.")
    adds, adds_before = summary["own_adds"], summary["own_adds_before_the_end"]
    if verdict == "above" and adds and adds["low"] <= 0:
        lines.append("That it takes the problem's own reference for this is not shown.")
    elif verdict == "above" and adds_before and adds_before["low"] <= 0:
        lines.append("That it takes the problem's own reference for this before the last tenth is not shown.")
    return lines + _ATTENTION.get(summary["attention_verdict"], [])


def _percent(figure: Figure | None) -> str:
    return "–" if figure is None else with_interval(per_cent(figure[name]) for name in ("mean", "low", "high"))


def _number(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return "–"
    return f"{figure['mean']:.{digits}f} [{figure['low']:.{digits}f}, {figure['high']:.{digits}f}]"
