"""The test problems of lookup and the ledger, as far as the planned sweeps (1, 2 and 5) have run.

`python results/tables.py tested` prints a row for each arm whose sweep is in the records. Differences are paired by
seed and problem: first with Student's interval over seeds, then with the package's over problems.
"""

import re
from functools import cache
from statistics import fmean, stdev
from typing import Any

from records import HERE, evaluated_models, read_rows
from summaries import Evaluation, load_evaluation, training_steps
from tables_lookup import over_seeds
from tables_planned import accuracy, against

from opasd.data.made.lookup import Puzzle, make_puzzles
from opasd.rounding import with_interval

Arm = tuple[str, str, str, str]
"""A sweep, a run, what it is, and the run that it is compared with, of the same sweep where no other is named."""
LOOKUP: tuple[Arm, ...] = (
    ("lookup/objectives", "base", "base", ""),
    ("lookup/objectives", "base-greedy", "base, greedy", ""),
    ("lookup/objectives", "opsd", "OPSD", ""),
    ("lookup/objectives", "opasd-last", "OPASD, last layer", "opsd"),
    ("lookup/objectives", "opasd-look", "OPASD, layers 4 and 5", "opsd"),
    ("lookup/head", "head-4.1", "OPASD, head 4.1", "lookup/objectives/opsd"),
    ("lookup/head", "head-5.2", "OPASD, head 5.2", "lookup/objectives/opsd"),
    ("lookup/controls", "opasd-shuffled", "OPASD, layers 4 and 5, `shuffle`", "lookup/objectives/opsd"),
    ("lookup/controls", "attention", "attention alone, layers 4 and 5", "lookup/objectives/opsd"),
    ("lookup/controls", "opsd-clip", "OPSD, per-token clip", "lookup/objectives/opsd"),
    ("lookup/controls", "opasd-look-clip", "OPASD, layers 4 and 5, per-token clip", "opsd-clip"),
    ("lookup/baselines", "sft", "SFT on the solutions", "lookup/objectives/opsd"),
    ("lookup/baselines", "rejection", "rejection sampling", "lookup/objectives/opsd"),
    ("lookup/references", "opsd-solution", "OPSD, solution", "lookup/objectives/opsd"),
    ("lookup/references", "opasd-solution", "OPASD, layers 4 and 5, solution", "opsd-solution"),
    ("lookup/references", "opasd-both", "OPASD, tokens: solution; attention: pointers", "opsd-solution"),
    ("lookup/references", "opasd-wrong", "OPASD, tokens: solution; attention: wrong pointers", "opsd-solution"),
)


def on_a_cpu(arm: Arm) -> Arm:
    """Return an arm as it is in the records of the runs that had no GPU."""
    sweep, run, label, other = arm
    place, slash, name = other.rpartition("/")
    return f"{sweep}-cpu", run, label, f"{place}-cpu/{name}" if slash else other


TESTED: dict[str, tuple[Arm, ...]] = {
    "lookup": LOOKUP,
    "lookup, on a CPU": tuple(map(on_a_cpu, LOOKUP)),
    "lookup, evaluated with thinking": (
        ("lookup/thinking", "base", "base", ""),
        ("lookup/thinking", "opsd", "OPSD", "base"),
        ("lookup/thinking", "opasd-last", "OPASD, last layer", "opsd"),
        ("lookup/thinking-cpu", "opsd-thinking", "OPSD, rollouts with thinking", "lookup/thinking/base"),
        ("lookup/thinking-cpu", "sft", "SFT on the solutions", "lookup/thinking/base"),
        ("lookup/thinking-cpu", "rejection", "rejection sampling", "lookup/thinking/base"),
    ),
    "ledger": (
        ("ledger/objectives", "base", "base", ""),
        ("ledger/objectives", "opsd", "OPSD, entry numbers", ""),
        ("ledger/objectives", "opasd-last", "OPASD, entry numbers, last layer", "opsd"),
        ("ledger/objectives", "opasd-look", "OPASD, entry numbers, layers 15 and 16", "opsd"),
    ),
}


