"""Sampled completions in the page, and in side files what does not fit into it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opasd.analysis.compare import Contrast, Reply, contrast, reasoning_steps
from opasd.report.folders import ROLLOUT, Run, Sample
from opasd.report.page import Page, paragraph
from opasd.report.palette import dot
from opasd.report.text import embedded, printable, safe, shortened
from opasd.rounding import fixed

PAGE_BYTES = 6_000_000
"""Of samples in the report's own page."""
SIDE_BYTES = 12_000_000
"""Of samples in one side file."""
LONGEST = 24_000
"""Characters of a completion in the report's own page; side files hold the whole."""
_WHOLE = 2_000_000
"""Characters of a completion anywhere."""
COMPARED = 12
_SHOWN = 6000
EXPLORER = (
    '<div id="explorer"><div class="filters" role="search">'
    '<input name="search" type="search" placeholder="Search completions and questions" aria-label="Search">'
    '<select name="verdict" aria-label="Verdict"><option value="">any verdict</option><option value="1">right</option>'
    '<option value="0">wrong</option><option value="-1">not graded</option><option value="truncated">truncated</option>'
    "</select>"
    '<select name="run" aria-label="Run"><option value="">all runs</option></select>'
    '<select name="set" aria-label="Set"><option value="">all sets</option></select>'
    '<select name="order" aria-label="Order"><option value="">in order</option><option value="late">latest step first'
    '</option><option value="long">longest first</option><option value="short">shortest first</option></select></div>'
    '<p class="count soft small" role="status"></p><div class="list"></div>'
    '<button type="button" class="tool more" hidden>show more</button></div>'
)

Numbered = tuple[int, Sample]


@dataclass(frozen=True)
class Explorer:
    """What the page shows, and the side files that hold everything if the page does not."""

    data: dict[str, Any]
    shown: int
    total: int
    side: list[dict[str, Any]]


def explorer(runs: Sequence[Run], page_bytes: int = PAGE_BYTES, side_bytes: int = SIDE_BYTES) -> Explorer:
    """All samples in the page if they fit; else an even choice from each run, and all of them in side files."""
    everything = [(number, sample) for number, run in enumerate(runs) for sample in run.samples]
    costs = [_cost(sample, LONGEST) for _, sample in everything]
    whole = all(len(sample.text) <= LONGEST for _, sample in everything)
    if sum(costs) <= page_bytes and whole:
        return Explorer(_data(runs, everything, LONGEST), len(everything), len(everything), [])
    chosen = list(_even_choice(runs, page_bytes))
    side = [_data(runs, part, _WHOLE) for part in _parts(everything, side_bytes)]
    return Explorer(_data(runs, chosen, LONGEST), len(chosen), len(everything), side)


def side_page(title: str, data: dict[str, Any], place: int, count: int) -> str:
    """One side file: the same search and filters, and nothing else."""
    page = Page(f"{title}: samples", f"Part {place} of {count}; report.html is the report.")
    page.section("samples", "Samples", EXPLORER)
    page.data("sample-data", data)
    return page.html()


def comparisons(runs: Sequence[Run]) -> tuple[str, int]:
    """Problems that several runs answered, the answers side by side, those first that differ in their verdict; of
    several samples the one that says most."""
    answered: dict[tuple[Any, ...], dict[int, Sample]] = {}
    for number, run in enumerate(runs):
        for sample in run.samples:
            group = answered.setdefault(sample.key, {})
            asked = next((one.question for one in group.values() if one.question), sample.question)
            if not sample.question or sample.question == asked:  # else another benchmark of the same name
                group.setdefault(number, sample)
    telling: dict[tuple[Any, ...], dict[int, Sample]] = {}
    for (*problem, _), group in answered.items():
        if len(group) > 1 and len({one.text for one in group.values()}) > 1:
            telling[tuple(problem)] = max(telling.get(tuple(problem), group), group, key=_interest)
    ordered = sorted(telling.values(), key=_interest, reverse=True)
    return "".join(_comparison(runs, group, place < 2) for place, group in enumerate(ordered[:COMPARED])), len(ordered)


def _interest(group: dict[int, Sample]) -> tuple[bool, bool, int, int]:
    samples = list(group.values())
    verdicts = {one.correct for one in samples}
    return (
        {True, False} <= verdicts,
        samples[-1].correct is True,
        len(group),
        -max(len(one.text) for one in samples),
    )


def _comparison(runs: Sequence[Run], group: dict[int, Sample], is_open: bool) -> str:
    first, *_ = group.values()
    replies = {number: Reply(one.text, one.tokens, one.correct, one.truncated) for number, one in group.items()}
    reference, *others = replies
    contrasts = {number: contrast(replies[reference], replies[number]) for number in others}
    # The reference is marked where the first of the others leaves it.
    own = contrast(replies[others[0]], replies[reference])
    cards = "".join(
        _card(runs[number].name, number, group[number], contrasts.get(number), own if number == reference else None)
        for number in group
    )
    where = first.dataset + (f", step {first.step}" if first.step is not None and first.key[1] is not None else "")
    question = safe(shortened(first.question or first.problem, 700))
    answer = (
        f'<p class="small" dir="auto">Known answer: <b><bdi>{safe(shortened(first.answer, 200))}</bdi></b></p>'
        if first.answer
        else ""
    )
    return (
        f'<details class="card"{" open" if is_open else ""}><summary dir="auto"><span class="soft small">'
        f'{safe(where)}</span> <bdi>{question}</bdi></summary>{answer}<div class="pairs">{cards}</div></details>'
    )


