"""The table of docs/evidence/index.md and those of the README; `python results/tables.py index` prints them."""

import json
from statistics import fmean, stdev
from typing import Any

from records import HERE, evaluated_models, read_document
from summaries import SEEDS, Evaluation, load_evaluation, with_interval

from opasd.evaluation.statistics import estimate, paired_difference
from opasd.rounding import per_cent
from opasd.rounding import with_interval as with_bounds

ROWS = {
    "arithmetic, 0.5B": "arithmetic/objectives",
    "GSM8K, 0.5B": "gsm8k/objectives",
    "MATH-500, 0.5B": "math/objectives",
    "embedded, 1.9 M": "lab/methods",
}
RUNS = {"OPSD": "opsd", "OPASD": "opasd", "attention alone": "attention", "pointwise": "opsd-pointwise"}
OTHERS = {
    ("GSM8K, 0.5B", "attention alone"): ("gsm8k/controls", "gsm8k/objectives"),
    ("embedded, 1.9 M", "OPSD"): ("opsd-per-token",),
}
"""Records in another place, and runs of another name."""
GREEDY = {
    "arithmetic, 0.5B": "arithmetic/greedy",
    "arithmetic, 1.5B": "arithmetic/greedy-larger",
    "GSM8K, 0.5B": "gsm8k/greedy-0.5b",
    "GSM8K, 1.5B": "gsm8k/greedy",
    "MATH-500, 0.5B": "math/greedy",
}
"""Where the base's greedy answers are, of the tasks that have them."""
PROBED = ("arithmetic", "math", "lab")


def of_seeds(task: str, method: str) -> list[Evaluation]:
    """Return a method's evaluations, one a seed."""
    other = OTHERS.get((task, method), ())
    sweeps = [name for name in other if "/" in name] or [ROWS[task]]
    run = next((name for name in other if "/" not in name), RUNS[method])
    names = [f"{run}-seed-{seed}" for seed in SEEDS]
    return [load_evaluation(sweep, name) for sweep in sweeps for name in names if name in evaluated_models(sweep)]


def demo() -> dict[str, Any]:
    """Return what `opasd demo` wrote, by model: the verdicts and the mistakes."""
    return json.loads((HERE / "lab/demo.json").read_text(encoding="utf-8"))["models"]


def accuracies(task: str, method: str) -> list[float]:
    return [100 * fmean(model.shares().values()) for model in of_seeds(task, method)]


def mean(task: str, method: str) -> float:
    return fmean(accuracies(task, method))


def greedy(task: str) -> str:
    """Return the base's accuracy with the likeliest tokens, where it was measured."""
    if sweep := GREEDY.get(task):
        return f"{100 * fmean(load_evaluation(sweep, 'base-greedy').shares().values()):.1f}"
    return f"{100 * fmean(demo()['base, greedy']['correct']):.1f}" if task == "embedded, 1.9 M" else "–"


def base(task: str) -> str:
    return with_interval(list(load_evaluation(ROWS[task], "base").shares().values()))


def cell(task: str, method: str) -> str:
    """Return the mean and the sample standard deviation over the seeds."""
    if (task, method) == ("embedded, 1.9 M", "pointwise"):  # at another rate
        return ""
    found = accuracies(task, method)
    return f"{fmean(found):.1f} ± {stdev(found):.1f}" if len(found) > 1 else ""


def rows() -> dict[str, list[str]]:
    """Return the cells of the page's rows with several seeds: base, greedy, then as in RUNS."""
    return {task: [base(task), greedy(task), *(cell(task, method) for method in RUNS)] for task in ROWS}


def readme_rows() -> list[str]:
    """Return the rows of the README's table of results: means over the seeds. The embedded model has the demo's."""
    rows = []
    for task in (name for name in ROWS if not name.startswith("embedded")):
        untrained = 100 * fmean(load_evaluation(ROWS[task], "base").shares().values())
        rows.append(f"| {task} | {untrained:.1f} | {mean(task, 'OPSD'):.1f} | {mean(task, 'OPASD'):.1f} |")
    return rows


def demo_rows(*, whole: bool) -> list[str]:
    """Return the rows of the table of the demo in docs/lab.md, or its first columns for the README."""
    models, rows = demo(), []
    for name, model in models.items():
        gain = paired_difference(model["correct"], models["base"]["correct"])
        shares = [f"{share:.1f}" for share in model["mistakes"].values()]
        against = "" if name == "base" else with_bounds(map(per_cent, gain), sign=True)
        accuracy = with_bounds(map(per_cent, estimate(model["correct"])))
        cells = [accuracy, against, *shares] if whole else [accuracy, *shares[:2]]
        rows.append(f"| {name} | {' | '.join(cells)} |".replace("|  |", "| |"))
    return rows


def probe_row(task: str) -> str:
    """Return what a task's probe says, in per cent of pairs: the preference, and what the own reference adds to it."""
    summary = read_document(f"{task}/probe/probe.json")["summary"]
    names = {"preference": False, "own_adds": True, "own_adds_before_the_end": True}
    cells = [
        with_bounds([per_cent(summary[name][bound]) for bound in ("mean", "low", "high")], 0, sign=sign)
        for name, sign in names.items()
    ]
    return f"| {task} | {' | '.join(cells)} |"


def print_index() -> None:
    for task, cells in rows().items():
        print(f"| {task} | {' | '.join(cells)} |")
    for task, sweep in GREEDY.items():
        shares = list(load_evaluation(sweep, "base-greedy").shares().values())
        print(f"greedy, {task}: {with_bounds(map(per_cent, estimate(shares)))}")
    print()
    print("\n".join([*readme_rows(), "", *demo_rows(whole=False), "", *demo_rows(whole=True)]))
    print()
    for task in PROBED:
        print(probe_row(task))
