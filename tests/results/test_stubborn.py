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
        assert any("[+" in lead for lead in leads) == ("pointers" in label), "an early lead with pointers alone"
    assert sum("−" in lead.split(", ")[1] for *_, a, b in tables.elsewhere_rows() for lead in (a, b)) == 2
    student, target = tables.needed_mass().split(" and ")
    assert f"the needed statements have {target} of the target and {student} of the student's attention" in page
    gates = import_module("tables_lookup").gates("stubborn")
    read = next(iter(gates["gold, others"].values()))
    shares = [f"{100 * share:.0f} %" for share in read["4.2 fork"][1:3]]
    assert f"head 4.2 has {shares[0]} of the student's attention on the right one, and {shares[1]} of the" in page
    assert all(next(iter(own.values()))["4 and 5"][-1] < 0 for own in gates.values()), "the gate fails everywhere"


def test_another_rollout_is_another_row(tables, monkeypatch):
    before = tables.rows(), tables.control_rows()
    monkeypatch.setattr(tables, "early", lambda arm, sweep: {seed: float(seed + len(arm)) for seed in (1, 2, 3, 4)})
    assert all(new[-2:] != old[-2:] for new, old in zip(tables.rows()[1:], before[0][1:], strict=True))
    assert tables.control_rows() != before[1] or not before[1]


@given(problem=st.integers(1, 12), tail=st.integers(0, 3), tokens=st.integers(1, 9), ids=st.lists(st.integers(0, 9)))
def test_a_permuted_alignment_moves_the_prompt_alone(plugin, problem, tail, tokens, ids):
    alignment, rollout = make_alignment(problem=problem, tail=tail, tokens=tokens), SimpleNamespace(completion_ids=ids)
    moved = plugin.permuted(alignment, rollout)
    prompt = alignment.in_prompt
    assert moved.teacher_shared[~prompt].tolist() == alignment.teacher_shared[~prompt].tolist()
    assert sorted(moved.teacher_shared[prompt].tolist()) == alignment.teacher_shared[prompt].tolist()
    assert moved.student_shared.tolist() == alignment.student_shared.tolist()
    assert plugin.permuted(alignment, rollout).teacher_shared.tolist() == moved.teacher_shared.tolist()


def test_each_rollout_has_a_permutation_of_its_own(plugin):
    alignment = make_alignment(problem=40)
    orders = {tuple(plugin.permuted(alignment, SimpleNamespace(completion_ids=[n])).teacher_shared) for n in range(5)}
    assert len({tuple(map(int, order)) for order in orders}) == 5


@pytest.mark.parametrize("in_place", [True, False])
def test_the_terms_are_the_divergences_from_both_targets(plugin, in_place):
    """In float64, by the definition of the Jensen-Shannon divergence, a mean over steps and over two layers."""
    batch, expected = SimpleNamespace(rollouts=[], alignments=[], student=[], teacher=[]), []
    for number in range(3):
        alignment = make_alignment(problem=9 + number, tokens=4)
        rollout = SimpleNamespace(completion_ids=[number, 7])
        pairs = [make_layers(alignment, seed=10 * number + layer) for layer in range(2)]
        where = alignment if in_place else plugin.permuted(alignment, rollout)
        expected.append(sum(mean_divergence(*pair, where) for pair in pairs) / 2)
        batch.rollouts.append(rollout)
        batch.alignments.append(alignment)
        batch.student.append(SimpleNamespace(layers=[pair[0] for pair in pairs]))
        batch.teacher.append(SimpleNamespace(layers=[pair[1] for pair in pairs]))
    term = plugin.divergence((lambda alignment, _: alignment) if in_place else plugin.permuted)
    assert term(batch).tolist() == pytest.approx(expected, rel=1e-10)


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