def _card(name: str, run: int, sample: Sample, found: Contrast | None, own: Contrast | None) -> str:
    verdict = {True: ("right", "good"), False: ("wrong", "bad"), None: ("not graded", "")}[sample.correct]
    badges = [verdict]
    if found is not None and found.verdict in ("gained", "lost"):
        badges.append((found.verdict, "good" if found.verdict == "gained" else "bad"))
    if sample.truncated:
        badges.append(("truncated", "warn"))
    shown = "".join(f'<span class="badge {kind}">{text}</span>' for text, kind in badges)
    facts = [f"{sample.tokens:,} tokens"]
    if found is not None:
        facts[0] += f" ({fixed(found.tokens, 0, sign=True)})"
        facts += [f"{fixed(change, 0, sign=True)} {marker}" for marker, change in found.markers.items()]
        facts.append("says the same" if found.divergence is None else f"parts at step {found.divergence.step + 1}")
    part = (found or own or Contrast(None, 0, {}, "")).divergence
    return (
        f'<div class="run{run}"><div class="line"><b><i class="{dot(run)}"></i><bdi>{safe(name)}</bdi></b>'
        f'{shown}</div><div class="soft small">{safe(", ".join(facts))}</div>'
        f"{_marked(sample.text, part and part.second)}</div>"
    )


def _marked(text: str, same: int | None) -> str:
    """The text with what it shares with the other faded and the first step that differs marked."""
    if same is None:
        return f'<pre dir="auto">{safe(shortened(text, _SHOWN))}</pre>'
    rest = text[same:]
    step = next(iter(reasoning_steps(rest)), "")
    before = text[:same] if same <= _SHOWN // 2 else f"…{text[same - _SHOWN // 2 : same]}"
    after = shortened(rest[len(step) :], _SHOWN)
    return f'<pre dir="auto"><span class="same">{safe(before)}</span><mark>{safe(step)}</mark>{safe(after)}</pre>'


def _even_choice(runs: Sequence[Run], budget: int) -> Iterator[Numbered]:
    """The same share of the page for each run, spent on samples that are evenly spread over its own."""
    share = budget / max(sum(bool(run.samples) for run in runs), 1)
    for number, run in enumerate(runs):
        costs = [_cost(sample, LONGEST) for sample in run.samples]
        kept = max(1, int(len(costs) * min(1.0, share / max(sum(costs), 1))))
        picked = [int(place * len(costs) / kept) for place in range(kept)] if costs else []
        spent = 0
        for place in picked:
            spent += costs[place]
            if spent > share:
                break
            yield number, run.samples[place]


def _parts(everything: Sequence[Numbered], limit: int) -> Iterator[list[Numbered]]:
    part: list[Numbered] = []
    spent = 0
    for numbered in everything:
        cost = _cost(numbered[1], _WHOLE)
        if part and spent + cost > limit:
            yield part
            part, spent = [], 0
        part.append(numbered)
        spent += cost
    if part:
        yield part


def _cost(sample: Sample, limit: int) -> int:
    """Bytes in the page at most: a question that samples share is there once."""
    return len(embedded([*_asked(sample), *_said(sample, limit)]).encode()) + 40


def _asked(sample: Sample) -> tuple[str, str]:
    named = sample.question or (sample.problem if sample.dataset != ROLLOUT else "")
    return printable(shortened(named, LONGEST)), printable(shortened(sample.answer, 1000))


def _said(sample: Sample, limit: int) -> tuple[str, str]:
    return printable(shortened(sample.text, limit)), printable(shortened(sample.found, 400))


def _data(runs: Sequence[Run], chosen: Sequence[Numbered], longest: int) -> dict[str, Any]:
    sets: dict[str, int] = {}
    questions: dict[tuple[str, str], int] = {}
    rows = []
    for number, sample in chosen:
        text, found = _said(sample, longest)
        rows.append(
            [
                number,
                sets.setdefault(sample.dataset, len(sets)),
                sample.step,
                questions.setdefault(_asked(sample), len(questions)),
                sample.number,
                -1 if sample.correct is None else int(sample.correct),
                int(sample.truncated),
                sample.tokens,
                text,
                max(0, len(sample.text) - longest),
                found,
            ]
        )
    return {
        "runs": [printable(run.name) for run in runs],
        "sets": [printable(name) for name in sets],
        "questions": [list(asked) for asked in questions],
        "rows": rows,
    }


def explorer_html(found: Explorer, side_names: Sequence[str]) -> str:
    """The section's HTML."""
    if not found.side:
        return EXPLORER
    links = ", ".join(f'<a href="{safe(name)}">part {place}</a>' for place, name in enumerate(side_names, 1))
    return (
        paragraph(
            f"{found.shown:,} of {found.total:,} samples are in this page, evenly spread over each run; longer "
            "completions are cut in the middle. All of them, whole, are in side files:"
        )
        + f'<p class="small">{links}</p>{EXPLORER}'
    )
