"""A sweep's file: the runs it stands for, and mistakes in it as one message."""

from pathlib import Path

import pytest

from opasd.errors import ConfigError
from opasd.recipes.evaluate import EvaluateConfig
from opasd.sweep.job import differing_settings
from opasd.sweep.spec import Changes, load_sweep, sweep_names
from tests.sweep.sweeps import names, sweep

PAPER = ("main", "divergence", "lambda", "layers", "handling", "clipping", "objectives", "matched-clipping", "seeds",
         "budgets")  # fmt: skip


def test_every_table_of_the_paper_has_a_sweep_for_its_models_and_one_for_the_lab() -> None:
    others = {"teachers", "lab-teachers", "families", "gsm8k", "arithmetic"}
    assert {*PAPER, *(f"lab-{name}" for name in PAPER), *others} == set(sweep_names())
    for name in PAPER:
        paper, lab = load_sweep([name]), load_sweep([f"lab-{name}"])
        assert all(run.expects or run.config.train.seed != 42 for run in paper.runs)
        assert {run.model for run in lab.runs} == {"lab"}
        trained = [[run for run in planned.runs if not run.evaluate_only] for planned in (paper, lab)]
        assert len(trained[1]) == (2 if name == "main" else len(trained[0]))
        ablated = set.union(*(set(differing_settings(trained[0][0].config, run.config)) for run in trained[0]))
        if name != "main":
            varied = set.union(*(set(differing_settings(trained[1][0].config, run.config)) for run in trained[1]))
            assert varied == ablated


def test_a_grid_is_every_combination_with_every_seed_and_names_say_what_differs() -> None:
    text = """
      recipe: lab-short
      set: {train.max_steps: 3}
      grid: {objective.attention_weight: [0.25, 1.0], teacher.update: [frozen, ema]}
      seeds: [1, 42]
      with_base: true
    """
    planned = sweep(text)
    points = [(weight, update, seed) for weight in ("0.25", "1") for update in ("frozen", "ema") for seed in (1, 42)]
    expected = [f"attention_weight-{weight}-update-{update}-seed-{seed}" for weight, update, seed in points]
    assert [run.name for run in planned.runs] == ["base", *expected]
    last = planned.runs[-1]
    assert (last.config.objective.attention_weight, last.config.teacher.update) == (1, "ema")
    assert last.config.train.seed == 42
    assert all(run.config.train.max_steps == 3 for run in planned.runs)
    assert last.group == "attention_weight-1-update-ema"
    assert names(text.replace("[1, 42]", "[42]"))[-1] == last.name  # what else is in the file does not rename a run


