"""The stubborn model of lookup: settings, speed and control; `python results/tables.py stubborn` prints them.

Rollouts are those of steps 6 to 12, where the arms differ: fresh problems, temperature 1, 32 a step. Differences are
paired by seed, and their intervals are Student's t over seeds.
"""

from functools import cache
from statistics import fmean, stdev

from records import training_runs
from summaries import load_evaluation, training_steps
from tables_lookup import Figures, difference, gains, rollouts_of, validated
from tables_planned import accuracy

SWEEP, CONTROL = "lookup/stubborn", "lookup/permuted-cpu"
ARMS = {
    **{f"opsd-{rate}": ("OPSD", rate, "–") for rate in ("1e-3", "2e-3", "4e-3")},
    **{
        f"{place}-{ratio}-{rate}": (label, rate, ratio)
        for place, label in {"last": "OPASD, last layer", "look": "OPASD, layers 4 and 5"}.items()
        for ratio, rate in (("0.3", "1e-3"), ("0.1", "2e-3"), ("0.3", "2e-3"), ("1", "2e-3"))
    },
    "shuffled-0.3-2e-3": ("OPASD, last layer, `shuffle`", "2e-3", "0.3"),
}
"""A run, what it is, its rate and the ratio of its gradients."""
CONTROLS = {
    "opsd": "OPSD",
    "look": "OPASD, last layer, λ = 7",
    "permuted": "the same with a permuted target, λ = 4",
}
EARLY = slice(5, 12)
ELSEWHERE = {
    "arithmetic 0.5B, solution": (("arithmetic/objectives", "arithmetic/seeds"), "opasd", "opsd"),
    "arithmetic 1.5B, 2,048 tokens, solution": (("arithmetic/thousands",), "opasd", "opsd"),
    "GSM8K 0.5B, solution": (("gsm8k/objectives",), "opasd", "opsd"),
    "MATH 0.5B, solution": (("math/objectives",), "opasd", "opsd"),
    "embedded, solution": (("lab/methods",), "opasd", "opsd-per-token"),
    "embedded, final answer": (("lab/answer",), "opasd", "opsd"),
    "lookup, solution": (("lookup/pilot",), "opasd-solution", "opsd-solution"),
    "lookup, pointers, last layer": (("lookup/objectives",), "opasd-last", "opsd"),
    "lookup, pointers, layers 4 and 5": (("lookup/objectives",), "opasd-look", "opsd"),
}
"""A task and its reference: sweeps, and the runs that are compared, with the same rate and token loss."""


@cache
def early(arm: str, sweep: str) -> Figures:
    """Return the accuracy of the rollouts in which the arms differ, by seed."""
    return rollouts_of(arm, sweep, EARLY)


def rows() -> list[list[str]]:
    """Return the cells by setting: test problems, validation, early rollouts and their lead over OPSD at the rate."""
    base = [accuracy(load_evaluation(SWEEP, "base"))]
    table = [["base", "–", "–", *base, "", "", ""]]
    for arm, words in ARMS.items():
        own = early(arm, SWEEP)
        tests = [100 * fmean(load_evaluation(SWEEP, f"{arm}-seed-{seed}").shares().values()) for seed in own]
        lead = difference(own, early(f"opsd-{words[1]}", SWEEP)) if words[0] != "OPSD" else ""
        shown = [f"{fmean(tests):.1f} ± {stdev(tests):.1f}", f"{fmean(validated(arm, SWEEP).values()):.1f}"]
        table.append([*words, *shown, f"{fmean(own.values()):.1f}", lead])
    return table


def control_rows() -> list[list[str]]:
    """Return the cells of the control: early rollouts, and their lead over OPSD and over the target in its place."""
    if not any(name.startswith("permuted-") for name in training_runs(CONTROL)):
        return []
    table = []
    for arm, label in CONTROLS.items():
        own = early(arm, CONTROL)
        leads = [difference(own, early(other, CONTROL)) if other != arm else "" for other in ("opsd", "look")]
        table.append([label, str(len(own)), f"{fmean(own.values()):.1f}", leads[0], leads[1] if arm != "opsd" else ""])
    return table


def elsewhere_rows() -> list[list[str]]:
    """Return the cells of OPASD − OPSD in the rollouts of steps 6 to 10 and 11 to 20, by task."""
    table = []
    for label, (sweeps, *arms) in ELSEWHERE.items():
        windows = []
        for window in (slice(5, 10), slice(10, 20)):
            pair = [
                {seed: one for sweep in sweeps for seed, one in rollouts_of(arm, sweep, window).items()} for arm in arms
            ]
            windows.append(pair)
        table.append([label, str(len(gains(*windows[0]))), *(difference(*pair) for pair in windows)])
    return table


def divergences() -> str:
    """Return the control's divergences over the first three steps and the last three."""
    parts = []
    for arm, term in (("look", "term/look"), ("permuted", "term/look_permuted")):
        seeds = [training_steps(CONTROL, f"{arm}-seed-{seed}") for seed in early(arm, CONTROL)]
        ends = [fmean(row[term] for steps in seeds for row in steps[part]) for part in (slice(3), slice(-3, None))]
        parts.append(f"{term} {ends[0]:.2f} → {ends[1]:.2f}")
    return ", ".join(parts)


def needed_mass(arm: str = "last-0.3-2e-3") -> str:
    """Return the needed statements' share of the student's attention and of the target's in the first three steps."""
    seeds = [training_steps(SWEEP, f"{arm}-seed-{seed}")[:3] for seed in early(arm, SWEEP)]
    return " and ".join(
        f"{fmean(row[f'attention/{metric}'] for steps in seeds for row in steps):.3f}"
        for metric in ("needed_mass", "needed_target")
    )


def print_stubborn() -> None:
    for table in (rows(), control_rows(), elsewhere_rows()):
        for cells in table:
            print(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
        print()
    print(f"needed statements, student and target: {needed_mass()}")
    if control_rows():
        print(divergences())
