"""Two pictures of docs/tutorials/goes-wrong.md: what ρ depends on, and an attention loss too weak to be seen."""

from summaries import training_steps

from opasd.report.figure import Figure, Series

MASSES = {
    "embedded, solution": ("lab/methods", "opasd-seed-1"),
    "embedded, answer": ("lab/answer", "opasd-seed-1"),
    "arithmetic, solution": ("arithmetic/objectives", "opasd-seed-1"),
    "arithmetic, problem": ("arithmetic/objectives", "opasd-problem-seed-1"),
    "lookup, pointers": ("lookup/pilot", "opasd-look-seed-1"),
}
"""Runs by task and by what the teacher sees; the last of arithmetic has `support: problem`."""
WEIGHTS = {
    "λ = 0.25": ("arithmetic/ablations", "lambda-0.25"),
    "λ = 1": ("arithmetic/ablations", "lambda-1"),
    "λ = 5": ("arithmetic/ablations", "lambda-5"),
    "attention alone": ("arithmetic/objectives", "attention-seed-1"),
}
"""Runs by the weight of the attention loss."""


def solution_mass() -> Figure:
    """ρ over the steps: it is decided by the task and the reference, and training hardly moves it."""
    return Figure(
        "solution-mass", "ρ, the share of attention that the teacher pays to the reference", "line", "step", "ρ",
        _curves(MASSES, "attention/solution_mass"), from_zero=True,
    )  # fmt: skip


def attention_by_weight() -> Figure:
    """The attention divergence over the steps, by λ."""
    return Figure(
        "attention-by-weight", "Arithmetic 0.5B: attention divergence by λ", "line", "step", "nats",
        _curves(WEIGHTS, "attention/divergence"), from_zero=True,
    )  # fmt: skip


def _curves(runs: dict[str, tuple[str, str]], metric: str) -> list[Series]:
    """Return a line for each run, the mean of five steps at a time."""
    series = []
    for slot, (label, where) in enumerate(runs.items()):
        values = [row[metric] for row in training_steps(*where) if metric in row]
        blocks = [values[start : start + 5] for start in range(0, len(values), 5)]
        points = [(5.0 * n + 3, sum(block) / len(block)) for n, block in enumerate(blocks)]
        series.append(Series(label, slot, points, marks=True))
    return series
