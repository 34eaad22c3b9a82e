"""The pages about the stubborn student have the records' figures, and its control permutes what it says."""

import math
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.losses.cases import make_alignment, make_layers
from tests.results.importing import RESULTS, imported

EVIDENCE = Path(__file__).parents[2] / "docs/evidence"


@pytest.fixture(scope="module")
def tables():
    with imported("tables_stubborn") as module:
        yield module


@pytest.fixture(scope="module")
def plugin():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RESULTS / "lookup"))
        yield import_module("permuted")


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def test_the_page_has_the_rows_of_the_records(tables):
    page = (EVIDENCE / "lookup.md").read_text(encoding="utf-8")
    for cells in (*tables.rows(), *tables.control_rows(), *tables.elsewhere_rows()):
        assert row(cells) in page, "run python results/tables.py stubborn"


def test_what_is_said_of_the_stubborn_student(tables):
    page = " ".join((EVIDENCE / "lookup.md").read_text(encoding="utf-8").split())
    found = {tuple(cells[:3]): cells[3:] for cells in tables.rows()}
    ends = {key: float(cells[0].split()[0]) for key, cells in found.items() if key[0] != "base"}
    assert min(ends.values()) == ends["OPSD", "4e-3", "–"] == 98.8
    assert sorted(ends.values())[1] >= 99.9
    early = {key: float(cells[2]) for key, cells in found.items() if key[0] != "base"}
    assert max(early, key=early.__getitem__) == ("OPSD", "4e-3", "–")
    leads = [float(cells[3].split()[0]) for key, cells in found.items() if key[1] == "2e-3" and key[0] != "OPSD"]
    assert min(leads) == 6.6
    assert max(leads) == 25.0
    for label, _, *leads in tables.elsewhere_rows():
        assert any("[+" in lead for lead in leads) == ("pointers" in label), "a lead with pointers alone"
    last, look = (tables.needed_mass(f"{place}-0.3-2e-3") for place in ("last", "look"))
    target, student = last.split(" and ")
    assert f"has {target} of the target and {student} of the student's attention at the last layer, {look} at" in page
    look, last = tables.in_the_plans_window()
    assert f"at a ratio of 1 is {look} at layers 4 and 5 and {last} at the last" in page
    assert f"it is {tables.against_the_larger_rate()} against the fastest OPASD" in page
    assert f"In steps 31 to 40 it is {tables.late('opasd-look')} and {tables.late('opasd-last')}" in page
    own = tables.pretrained()
    assert f"--wrong-item 0.95 # {own['seconds']:.0f} s on an H200" in page
    alone = f"right in {own['student, t1.0']:.1f} % of 600 test problems at temperature 1 and in"
    assert f"{alone} {own['student, greedy']:.1f} % with the likeliest token" in page
    assert {int(share) for name, share in own.items() if "before" in name or "after" in name} == {99}
    assert "".join(tables.moved_by_shuffle()) == "1.6 %1.3 %"
    assert all(f"moves {share} of the target" in page for share in tables.moved_by_shuffle())
    assert f"OPSD at 4e-3 has {tables.larger_rate_elsewhere()} in steps 11 to 20" in page
    lead = tables.pilot_control()
    assert f"the lead over OPSD is {lead}, three seeds on a CPU" in page
    assert len(tables.rollouts("permuted", tables.PILOT)) == 3
    for arm, ends in tables.divergences().items():
        assert (
            f"{'in place' if arm == 'look' else 'moved ones'} ({'divergence ' if arm == 'look' else ''}{ends}" in page
        )
    gates = import_module("tables_lookup").gates("stubborn")
    read = next(iter(gates["gold, others"].values()))
    shares = [f"{100 * share:.0f} %" for share in read["4.2 fork"][1:3]]
    assert f"head 4.2 has {shares[0]} of the student's attention on the right one, and {shares[1]} of the" in page
    assert all(next(iter(own.values()))["4 and 5"][-1] < 0 for own in gates.values()), "the gate fails everywhere"


def test_another_rollout_is_another_row(tables, monkeypatch):
    before = tables.rows(), tables.control_rows()
    monkeypatch.setattr(tables, "early", lambda arm, sweep: {seed: float(seed + len(arm)) for seed in (1, 2, 3, 4)})
    for old, new in zip(before, (tables.rows()[1:], tables.control_rows()), strict=True):
        assert all(row != other for row, other in zip(new, old[-len(new) :], strict=True))


