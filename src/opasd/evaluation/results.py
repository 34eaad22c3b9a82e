"""Samples ─► results: what every target reached on every benchmark, with intervals, and how the targets differ.

`build` makes the mapping that is `evaluation.json`; docs/evaluation.md describes it. `table` is what a person reads.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean, median
from typing import Any

from opasd.evaluation.samples import Key, Outcome
from opasd.evaluation.scores import maj_at_k, pass_at_k, votes
from opasd.evaluation.statistics import estimates, macro_average, paired_difference
from opasd.grading.verdict import VERDICTS
from opasd.rounding import fixed, per_cent

SCHEMA = 1
COMPARED = ("avg", "pass", "maj", "tokens")
"""Measures whose differences between targets are given; Pass and Maj at all samples."""

Outcomes = Mapping[str, Sequence[Outcome]]
"""By problem, in the order of the benchmark: the outcomes of its samples."""


def measure(outcomes: Outcomes, per_problem: Mapping[str, list[float]]) -> dict[str, Any]:
    """One target on one benchmark at one budget; `per_problem` is `by_problem` of the same."""
    samples = len(next(iter(outcomes.values())))
    found = dict(zip(per_problem, estimates(list(per_problem.values())), strict=True))
    every = list(chain.from_iterable(outcomes.values()))
    counts = Counter(outcome.verdict for outcome in every)
    return {
        "problems": len(outcomes),
        "samples": samples,
        "verdicts": {verdict: counts[verdict] for verdict in VERDICTS},
        "avg": found["avg"]._asdict(),
        "pass": {str(k): found[f"pass@{k}"]._asdict() for k in range(1, samples + 1)},
        "maj": {str(k): found[f"maj@{k}"]._asdict() for k in range(1, samples + 1)},
        "tokens": found["tokens"]._asdict() | {"median": float(median(outcome.tokens for outcome in every))},
        "truncated": found["truncated"]._asdict(),
        "per_problem": {
            problem: {
                "correct": sum(o.verdict == "correct" for o in several),
                "tokens": fmean(o.tokens for o in several),
            }
            for problem, several in outcomes.items()
        },
    }


def by_problem(outcomes: Outcomes) -> dict[str, list[float]]:
    """Every measure, as one number for each problem."""
    columns: dict[str, list[float]] = {}
    for several in outcomes.values():
        n, correct = len(several), sum(outcome.verdict == "correct" for outcome in several)
        ballots = votes([o.verdict for o in several], [o.answer for o in several])
        row = {
            "avg": correct / n,
            "tokens": fmean(outcome.tokens for outcome in several),
            "truncated": fmean(outcome.truncated for outcome in several),
        }
        row |= {f"pass@{k}": pass_at_k(correct, n, k) for k in range(1, n + 1)}
        row |= {f"maj@{k}": maj_at_k(ballots, n, k) for k in range(1, n + 1)}
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def build(found: Mapping[tuple[str, str, int], Outcomes]) -> dict[str, Any]:
    """Results, averages over benchmarks and differences, of outcomes by (target, benchmark, budget).

    Differences are between each target and the first one, on the same problems; averages are over the benchmarks that
    all targets have."""
    targets = list(dict.fromkeys(target for target, _, _ in found))
    budgets = list(dict.fromkeys(budget for _, _, budget in found))
    benchmarks = list(dict.fromkeys(benchmark for _, benchmark, _ in found))
    shared = [name for name in benchmarks if all((t, name, k) in found for t in targets for k in budgets)]
    columns = {place: by_problem(outcomes) for place, outcomes in found.items()}
    results = [
        {"target": place[0], "benchmark": place[1], "budget": place[2]} | measure(outcomes, columns[place])
        for place, outcomes in found.items()
    ]
    averages, differences = [], []
    for budget in budgets:
        for target in targets:
            sets = [columns[target, name, budget]["avg"] for name in shared]
            if len(sets) > 1:
                mean = macro_average(sets)._asdict()
                averages.append({"target": target, "budget": budget, "benchmarks": shared, "avg": mean})
            if target != targets[0]:
                differences += _differences(columns, target, targets[0], benchmarks, budget)
                if len(sets) > 1:
                    gaps = [_gap(columns, target, targets[0], name, budget, "avg") for name in shared]
                    place = {"target": target, "against": targets[0], "benchmark": None, "budget": budget}
                    differences.append(place | {"avg": macro_average(gaps)._asdict()})
    return {"results": results, "averages": averages, "differences": differences}


Columns = Mapping[tuple[str, str, int], Mapping[str, list[float]]]


def _differences(columns: Columns, target: str, first: str, names: Sequence[str], budget: int) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        if (target, name, budget) in columns and (first, name, budget) in columns:
            most = max(int(c.partition("@")[2]) for c in columns[first, name, budget] if c.startswith("pass@"))
            measures = {short: f"{short}@{most}" if short in ("pass", "maj") else short for short in COMPARED}
            gaps = {
                short: paired_difference(
                    columns[target, name, budget][long], columns[first, name, budget][long]
                )._asdict()
                for short, long in measures.items()
            }
            rows.append({"target": target, "against": first, "benchmark": name, "budget": budget} | gaps)
    return rows


def _gap(columns: Columns, target: str, first: str, name: str, budget: int, measure: str) -> list[float]:
    pairs = zip(columns[target, name, budget][measure], columns[first, name, budget][measure], strict=True)
    return [mine - theirs for mine, theirs in pairs]


def gather(
    samples: Iterable[tuple[Key, Mapping[int, Outcome]]], problems: Mapping[str, Sequence[str]], count: int
) -> dict[tuple[str, str, int], dict[str, list[Outcome]]]:
    """Outcomes by (target, benchmark, budget), of those that have every sample of every problem."""
    by_place: dict[tuple[str, str], dict[tuple[str, int], Mapping[int, Outcome]]] = {}
    for key, outcomes in samples:
        by_place.setdefault((key.target, key.benchmark), {})[key.problem, key.sample] = outcomes
    found: dict[tuple[str, str, int], dict[str, list[Outcome]]] = {}
    for (target, benchmark), several in by_place.items():
        wanted = [(problem, number) for problem in problems.get(benchmark, ()) for number in range(count)]
        if not wanted or any(place not in several for place in wanted):
            continue
        for budget in next(iter(several.values())):
            found[target, benchmark, budget] = {
                problem: [several[problem, number][budget] for number in range(count)]
                for problem in problems[benchmark]
            }
    return found


def table(evaluation: Mapping[str, Any]) -> str:
    """The results as a Markdown table, in per cent with 95 % intervals."""
    results = evaluation["results"]
    if not results:
        return ""
    several = len({result["budget"] for result in results}) > 1
    gaps = {(d["target"], d["benchmark"], d["budget"]): d["avg"] for d in evaluation["differences"]}
    first = results[0]["target"]
    samples = results[0]["samples"]
    header = ["benchmark", *(["budget"] if several else []), "target", f"Avg@{samples}", f"against {first}"]
    header += [f"Pass@{samples}", f"Maj@{samples}"] * (samples > 1) + [
        "tokens",
        "median",
        "truncated",
        "no answer",
        "failed",
    ]
    if not gaps:
        header.remove(f"against {first}")
    rows = []
    for result in results:
        place = (result["target"], result["benchmark"], result["budget"])
        verdicts, count = result["verdicts"], result["problems"] * result["samples"]
        row = [
            result["benchmark"],
            *([f"{result['budget']:,}"] if several else []),
            result["target"],
            _points(result["avg"]),
        ]
        row += [_points(gaps[place], sign=True) if place in gaps else ""] * bool(gaps)
        if samples > 1:
            row += [_points(result["pass"][str(samples)]), _points(result["maj"][str(samples)])]
        row += [fixed(result["tokens"]["mean"], 1), fixed(result["tokens"]["median"], 0)]
        row += [fixed(per_cent(result["truncated"]["mean"]), 1), fixed(per_cent(verdicts["no_answer"] / count), 1)]
        rows.append([*row, str(verdicts["grader_failed"])])
    for average in evaluation["averages"]:
        place = (average["target"], None, average["budget"])
        row = ["average", *([f"{average['budget']:,}"] if several else []), average["target"], _points(average["avg"])]
        row += [_points(gaps[place], sign=True) if place in gaps else ""] * bool(gaps)
        rows.append([*row, *([""] * (len(header) - len(row)))])
    return _markdown(header, rows)


def _points(value: Mapping[str, float], *, sign: bool = False) -> str:
    """Percentage points: mean [low, high]."""
    mean, low, high = (fixed(per_cent(value[part]), 1, sign=sign) for part in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, *rows)]
    lines.insert(1, ["-" * width for width in widths])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
