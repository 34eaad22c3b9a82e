"""Epistemic markers of methods: pooled over every benchmark that all of them answered, as in the paper."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opasd.analysis.markers import LEAST, MARKERS, MarkerCounts, change_from, density, density_by_marker
from opasd.evaluation.statistics import Estimate, mean_of
from opasd.report.figure import Figure, Series, with_points
from opasd.report.methods import Method
from opasd.report.run import ROLLOUT
from opasd.report.tables import Cell, Table
from opasd.rounding import fixed, with_interval


@dataclass(frozen=True)
class Counted:
    """The counted responses of each method, and where they are from."""

    methods: Sequence[Method]
    responses: Mapping[int, Sequence[MarkerCounts]]
    """By the slot of a method."""
    where: str
    graded: bool
    """Whether they are answers to benchmarks; training rollouts are of other problems at each step."""

    def by_problem(self, slot: int) -> dict[str, float]:
        """Return the mean count of a response to each problem."""
        counts: defaultdict[str, list[int]] = defaultdict(list)
        for response in self.responses[slot]:
            counts[response.problem].append(response.total)
        return {problem: math.fsum(own) / len(own) for problem, own in counts.items()}

    def change(self, base: int, slot: int) -> Estimate | None:
        """Return the change of the mean count from the base, relative to it; None where the base has too few."""
        if change_from(self.responses[base], self.responses[slot]) is None:
            return None
        before, after = self.by_problem(base), self.by_problem(slot)
        common = [problem for problem in before if problem in after]
        mean = math.fsum(before[problem] for problem in common) / max(len(common), 1)
        if not mean:
            return None
        gap = mean_of([after[problem] - before[problem] for problem in common])
        return Estimate(*(value / mean for value in gap))


def counted(methods: Sequence[Method]) -> Counted | None:
    """Pool the benchmarks that every method with answers has; without answers, the training rollouts."""
    sets = {method.slot: {name for run in method.runs for name in run.markers} for method in methods}
    answered = [names - {ROLLOUT} for names in sets.values() if names - {ROLLOUT}]
    common = sorted(set.intersection(*answered)) if answered else []
    if not common and answered:  # nothing is common to all: the one that most have
        every = sorted({name for names in answered for name in names})
        common = [max(every, key=lambda name: sum(name in names for names in answered))]
    pooled = common or [ROLLOUT]
    responses = {
        method.slot: own
        for method in methods
        if (own := [counts for run in method.runs for name in pooled for counts in run.markers.get(name, ())])
    }
    where = f"answers to {', '.join(common)}" if common else "training rollouts"
    return Counted(methods, responses, where, bool(common)) if responses else None


def markers(methods: Sequence[Method]) -> list[Figure]:
    """Return the figures of markers: by correctness, by word, in a response, and the change from the first method."""
    found = counted(methods)
    if found is None:
        return []
    shown = [method for method in methods if method.slot in found.responses]
    verdicts = {"right": True, "wrong": False}
    by_verdict = {
        slot: {name: density(c for c in own if c.correct is correct) for name, correct in verdicts.items()}
        for slot, own in found.responses.items()
    }
    by_word = {slot: density_by_marker(own) for slot, own in found.responses.items()}
    words = [word for word in MARKERS if any(densities.get(word) for densities in by_word.values())]
    pooled = f"Pooled over {found.where}."
    changes = {m.slot: found.change(shown[0].slot, m.slot) for m in shown[1:] if found.graded}
    return with_points([
        Figure(
            "markers-by-correctness", "Markers by correctness", "bar", "answer", "per 1,000 tokens",
            _bars(shown, by_verdict, [*verdicts]), pooled, [*verdicts],
        ),
        Figure(
            "markers-by-word", "Markers by word", "bar", "marker", "per 1,000 tokens", _bars(shown, by_word, words),
            f"{pooled} Words that nobody used are left out.", words,
        ),
        Figure(
            "markers-change", f"Change of the mean count from {shown[0].name}", "bar", "", "change",
            [_one(m, own) for m in shown if (own := changes.get(m.slot))],
            f"Markers in a response, on average, in {found.where}; whiskers: 95 %, paired on the same problems.",
            ("all ten",), percent=True,
        ),
    ])  # fmt: skip


def marker_table(methods: Sequence[Method]) -> Table | None:
    """Return the counts of each method, with intervals; no relative change where the base has too few to divide by."""
    found = counted(methods)
    if found is None or not any(response.total for own in found.responses.values() for response in own):
        return None
    shown = [method for method in methods if method.slot in found.responses]
    base, rows = shown[0], []
    for method in shown:
        own = found.responses[method.slot]
        count = mean_of(list(found.by_problem(method.slot).values()))
        change = found.change(base.slot, method.slot) if method is not base and found.graded else None
        rows.append([
            Cell(method.name),
            Cell(f"{len(own):,}", len(own)),
            Cell(f"{(total := sum(response.total for response in own)):,}", total),
            Cell(with_interval(count, 2), count.mean),
            Cell(fixed(per := density(own), 2), per),
            Cell("" if method is base else "–" if change is None else _signed(change), change and change.mean),
        ])  # fmt: skip
    header = ["method", "responses", "markers", "in a response", "per 1,000 tokens", f"change from {base.name}"]
    note = (
        f"Counted in {found.where}. In brackets: 95 % intervals over problems. No relative change is given where "
        f"{base.name} has fewer than {LEAST} markers in all."
    )
    return Table("markers", "Markers", header, rows, note, slots=[method.slot for method in shown])


def _signed(change: Estimate) -> str:
    return with_interval([100 * value for value in change], sign=True) + " %"


def _one(method: Method, change: Estimate) -> Series:
    return Series(method.name, method.slot, [(0.0, change.mean)], [change.low], [change.high])


def _bars(
    methods: Sequence[Method], values: Mapping[int, Mapping[str, float | None]], categories: Sequence[str]
) -> list[Series]:
    """Return the bars of each method: 0 for a category that it lacks, no bar where the value is None."""
    return [
        Series(
            method.name,
            method.slot,
            [(float(x), y) for x, name in enumerate(categories) if (y := own.get(name, 0.0)) is not None],
        )
        for method in methods
        if (own := values.get(method.slot))
    ]