@pytest.mark.parametrize("place", ["permuted", "mirrored"])
@given(problem=st.integers(1, 12), tail=st.integers(0, 3), tokens=st.integers(1, 9), ids=st.lists(st.integers(0, 9)))
def test_a_control_moves_the_prompt_alone(plugin, place, problem, tail, tokens, ids):
    alignment, rollout = make_alignment(problem=problem, tail=tail, tokens=tokens), SimpleNamespace(completion_ids=ids)
    moved = getattr(plugin, place)(alignment, rollout)
    prompt = alignment.in_prompt
    assert moved.teacher_shared[~prompt].tolist() == alignment.teacher_shared[~prompt].tolist()
    assert sorted(moved.teacher_shared[prompt].tolist()) == alignment.teacher_shared[prompt].tolist()
    assert moved.student_shared.tolist() == alignment.student_shared.tolist()
    assert getattr(plugin, place)(alignment, rollout).teacher_shared.tolist() == moved.teacher_shared.tolist()
    if place == "mirrored":
        assert moved.teacher_shared[prompt].tolist() == alignment.teacher_shared[prompt].tolist()[::-1]


def test_each_rollout_has_a_permutation_of_its_own(plugin):
    alignment = make_alignment(problem=40)
    orders = {tuple(plugin.permuted(alignment, SimpleNamespace(completion_ids=[n])).teacher_shared) for n in range(5)}
    assert len({tuple(map(int, order)) for order in orders}) == 5


@pytest.mark.parametrize("place", ["", "permuted", "mirrored"])
def test_the_terms_are_the_divergences_from_their_targets(plugin, place):
    """In float64, by the definition of the Jensen-Shannon divergence, a mean over steps and over two layers."""
    move = getattr(plugin, place) if place else lambda alignment, _: alignment
    batch, expected = SimpleNamespace(rollouts=[], alignments=[], student=[], teacher=[]), []
    for number in range(3):
        alignment = make_alignment(problem=9 + number, tokens=4)
        rollout = SimpleNamespace(completion_ids=[number, 7])
        pairs = [make_layers(alignment, seed=10 * number + layer) for layer in range(2)]
        expected.append(sum(mean_divergence(*pair, move(alignment, rollout)) for pair in pairs) / 2)
        batch.rollouts.append(rollout)
        batch.alignments.append(alignment)
        batch.student.append(SimpleNamespace(layers=[pair[0] for pair in pairs]))
        batch.teacher.append(SimpleNamespace(layers=[pair[1] for pair in pairs]))
    assert plugin.divergence(move)(batch).tolist() == pytest.approx(expected, rel=1e-10)


def mean_divergence(student, teacher, alignment) -> float:
    rows = []
    for role, query_T, shared_J in (
        (student, alignment.student_query, alignment.student_shared),
        (teacher, alignment.teacher_query, alignment.teacher_shared),
    ):
        keys_HSD = role.key_KSD.repeat_interleave(len(role.query_HTD) // len(role.key_KSD), 0)
        scores_HTS = role.scaling * role.query_HTD @ keys_HSD.transpose(1, 2)
        later_TS = torch.arange(keys_HSD.shape[1]) > query_T[:, None]
        rows.append(scores_HTS.masked_fill(later_TS, -torch.inf).softmax(-1).mean(0)[:, shared_J])
    steps = []
    for t in range(alignment.num_tokens):
        seen = [
            (s, u)
            for s, u, a in zip(*(own[t].tolist() for own in rows), alignment.student_shared.tolist(), strict=True)
            if a <= alignment.student_query[t]
        ]
        total_s, total_u = (sum(column) for column in zip(*seen, strict=True))
        p_and_q = [(u / total_u, s / total_s) for s, u in seen]
        steps.append(sum(jensen_shannon(p, q) for p, q in p_and_q))
    return sum(steps) / len(steps)


def jensen_shannon(p: float, q: float) -> float:
    middle = (p + q) / 2
    return sum(one * math.log(one / middle) for one in (p, q) if one) / 2
