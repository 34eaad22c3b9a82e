"""The stubborn model of lookup: settings, speed and control; `python results/tables.py stubborn` prints them.

Rollouts are those of steps 6 to 12, where the arms differ: fresh problems, temperature 1, 32 a step. Differences are
paired by seed, and their intervals are Student's t over seeds.
"""

from functools import cache
from statistics import fmean, stdev

from records import read_document
from summaries import load_evaluation, training_steps
from tables_lookup import Figures, difference, gains, rollouts, rollouts_of, validated
from tables_planned import accuracy

SWEEP, CONTROL, PILOT = "lookup/stubborn", "lookup/permuted-cpu", "lookup/permuted-pilot-cpu"
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
    "permuted": "target permuted, λ = 4",
    "mirrored": "target mirrored, λ = 4",
}
TERMS = {"look": "term/look", "permuted": "term/look_permuted", "mirrored": "term/look_mirrored"}
EARLY = slice(5, 12)
ELSEWHERE = {
    "arithmetic 0.5B, solution": (("arithmetic/objectives", "arithmetic/seeds"), "opasd", "opsd"),
    "arithmetic 1.5B, 2,048 tokens, solution": (("arithmetic/thousands",), "opasd", "opsd"),
    "GSM8K 0.5B, solution": (("gsm8k/objectives",), "opasd", "opsd"),
    "MATH 0.5B, solution": (("math/objectives",), "opasd", "opsd"),
    "embedded, solution": (("lab/methods",), "opasd", "opsd-per-token"),
    "embedded, final answer": (("lab/answer",), "opasd", "opsd"),
    "lookup, solution, 1e-3, ratio 1, layers 4 and 5": (("lookup/pilot",), "opasd-solution", "opsd-solution"),
    "lookup, pointers, 1e-3, ratio 1, layers 4 and 5": (("lookup/again",), "look-1-1e-3", "opsd-1e-3"),
    "lookup, pointers, 1e-3, ratio 1, last layer": (("lookup/again",), "last-1-1e-3", "opsd-1e-3"),
    "lookup, pointers, 2e-3, ratio 0.1, layers 4 and 5": (("lookup/objectives",), "opasd-look", "opsd"),
    "lookup, pointers, 2e-3, ratio 0.1, last layer": (("lookup/objectives",), "opasd-last", "opsd"),
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
    """Return the cells of the control: early rollouts, the lead over OPSD and over the target in place, divergence."""
    table = []
    for arm, label in CONTROLS.items():
        if own := early(arm, CONTROL):
            over = [difference(own, early(other, CONTROL)) for other in ("opsd", "look")]
            shown = {"opsd": ["", ""], "look": [over[0], ""]}.get(arm, over)
            nats = f"{training_steps_of(arm, 'token/divergence', EARLY):.3f}"
            table.append([label, str(len(own)), f"{fmean(own.values()):.1f}", *shown, nats])
    return table


def pretrained() -> dict[str, float]:
    """Return what the stubborn model's record says: its seconds, and what is right in each context, in per cent."""
    record = read_document(f"{SWEEP}/TRAINING.json")
    shares = {name: 100 * own["accuracy"]["value"] for name, own in record["measured"].items() if isinstance(own, dict)}
    return {"seconds": record["training"]["seconds"], **shares}


def moved_by_shuffle() -> list[str]:
    """Return which share of the target `shuffle` moves, in per cent: the pilot's model, then the stubborn one."""
    arms = ("lookup/pilot", "opasd-shuffled-seed-1"), (SWEEP, "shuffled-0.3-2e-3-seed-1")
    return [f"{100 * training_steps(*arm)[0]['attention/solution_mass']:.1f} %" for arm in arms]


def larger_rate_elsewhere() -> str:
    """Return what the first model's OPSD at 4e-3 has in the rollouts of steps 11 to 20."""
    return f"{fmean(rollouts_of('opsd-4e-3', 'lookup/search', slice(10, 20)).values()):.1f} %"


def pilot_control() -> str:
    """Return the lead of a permuted target over OPSD at the pilot's rate, in its measure."""
    return difference(*(rollouts(arm, PILOT) for arm in ("permuted", "opsd")))


def training_steps_of(arm: str, metric: str, window: slice, sweep: str = CONTROL) -> float:
    """Return a metric's mean over some steps of all seeds."""
    return fmean(
        row[metric] for seed in early(arm, sweep) for row in training_steps(sweep, f"{arm}-seed-{seed}")[window]
    )


def elsewhere_rows() -> list[list[str]]:
    """Return the cells of OPASD − OPSD in the rollouts of steps 6 to 10, 11 to 20 and 21 to 40, by task."""
    table = []
    for label, (sweeps, *arms) in ELSEWHERE.items():
        windows = []
        for window in (slice(5, 10), slice(10, 20), slice(20, 40)):
            pair = [
                {seed: one for sweep in sweeps for seed, one in rollouts_of(arm, sweep, window).items()} for arm in arms
            ]
            windows.append(pair)
        table.append([label, str(len(gains(*windows[0]))), *(difference(*pair) for pair in windows)])
    return table


def divergences() -> dict[str, str]:
    """Return the control's divergences from its targets, over the first three steps and the last three."""
    ends = slice(3), slice(-3, None)
    return {
        arm: " → ".join(f"{training_steps_of(arm, term, part):.2f}" for part in ends)
        for arm, term in TERMS.items()
        if early(arm, CONTROL)
    }


def needed_mass(arm: str) -> str:
    """Return the share of what a step copies in the target and in the student's attention, in the first three steps."""
    metrics = ("needed_target", "needed_mass")
    return " and ".join(f"{training_steps_of(arm, f'attention/{own}', slice(3), SWEEP):.3f}" for own in metrics)


def in_the_plans_window() -> list[str]:
    """Return the lead over OPSD in the rollouts of steps 11 to 20, at a ratio of 1: layers 4 and 5, then the last."""
    own = [rollouts_of(arm, SWEEP, slice(10, 20)) for arm in ("look-1-2e-3", "last-1-2e-3", "opsd-2e-3")]
    return [difference(one, own[2]) for one in own[:2]]


def against_the_larger_rate() -> str:
    """Return how far OPSD at 4e-3 is ahead of the fastest OPASD in early rollouts."""
    return difference(early("opsd-4e-3", SWEEP), early("look-1-2e-3", SWEEP))


def late(arm: str) -> str:
    """Return OPASD − OPSD of the first model in the rollouts of steps 31 to 40."""
    own, opsd = (rollouts_of(one, "lookup/objectives", slice(30, 40)) for one in (arm, "opsd"))
    return difference(own, opsd)


def print_stubborn() -> None:
    for table in (rows(), control_rows(), elsewhere_rows()):
        for cells in table:
            print(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
        print()
    for arm in ("last-0.3-2e-3", "look-0.3-2e-3"):
        print(f"what a step copies, {arm}, target and student: {needed_mass(arm)}")
    print(f"ratio 1, steps 11 to 20: {in_the_plans_window()}")
    print(f"OPSD at 4e-3 against layers 4 and 5 at a ratio of 1: {against_the_larger_rate()}")
    print(f"first model, steps 31 to 40: look {late('opasd-look')}, last {late('opasd-last')}")
    print(divergences())
    print(f"pretraining: {pretrained()}")
    print(f"moved by shuffle: {moved_by_shuffle()}")
    print(f"first model, OPSD at 4e-3, steps 11 to 20: {larger_rate_elsewhere()}")
    print(f"pilot's rate, target permuted - OPSD: {pilot_control()}, {len(rollouts('permuted', PILOT))} seeds")