def test_a_list_takes_recipes_files_entries_and_the_base(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: lab-opsd\ntrain: {max_steps: 4}")
    (tmp_path / "list.yaml").write_text(
        "recipe: lab\nruns: [base, lab-opsd, mine.yaml, {set: {teacher.update: ema}}, {name: x, label: X}]\n"
    )
    planned = load_sweep([str(tmp_path / "list.yaml")])
    assert planned.name == "list"
    assert [run.name for run in planned.runs] == ["base", "lab-opsd", "mine", "lab-update-ema", "x"]
    assert [run.evaluate_only for run in planned.runs] == [True, False, False, False, False]
    assert planned.runs[2].recipe == str(tmp_path / "mine.yaml")
    assert planned.runs[4].label == "X"
    together = load_sweep(["lab", "lab-opsd"], Changes({"train.max_steps": 2}, {"problems": 5}, (1, 2)))
    assert [run.name for run in together.runs] == [
        "lab-seed-1", "lab-seed-2", "lab-opsd-seed-1", "lab-opsd-seed-2",
    ]  # fmt: skip
    assert together.runs[0].evaluate == EvaluateConfig(benchmarks=("lab",), profile="lab", problems=5)
    assert load_sweep([str(tmp_path / "mine.yaml")]).runs[0].config.train.max_steps == 4


def test_the_papers_number_stands_only_beside_the_papers_settings() -> None:
    assert load_sweep(["lambda"]).runs[1].expects["avg@12"]["average"] == 34.02
    assert load_sweep(["lambda"], Changes({"train.max_steps": 2}, {})).runs[1].expects is None
    assert load_sweep(["lambda"], Changes({}, {}, (7,))).runs[1].expects is not None


def test_null_takes_a_validation_set_away(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "recipe: lab\nset: {validation_data.lab: null, validation_data.x.source: x.jsonl}\nruns: [lab]\n",
        encoding="utf-8",
    )
    (run,) = load_sweep([str(tmp_path / "mine.yaml")]).runs
    assert list(run.config.validation_data) == ["x"]
    (run,) = load_sweep(["lab"], Changes({"validation_data.lab": None}, {})).runs
    assert run.config.validation_data == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe: lab\ngrid: {objective.atention_weight: [1]}", r"did you mean objective.attention_weight\?"),
        ("recipe: lab\ngrid: {seed: [1]}", r"seed: unknown field; did you mean .*train.seed"),
        ("recipe: lab\ngrid: {objective: [1]}", "objective is a section; name a field of it, such as objective.token"),
        ("recipe: lab\ngrid: {validation_data.lab: [1]}", "validation_data.lab is a section; name a field"),
        ("recipe: lab\nset: {validation_data.no: null}\nruns: [lab]", "validation_data.no: got nothing"),
        ("recipe: lab\ngrid: {train.seed.x: [1]}", "train.seed is a field without parts"),
        ("recipe: lab\ngrid: {train.extra: [1]}", "train.extra is a mapping; name a key"),
        ("recipe: lab\ngrid: {name: [a]}", "name cannot be set in a sweep"),
        ("recipe: lab\nset: {output_dir: a}\nruns: [lab]", "output_dir cannot be set in a sweep"),
        ("recipe: lab\ngrid: {train.seed: []}", "train.seed has no values"),
        ("recipe: lab\ngrid: {}", "either grid or runs, and not an empty one"),
        ("recipe: lab\nruns: []", "either grid or runs, and not an empty one"),
        ("recipe: lab\nruns: [lab]\ngrid: {train.seed: [1]}", "either grid or runs, not both"),
        ("recipe: lab\ngrid: {train.seed: [1, 1]}", "seed-1 and seed-1 are the same run; leave one of them out"),
        ("recipe: lab\ngrid: {train.max_steps: [many]}", "train.max_steps: got 'many'"),
        ("grid: {train.seed: [1]}", "needs the recipe"),
        ("recipe: lab\nruns: [lab]\nseeds: [1, 1]", "lab-seed-1 and lab-seed-1 are the same run"),
        ("recipe: lab\nruns: [lab]\nseeds: [-1]", "train.seed: got -1; it must be greater than or equal to 0"),
        ("recipe: lab\nruns: [lab]\nname: a/b", "x.yaml: name: got 'a/b'"),
        ("recipe: lab\ngrid: {objective.attention_weight: [1, 1.0]}", "are the same run; leave one of them out"),
        ("recipe: lab\ngrid: {prompts.system: [none, x]}", "prompts.system: the text 'none' reads as null"),
        ("recipe: lab\ngrid: {train.seed: [1]}\nseeds: [1]", "seeds and train.seed are both given"),
        ("runs: [{name: a}]", "no recipe; add"),
        ("runs: [base, lab]", r"run 1: base of which model\?"),
        ("runs: [lab, lab]", "lab and lab are the same run"),
        ("runs: [lab, {recipe: lab-opsd, name: lab}]", "two runs are named lab"),
        ("runs: [lab, {recipe: lab, name: other}]", "lab and other are the same run"),
        ("runs: [lab-base, {recipe: lab, evaluate_only: true, name: b}]", "lab-base and b are the same run"),
        ("runs: [{recipe: lab, name: logs}]", "may not be named logs"),
        ("runs: [{recipe: lab, name: Logs}]", "may not be named Logs"),
        ("runs: [{recipe: lab, name: none}]", "may not be named none"),
        ("runs: [{recipe: lab, name: 'NULL'}]", "may not be named NULL"),
        ("runs: [labb]", 'run 1: no recipe "labb"; did you mean lab'),
        ("runs: [3]", "run 1: got 3"),
        ("runs: [{recipe: lab, sett: {}}]", r"sett: unknown key; did you mean set\?"),
        ("runs: [{recipe: lab, set: {train.sed: 1}}]", r"run 1: train.sed: unknown field; did you mean train.seed\?"),
        ("runs: [{recipe: lab, evaluate: {problms: 3}}]", r"evaluate.problms: unknown key; did you mean problems\?"),
        ("recipe: lab\ngrid: {train.seed: [1], data.seed: [1], train.max_steps: " + str(list(range(1, 1003))) + "}",
         "more than 1000 runs"),
    ],
)  # fmt: skip
def test_mistakes_are_one_message_that_names_the_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        sweep(text)
    assert str(caught.value).startswith("x.yaml:")


def test_mistakes_in_a_file_or_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("recipe: lab\ngird: {train.seed: [1]}")
    with pytest.raises(ConfigError, match=r"s.yaml:\n  gird: unknown key; did you mean grid\?"):
        load_sweep([str(tmp_path / "s.yaml")])
    for text, key in (("seeds: 3", "seeds"), ("runs: lab", "runs"), ("grid: {train.seed: 1}", "grid.train.seed")):
        (tmp_path / "s.yaml").write_text(f"recipe: lab\n{text}")
        with pytest.raises(ConfigError, match=rf"{key}: got .*; give a list such as \[a, b\]"):
            load_sweep([str(tmp_path / "s.yaml")])
    with pytest.raises(ConfigError, match=r"s.yaml is a sweep's file, which is given alone; give one sweep"):
        load_sweep(["lab", str(tmp_path / "s.yaml")])
    with pytest.raises(ConfigError, match="name cannot be set in a sweep"):
        load_sweep(["lab"], Changes({"name": "x"}, {}))
    with pytest.raises(ConfigError, match="is what the sweep varies"):
        load_sweep(["lab-lambda"], Changes({"objective.attention_weight": 1.0}, {}))
    with pytest.raises(ConfigError, match=r'no sweep "lab-lamda", and no recipe; did you mean lab-lambda\?'):
        load_sweep(["lab-lamda"])
    with pytest.raises(ConfigError, match="nothing says how to evaluate it"):
        load_sweep(["lab-base"], Changes({}, {}, evaluated=False))
