"""Answers of several runs to the same problem, side by side."""

from collections.abc import Sequence
from typing import Any

from opasd.analysis.compare import Divergence, first_divergence, reasoning_steps
from opasd.analysis.markers import count_markers
from opasd.report.assets import dot
from opasd.report.run import RecordedSample, Run
from opasd.report.text import safe, shortened
from opasd.rounding import fixed

COMPARED = 12
"""The number of problems that the page shows, at most."""
_LONGEST = 6000
"""Characters of an answer."""
Group = dict[int, RecordedSample]
"""The answers to one problem, by the number of their run."""
_VERDICTS = {True: ("right", "good"), False: ("wrong", "bad"), None: ("not graded", "")}
"""Verdict ─► text and style of its badge."""


def comparisons(runs: Sequence[Run]) -> tuple[str, int]:
    """Return the HTML of problems that several runs answered, and the number of such problems.

    Problems with different verdicts come first. If a problem was sampled several times, the most telling one is shown.
    """
    groups: dict[tuple[Any, ...], Group] = {}
    for number, run in enumerate(runs):
        for sample in run.samples:
            group = groups.setdefault(sample.key, {})
            question = next((other.question for other in group.values() if other.question), sample.question)
            if sample.question in ("", question):  # else the benchmark is another one of the same name
                group.setdefault(number, sample)
    telling: dict[tuple[Any, ...], Group] = {}
    for (*problem, _), group in groups.items():
        if len(group) > 1 and len({answer.text for answer in group.values()}) > 1:
            telling[tuple(problem)] = max(telling.get(tuple(problem), group), group, key=_interest)
    ordered = sorted(telling.values(), key=_interest, reverse=True)
    html = "".join(_comparison(runs, group, is_open=n < 2) for n, group in enumerate(ordered[:COMPARED]))
    return html, len(ordered)


def _interest(group: Group) -> tuple[bool, bool, int, int]:
    answers = list(group.values())
    return (
        {True, False} <= {answer.correct for answer in answers},
        answers[-1].correct is True,
        len(group),
        -max(len(answer.text) for answer in answers),
    )


def _comparison(runs: Sequence[Run], group: Group, *, is_open: bool) -> str:
    (first, reference), *others = group.items()
    partings = {number: first_divergence(reference.text, answer.text) for number, answer in others}
    # The reference is marked where the next answer leaves it.
    cards = _card(runs[first], reference, partings[others[0][0]])
    cards += "".join(_card(runs[n], answer, partings[n], reference) for n, answer in others)
    step = "" if reference.step is None or reference.key[1] is None else f", step {reference.step}"
    question = safe(shortened(reference.question or reference.problem, 700))
    known = f"Known answer: <b><bdi>{safe(shortened(reference.answer, 200))}</bdi></b>"
    return (
        f'<details class="card tex"{" open" if is_open else ""}><summary dir="auto"><span class="soft small">'
        f"{safe(reference.dataset + step)}</span> <bdi>{question}</bdi></summary>"
        + (f'<p class="small" dir="auto">{known}</p>' if reference.answer else "")
        + f'<div class="pairs">{cards}</div></details>'
    )


def _card(run: Run, answer: RecordedSample, parting: Divergence | None, reference: RecordedSample | None = None) -> str:
    """Return one answer, with what differs from the reference unless it is the reference itself."""
    badges, facts = [_VERDICTS[answer.correct]], [f"{answer.tokens:,} tokens"]
    if reference is not None:
        if {reference.correct, answer.correct} == {True, False}:
            badges.append(("gained", "good") if answer.correct else ("lost", "bad"))
        before, after = count_markers(reference.text), count_markers(answer.text)
        facts[0] += f" ({fixed(answer.tokens - reference.tokens, 0, sign=True)})"
        facts += [
            f"{fixed(after[marker] - before[marker], 0, sign=True)} {marker}"
            for marker in sorted({*before, *after})
            if after[marker] != before[marker]
        ]
        facts.append("says the same" if parting is None else f"parts at step {parting.step + 1}")
    if answer.truncated:
        badges.append(("truncated", "warn"))
    shown = "".join(f'<span class="badge {style}">{text}</span>' for text, style in badges)
    shared = parting and (parting.first if reference is None else parting.second)
    return (
        f'<div class="run{run.slot}"><div class="line"><b><i class="{dot(run.slot)}"></i>'
        f'<bdi>{safe(run.name)}</bdi></b>{shown}</div><div class="soft small">{safe(", ".join(facts))}</div>'
        f"{_marked(answer.text, shared)}</div>"
    )


def _marked(text: str, shared: int | None) -> str:
    """Return the text with its shared beginning faded and the first step that differs marked."""
    if shared is None:
        return f'<pre dir="auto">{safe(shortened(text, _LONGEST))}</pre>'
    rest = text[shared:]
    step = next(iter(reasoning_steps(rest)), "").rstrip()
    before = text[:shared] if shared <= _LONGEST // 2 else f"…{text[shared - _LONGEST // 2 : shared]}"
    after = shortened(rest[len(step) :], _LONGEST)
    return f'<pre dir="auto"><span class="same">{safe(before)}</span><mark>{safe(step)}</mark>{safe(after)}</pre>'
