"""The tables of the test problems follow their records, and the pages have their rows."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from tests.results.importing import imported

EVIDENCE = Path(__file__).parents[2] / "docs/evidence"


@pytest.fixture(scope="module")
def tables():
    with imported("tables_tested") as module:
        yield module


def sweep(name: str, runs: dict[str, str]) -> dict[str, bytes]:
    """A sweep's evaluations; a text has a verdict for each problem, 1 or 0."""
    files: dict[str, bytes] = {}
    for run, verdicts in runs.items():
        answers = [
            {"benchmark": "lookup", "problem": f"test/{n}", "sample": 0, "tokens": 9, "finish_reason": "stop"}
            | {"verdict": "correct" if verdict == "1" else "wrong"}
            for n, verdict in enumerate(verdicts)
        ]
        folder = f"{name}/{run}.evaluation"
        files[f"{folder}/samples.jsonl"] = "".join(f"{json.dumps(row)}\n" for row in answers).encode()
        files[f"{folder}/settings.json"] = b"{}"
    return files


def test_the_rows_are_those_of_the_records(tables, monkeypatch):
    """Over two seeds OPASD gains 2 of 4 problems and none: 25 points, and Student's interval with 12.706."""
    runs = {"base": "1000", "opsd-seed-1": "1000", "opsd-seed-2": "1100"}
    files = sweep("objectives", {**runs, "opasd-look-seed-1": "1110", "opasd-look-seed-2": "1100"})
    files |= sweep("head", {"head-5.2-seed-2": "1111"})
    records = import_module("records")
    monkeypatch.setattr(records, "files_of", lambda task: files if task == "lookup" else {})
    import_module("summaries").load_evaluation.cache_clear()
    base, opsd, look, head = tables.rows("lookup")
    import_module("summaries").load_evaluation.cache_clear()
    assert base.startswith("| base | – | 25.0 [")
    assert opsd == "| OPSD | 2 | 37.5 ± 17.7 | | |"
    assert look.startswith("| OPASD, layers 4 and 5 | 2 | 62.5 ± 17.7 | +25.0 [−292.7, +342.7] | +25.0 [")
    assert head.startswith("| OPASD, head 5.2 | 1 | 100.0 [")
    assert tables.rows("ledger") == []


def test_the_page_has_the_rows_of_the_records(tables):
    page = (EVIDENCE / "lookup.md").read_text(encoding="utf-8")
    for task in tables.TESTED:
        for row in tables.rows(task):
            assert row in page, "run python results/tables.py tested"


def test_a_run_without_a_seed_is_the_other_of_every_seed(tables, monkeypatch):
    files = sweep("thinking", {"base": "1100", "opsd-seed-1": "1000", "opsd-seed-2": "0000"})
    monkeypatch.setattr(import_module("records"), "files_of", lambda task: files if task == "lookup" else {})
    import_module("summaries").load_evaluation.cache_clear()
    _, opsd = tables.rows("lookup, evaluated with thinking")
    import_module("summaries").load_evaluation.cache_clear()
    assert opsd.startswith("| OPSD | 2 | 12.5 ± 17.7 | −37.5 [−196.3, +121.3] | −37.5 [")


@pytest.mark.parametrize(
    ("text", "verdict", "holds"),
    [
        ("<think>\n{0}. {1}.\n</think>\n\n{1}", "correct", {"closed", "thinks right"}),
        ("<think>\n{0}\n{1}\n</think>\n", "wrong", {"closed", "thinks right", "thinks right, answers wrong"}),
        ("<think>\n{1}. {0}.\n</think>\n", "correct", {"closed", "thinks wrong, answers right"}),
        ("<think>\n{0}.\n</think>\n{1}", "wrong", {"closed"}),
        ("<think>\n{0}. {1}.", "no_answer", set()),
        ("{0}\n{1}", "correct", None),
    ],
)
def test_what_holds_of_an_answer_with_thinking(tables, text, verdict, holds):
    """The thinking is right if it takes up the solution's statements first and in order, with signs or with words."""
    name, puzzle = next((name, puzzle) for name, puzzle in tables.puzzles().items() if len(puzzle.needed) == 2)
    first, second = (line for line in puzzle.solution.splitlines()[:2])
    signs = text.format(first, second)
    words = text.format(first.replace(" + ", " plus ").replace(" - ", " minus "), second)
    for one in (signs, words):
        thought = tables.thought({"text": one, "problem": name, "verdict": verdict})
        assert thought == (set() if holds is None else {"thinks"} | holds)


def test_the_page_has_what_the_thinking_was_like(tables):
    page = (EVIDENCE / "lookup.md").read_text(encoding="utf-8")
    for row in tables.thought_rows():
        assert row in page, "run python results/tables.py tested"


