"""The explorer of sampled completions: all of them in the page or, if they do not fit, in side pages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opasd.report.assets import template
from opasd.report.page import Page, paragraph, part_links
from opasd.report.run import ROLLOUT, RecordedSample, Run
from opasd.report.text import embedded, printable, shortened, split_by_size

PAGE_BYTES = 6_000_000
"""The size of the samples in the report's own page, at most."""
SIDE_BYTES = 12_000_000
"""The size of the samples in one side page, at most."""
LONGEST = 24_000
"""Characters of a completion in the report's own page; side pages hold it whole."""
_WHOLE = 2_000_000
"""Characters of a completion in a side page."""
_HTML = template("explorer.html")

NumberedSample = tuple[int, RecordedSample]
"""The number of a run, and a sample of it."""


@dataclass(frozen=True)
class Explorer:
    """The data of the page, and of side pages with all samples if the page cannot hold them."""

    data: dict[str, Any]
    shown: int
    total: int
    side: list[dict[str, Any]]


def explorer(runs: Sequence[Run], page_bytes: int = PAGE_BYTES, side_bytes: int = SIDE_BYTES) -> Explorer:
    """Put all samples into the page if they fit; else an even choice from each run, and all into side pages."""
    everything = [(number, sample) for number, run in enumerate(runs) for sample in run.samples]
    whole = all(len(sample.text) <= LONGEST for _, sample in everything)
    if whole and sum(_cost(sample, LONGEST) for _, sample in everything) <= page_bytes:
        return Explorer(_data(runs, everything, LONGEST), len(everything), len(everything), [])
    chosen = list(_even_choice(runs, page_bytes))
    parts = split_by_size(everything, lambda numbered: _cost(numbered[1], _WHOLE), side_bytes)
    side = [_data(runs, part, _WHOLE) for part in parts]
    return Explorer(_data(runs, chosen, LONGEST), len(chosen), len(everything), side)


def side_page(title: str, data: dict[str, Any], number: int, count: int) -> str:
    """Return one side page, with the same search and filters."""
    page = Page(f"{title}: samples", f"Part {number} of {count}; report.html is the report.")
    page.section("samples", "Samples", _HTML)
    page.data("sample-data", data)
    return page.html()


def _even_choice(runs: Sequence[Run], budget: int) -> Iterator[NumberedSample]:
    """Give each run the same share of the page, and spend it on samples evenly spread over the run's own."""
    share = budget / max(sum(bool(run.samples) for run in runs), 1)
    for number, run in enumerate(runs):
        costs = [_cost(sample, LONGEST) for sample in run.samples]
        count = max(1, int(len(costs) * min(1.0, share / max(sum(costs), 1))))
        chosen = [int(index * len(costs) / count) for index in range(count)] if costs else []
        spent = 0
        for index in chosen:
            spent += costs[index]
            if spent > share:
                break
            yield number, run.samples[index]


def _cost(sample: RecordedSample, limit: int) -> int:
    """Return the bytes in the page at most; a question that samples share is there only once."""
    return len(embedded([*_problem(sample), *_completion(sample, limit)]).encode()) + 40


def _problem(sample: RecordedSample) -> tuple[str, str]:
    question = sample.question or (sample.problem if sample.dataset != ROLLOUT else "")
    return printable(shortened(question, LONGEST)), printable(shortened(sample.answer, 1000))


def _completion(sample: RecordedSample, limit: int) -> tuple[str, str]:
    return printable(shortened(sample.text, limit)), printable(shortened(sample.extracted, 400))


def _data(runs: Sequence[Run], chosen: Sequence[NumberedSample], longest: int) -> dict[str, Any]:
    sets: dict[str, int] = {}
    questions: dict[tuple[str, str], int] = {}
    rows = []
    for number, sample in chosen:
        text, extracted = _completion(sample, longest)
        rows.append(
            [
                number,
                sets.setdefault(sample.dataset, len(sets)),
                sample.step,
                questions.setdefault(_problem(sample), len(questions)),
                sample.number,
                -1 if sample.correct is None else int(sample.correct),
                int(sample.truncated),
                sample.tokens,
                text,
                max(0, len(sample.text) - longest),
                extracted,
            ]
        )
    return {
        "runs": [printable(run.name) for run in runs],
        "slots": [run.slot for run in runs],
        "sets": [printable(name) for name in sets],
        "questions": [list(problem) for problem in questions],
        "rows": rows,
    }


def explorer_html(shown: Explorer, side_names: Sequence[str]) -> str:
    """Return the section's HTML, with links to the side pages."""
    if not shown.side:
        return _HTML
    about = (
        f"{shown.shown:,} of {shown.total:,} samples are in this page, evenly spread over each run; longer completions "
        "are cut in the middle. All of them, whole, are in side files:"
    )
    return f'{paragraph(about)}<p class="small">{part_links(side_names, 1)}</p>{_HTML}'