LOOK_ARMS = ("opasd-last", "opasd-look")
AFTER_THINKING = (
    ("lookup/thinking", "opasd-last"),
    ("lookup/thinking-cpu", "sft"),
    ("lookup/thinking-cpu", "rejection"),
)


def models(sweep: str, run: str) -> dict[int, Evaluation]:
    """Return a run's evaluations by seed; 0 stands for a run without one."""
    there = evaluated_models(sweep) if any((HERE / sweep.partition("/")[0]).glob("*.tar.xz")) else []
    names = {name: name.rpartition("-seed-") for name in there}
    found = {int(seed): name for name, (own, _, seed) in names.items() if own == run}
    return {seed: load_evaluation(sweep, name) for seed, name in (found or ({0: run} if run in there else {})).items()}


def both_of(sweep: str, run: str, other: str) -> list[tuple[Evaluation, Evaluation]]:
    """Return the evaluations of a run and of the other, of the same sweep if it names none, for each seed of both.

    A run without a seed, such as the base, is the other of every seed."""
    place, _, name = other.rpartition("/")
    own, compared = models(sweep, run), models(place or sweep, name) if other else {}
    pairs = [(own[seed], compared.get(seed, compared.get(0))) for seed in own]
    return [(model, against) for model, against in pairs if against]


def rows(task: str) -> list[str]:
    """Return the rows of a task: arm, seeds, accuracy, and the difference over seeds and over problems."""
    table = []
    for sweep, run, label, other in TESTED[task]:
        own = models(sweep, run)
        if not own:
            continue
        means = [100 * fmean(model.shares().values()) for model in own.values()]
        shown = f"{fmean(means):.1f} ± {stdev(means):.1f}" if len(means) > 1 else accuracy(*own.values())
        cells = [label, str(len(own)) if own.keys() != {0} else "–", shown]
        both = both_of(sweep, run, other)
        differences = [100 * fmean(first.gains(second).values()) for first, second in both]
        over = with_interval(over_seeds(differences), sign=True) if len(differences) > 1 else ""
        table.append(f"| {' | '.join([*cells, over, against(*zip(*both, strict=True)) if both else ''])} |")
    return [row.replace("|  |", "| |").replace("|  |", "| |") for row in table]


def thought_rows() -> list[str]:
    """Return the rows of answers with thinking, in per cent: what it is like and what follows it."""
    table = []
    kinds = ("thinks", "closed", "thinks right", "thinks right, answers wrong", "thinks wrong, answers right")
    for sweep, run, label, _ in TESTED["lookup, evaluated with thinking"]:
        seeds = [[thought(row) for row in model.rows] for model in models(sweep, run).values()]
        shares = [fmean(100 * fmean(kind in own for own in answers) for answers in seeds) for kind in kinds if seeds]
        table += [f"| {' | '.join([label, *(f'{share:.1f}' for share in shares)])} |"] if seeds else []
    return table


def thought(row: dict[str, Any]) -> set[str]:
    """Return what holds of an answer: its thinking is right if it takes up the needed statements first, in order."""
    thinking, closed, _ = row["text"].partition("</think>")
    thinks = {"thinks"} if thinking.startswith("<think>") else set()
    if not (thinks and closed):
        return thinks
    puzzle = puzzles()[row["problem"]]
    needed = [statement.line(puzzle.item).strip() for statement in puzzle.needed]
    plain = re.sub(r"\bplus\b", "+", re.sub(r"\bminus\b", "-", thinking.removeprefix("<think>")))
    taken_up = [part.strip() for part in re.split(r"[.\n]", plain) if part.strip()]
    right, answered = taken_up[: len(needed)] == needed, row["verdict"] == "correct"
    kinds = {"closed": True, "thinks right": right, "thinks right, answers wrong": right and not answered}
    kinds["thinks wrong, answers right"] = answered and not right
    return thinks | {kind for kind, holds in kinds.items() if holds}


@cache
def puzzles() -> dict[str, Puzzle]:
    """Return the test problems by their names."""
    return {puzzle.id: puzzle for puzzle in make_puzzles("test", 1200)}


