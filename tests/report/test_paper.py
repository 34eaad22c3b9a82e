"""Every figure and table of the paper has its counterpart: docs/report.md against a report of small runs."""

import json
import re
from pathlib import Path

import pytest

from opasd.recipes.reading import read_yaml, write_yaml
from opasd.report.build import build_report
from opasd.report.folders import read_runs
from tests.report.made import make_evaluation, make_run

DOCS = Path(__file__).parents[2] / "docs" / "report.md"
ROWS = re.findall(
    r"^\| ((?:Figure|Table)s? [^|]+?) \| [^|]+ \| ([^|]+) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """OPSD, OPASD with two seeds, an ablation of each kind, checkpoints, and evaluations of all of them."""
    folder = tmp_path_factory.mktemp("paper")
    runs = {f"opasd-seed-{seed}": make_run(folder, f"opasd-seed-{seed}", seed=seed) for seed in (1, 2)}
    variants = {
        "opsd": {"attention_weight": 0.0},
        "attention": {"token_weight": 0.0},
        "weight": {"attention_weight": 2.0},
        "layers": {"attention": {"layers": 3}},
        "divergence": {"attention": {"divergence": "forward_kl"}},
        "handling": {"attention": {"handling": "redistribute"}},
        "clip": {"token": {"clip": "none"}},
        "opsd-pointwise": {"attention_weight": 0.0, "token": {"clip": "pointwise"}},
    }
    for name, changes in variants.items():
        runs[name] = make_run(folder, name)
        config = read_yaml(runs[name] / "config.yaml")
        for key, value in changes.items():
            config["objective"][key] = config["objective"][key] | value if isinstance(value, dict) else value
        (runs[name] / "config.yaml").write_text(write_yaml(config))
    rows = [json.loads(line) for line in (runs["opsd"] / "metrics.jsonl").read_text().splitlines()]
    marked = [row | ({"validation/lab/markers_per_1000": 2.0} if "grad_norm" not in row else {}) for row in rows]
    (runs["opsd"] / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in marked))
    checkpoints = {f"checkpoint-{n}": runs["opsd"] / f"checkpoint-{n}" for n in (4, 8)}
    evaluation = make_evaluation(folder / "e", {"base": None, **runs, **checkpoints}, problems=12)
    record = json.loads((evaluation / "evaluation.json").read_text())
    record["settings"] = {"profile": {"sampling": {"temperature": 0.6, "max_new_tokens": 100}, "samples": 3}}
    record["benchmarks"] = {"set": {"fingerprint": "x", "prompt": "{question}"}}
    (evaluation / "evaluation.json").write_text(json.dumps(record))
    return build_report(read_runs([*runs.values(), evaluation]))


def test_the_table_is_complete():
    numbers = {"Figure": set(), "Table": set()}
    for name, _ in ROWS:
        kind = name.split()[0].removesuffix("s")
        numbers[kind] |= set(map(int, re.findall(r"\d+", name.split(",")[0])))
    assert numbers == {"Figure": set(range(1, 15)), "Table": set(range(1, 13))}


@pytest.mark.parametrize(("name", "where"), ROWS)
def test_a_row_of_the_table_is_on_the_page(made, name, where):
    if ".svg" in where:
        return  # test_picture.py draws them
    ids = {"figure": {one.id for one in made.figures}, "table": {one.id for one in made.tables}}
    ids["section"] = set(re.findall(r'<section id="([^"]*)"', made.page.html()))
    named = re.findall(r"(figure|table|section)s? ((?:`[^`]+`(?:, )?)+)", where)
    assert named
    assert "the box of words" not in where or '<details class="terms"' in made.page.html()
    for kind, listed in named:
        for wanted in re.findall(r"`([^`]+)`", listed):
            assert {wanted.replace("NAME", "set"), wanted.replace("NAME", "lab")} & ids[kind], (
                wanted,
                sorted(ids[kind]),
            )


def test_ablation_tables_are_keyed_by_the_setting(made):
    tables = {table.id: [row[0].text for row in table.rows] for table in made.tables}
    assert tables["ablation-objective.attention-weight"] == ["0.5", "2.0"]
    assert tables["ablation-objective.attention.layers"] == ["1", "3"]
    assert tables["ablation-objective.attention.divergence"] == ["forward_kl", "jsd"]
    assert tables["ablation-objectives"] == [
        "Token only (OPSD), per_token clipping", "Token only (OPSD), pointwise clipping", "Attention only",
        "Token + Attention (OPASD), per_token clipping", "Token + Attention (OPASD), none clipping",
    ]  # fmt: skip
    (weight,) = [table for table in made.tables if table.id == "ablation-objective.attention-weight"]
    assert weight.rows[0][-1].text == "2", "runs with another seed count as one row"
    assert any(cell.best for row in weight.rows for cell in row)