def test_what_the_pages_say_of_the_test_problems(tables):
    texts = [(EVIDENCE / name).read_text(encoding="utf-8") for name in ("lookup.md", "index.md", "../planned.md")]
    page, index, plan = (" ".join(text.split()) for text in texts)
    for head in ("4.1", "5.2"):
        _, first, _, last = tables.term_over_training(
            "lookup/head-cpu", f"head-{head}", f"term/head_{head.replace('.', '_')}"
        ).split()
        assert f"at head {head} falls from {first} to {last}" in page
    found = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:]] for row in tables.rows("lookup")}
    for arm in tables.LOOK_ARMS:
        lead = tables.steps_11_to_20(arm).split(", ", 1)[1]
        assert all(lead in text for text in (page, index, plan))
        assert "[+" in lead, "faster, over seeds"
    mass = tables.needed_over_training("opasd-look")
    assert mass == "attention/needed_mass 0.17 → 0.20, attention/needed_target 0.24 → 0.23"
    assert (
        "0.17 of the student's attention and 0.24 of the target's (first three steps). At the end they have 0.20"
        in page
    )
    assert [share for step, share in tables.thinking_rollouts().items() if step > 1] == [0, 0, 0]
    own = {row.split("|")[1].strip(): row.split("|")[4].strip() for row in tables.rows("lookup, on a CPU")}
    heads = own["OPASD, head 4.1"], own["OPASD, head 5.2"]
    assert f"{heads[0]} and {heads[1]}, five seeds, test problems" in index
    assert f"no: {heads[0]} over seeds" in plan
    assert f"no: {heads[1]};" in plan
    right = {row.split("|")[1].strip(): row.split("|")[3].strip() for row in tables.rows("lookup, on a CPU")}
    ahead = f"{right['SFT on the solutions']} and {right['rejection sampling']} against {right['OPSD']}"
    assert f"SFT and rejection sampling are both ahead: {ahead}" in index
    for arm in ("sft", "rejection"):
        pairs = tables.both_of("lookup/baselines-cpu", arm, "lookup/objectives-cpu/opsd")
        assert all(sum(model.gains(opsd).values()) > 0 for model, opsd in pairs), "ahead with each seed"
    for arm, lead in {"sft": "5.6 [−5.3, +16.6]", "rejection": "6.2 points [−1.8, +14.2]"}.items():
        pairs = tables.both_of("lookup/thinking-cpu", arm, "lookup/thinking/opsd")
        own = [100 * tables.fmean(model.gains(opsd).values()) for model, opsd in pairs]
        assert min(own) > 0, "ahead with each seed"
        assert tables.with_interval(tables.over_seeds(own)) == lead.replace(" points", "").replace("+", "")
        assert lead in page
    last, look = found["OPASD, last layer"], found["OPASD, layers 4 and 5"]
    assert f"OPASD is {look[2]} at the layers that look and {last[2]} at the last, eight seeds" in index
    assert last[0] == look[0] == "8"
    assert f"no: {look[2]} at the looking layers, {last[2]} at the last" in plan
    ahead = [sum(a.gains(b).values()) > 0 for a, b in tables.both_of("lookup/objectives", "opasd-look", "opsd")]
    assert ahead == [False] * 5 + [True, False, True]
    again = {
        (arm, seed): sum(abs(gain) for gain in model.gains(tables.models("lookup/objectives", arm)[seed]).values())
        for arm in ("opsd", *tables.LOOK_ARMS)
        for seed, model in tables.models("lookup/objectives-again", arm).items()
    }
    assert {run for run, changed in again.items() if changed} == {("opsd", 5)}
    assert len(again) == 4
    assert f"behind at the looking layers in each ({tables.first_five('opasd-look')})" in page
    first, second = tables.run_again()[0].removeprefix("opsd, seed 5: ").split(", ")
    assert f"OPSD's seed 5 had {second} in place of {first}" in page
    thinking = [row.split(" | ")[2] for row in tables.rows("lookup, evaluated with thinking")]
    assert f"{thinking[0].partition(' ')[0]} % before, {thinking[1]} after OPSD, {thinking[2]} after OPASD" in index
    base = tables.models("lookup/thinking", "base")[0]
    for arm, losses in {"opsd": "7 to 27 points", "opasd-last": "7 to 22"}.items():
        lost = [-100 * tables.fmean(own.gains(base).values()) for own in tables.models("lookup/thinking", arm).values()]
        assert f"{min(lost):.0f} to {max(lost):.0f}" == losses.removesuffix(" points")
        assert losses in page


def test_the_first_page_has_the_row_of_lookup(tables):
    """Its base is of the CPU; the number of seeds is given if it is not eight."""
    counts = {"1": " (one)", "2": " (two)", "3": " (three)", "4": " (four)", "5": " (five)", "8": "", "–": ""}
    cells = {}
    for task in ("lookup, on a CPU", "lookup"):
        for _, label, seeds, right, *_ in (row.split("|") for row in tables.rows(task)):
            cells[label.strip()] = right.strip().partition(" [")[0] + counts[seeds.strip()]
    base, greedy = (row.split("|")[3].strip() for row in tables.rows("lookup, on a CPU")[:2])
    arms = " | ".join(cells[arm] for arm in ("OPSD", "OPASD, last layer", "attention alone, layers 4 and 5"))
    row = f"| [lookup](lookup.md), eight seeds | {base} | {greedy.partition(' ')[0]} | {arms} | |"
    assert row in (EVIDENCE / "index.md").read_text(encoding="utf-8")