def term_over_training(sweep: str, run: str, term: str) -> str:
    """Return a loss term over a run's first three steps and over its last eight, a mean over the seeds."""
    seeds = [training_steps(sweep, f"{run}-seed-{seed}") for seed in models(sweep, run)]
    ends = [fmean(fmean(row[term] for row in steps[part]) for steps in seeds) for part in (slice(3), slice(-8, None))]
    return f"{term} {ends[0]:.2f} → {ends[1]:.2f}"


def by_seed(sweep: str, run: str, other: str) -> str:
    """Return a run's differences from the other, by seed, and their mean with its interval over seeds."""
    own = [100 * fmean(first.gains(second).values()) for first, second in both_of(sweep, run, other)]
    return f"{', '.join(f'{one:+.1f}' for one in own)}; mean {with_interval(over_seeds(own), sign=True)}"


def steps_11_to_20(arm: str) -> str:
    """Return what rollouts say in the middle of training: an arm's difference from OPSD in points, over seeds."""
    seeds = models("lookup/objectives", arm)
    runs = [
        [training_steps("lookup/objectives", f"{run}-seed-{seed}")[10:20] for run in (arm, "opsd")] for seed in seeds
    ]
    own, opsd = (
        [100 * fmean(row["rollout/accuracy"] for row in steps) for steps in arms] for arms in zip(*runs, strict=True)
    )
    lead = with_interval(over_seeds([a - b for a, b in zip(own, opsd, strict=True)]), sign=True)
    return f"rollouts of steps 11 to 20 {fmean(own):.1f} and {fmean(opsd):.1f}, {lead}"


def first_five(arm: str) -> str:
    """Return an arm's difference from OPSD over the first five seeds, which ran first."""
    own = [100 * fmean(first.gains(second).values()) for first, second in both_of("lookup/objectives", arm, "opsd")]
    return with_interval(over_seeds(own[:5]), sign=True)


def run_again() -> list[str]:
    """Return the accuracy of runs that were made twice, with the same seed: the first time, then the second."""
    rows = []
    for arm in ("opsd", *LOOK_ARMS):
        for seed, model in models("lookup/objectives-again", arm).items():
            pair = models("lookup/objectives", arm)[seed], model
            rows.append(
                f"{arm}, seed {seed}: " + ", ".join(f"{100 * fmean(one.shares().values()):.1f}" for one in pair)
            )
    return rows


def needed_over_training(arm: str) -> str:
    """Return the needed statements' share of the student's attention and of the target's, over training."""
    metrics = ("attention/needed_mass", "attention/needed_target")
    return ", ".join(term_over_training("lookup/objectives", arm, metric) for metric in metrics)


def thinking_rollouts() -> dict[int, float]:
    """Return which share of the kept rollouts thinks, by step, where the student may think."""
    steps: dict[int, list[bool]] = {}
    for seed in models("lookup/thinking-cpu", "opsd-thinking"):
        for row in read_rows(f"lookup/thinking-cpu/opsd-thinking-seed-{seed}/samples.jsonl"):
            steps.setdefault(row["step"], []).append("<think>" in row["completion"])
    return {step: fmean(thinks) for step, thinks in steps.items()}


def print_tested() -> None:
    for task in TESTED:
        if table := rows(task):
            print(f"{task}\n" + "\n".join(table), end="\n\n")
    print("\n".join(thought_rows()), end="\n\n")
    for arm in LOOK_ARMS:
        print(f"{arm} - opsd by seed: {by_seed('lookup/objectives', arm, 'opsd')}; {steps_11_to_20(arm)}")
    print(needed_over_training("opasd-look"))
    print(f"first five seeds, opasd-look: {first_five('opasd-look')}")
    print("\n".join(run_again()))
    for sweep, arm in AFTER_THINKING:
        print(f"thinking, {arm} - opsd by seed: {by_seed(sweep, arm, 'lookup/thinking/opsd')}")
    for step, share in thinking_rollouts().items():
        print(f"opsd-thinking, step {step}: {100 * share:.0f} % of the kept rollouts think")
    for head in ("4.1", "5.2"):
        print(term_over_training("lookup/head-cpu", f"head-{head}", f"term/head_{head.replace('.', '_')}"))
