"""Sweeps without running them: what a file stands for, names, commands, flags, tables; mistakes are one message."""

import json
import math
import re
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.cli._options import parse
from opasd.cli.train import TrainOptions
from opasd.config import RunConfig
from opasd.errors import ConfigError
from opasd.evaluation.benchmarks import load, packaged
from opasd.evaluation.profiles import PROFILES
from opasd.recipes import load_recipe
from opasd.recipes.evaluate import EvaluateConfig
from opasd.recipes.fields import nested, take_flags, to_flags, value_of
from opasd.recipes.reading import parse_yaml, write_yaml
from opasd.run.folder import check_name
from opasd.sweep import results
from opasd.sweep.commands import Commands, Slurm, as_shell, as_slurm, divided
from opasd.sweep.machine import Machine
from opasd.sweep.running import Place, differing
from opasd.sweep.spec import Changes, Planned, Sweep, SweepFile, load_sweep, plan, read_sweep, sweep_names


def sweep(text: str) -> Sweep:
    return plan(SweepFile.model_validate(parse_yaml(text, "x.yaml")), Path(), "x.yaml")


def names(text: str) -> list[str]:
    return [run.name for run in sweep(text).runs]


PAPER = ("main", "divergence", "lambda", "layers", "handling", "clipping", "objectives", "matched-clipping", "seeds",
         "budgets")  # fmt: skip


def test_every_table_of_the_paper_has_a_sweep_for_its_models_and_one_for_the_lab() -> None:
    others = {"teachers", "lab-teachers", "families", "gsm8k", "arithmetic"}
    assert {*PAPER, *(f"lab-{name}" for name in PAPER), *others} == set(sweep_names())
    for name in PAPER:
        paper, lab = load_sweep([name]), load_sweep([f"lab-{name}"])
        assert all(run.expects or run.config.train.seed != 42 for run in paper.runs)
        assert {run.model for run in lab.runs} == {"lab"}
        trained = [[run for run in one.runs if not run.evaluate_only] for one in (paper, lab)]
        assert len(trained[1]) == (2 if name == "main" else len(trained[0]))
        ablated = set.union(*(set(differing(trained[0][0].config, run.config)) for run in trained[0]))
        if name != "main":
            varied = set.union(*(set(differing(trained[1][0].config, run.config)) for run in trained[1]))
            assert varied == ablated


@pytest.mark.parametrize("name", sweep_names())
def test_the_commands_of_packaged_sweeps_give_the_planned_configurations(name: str, tmp_path: Path) -> None:
    found = load_sweep([name])
    assert found.description
    for run in found.runs:
        check_name(run.name)
        made = Commands.of(run, tmp_path)
        assert made.evaluate is not None
        if made.train is not None:
            _, _, config = parse(TrainOptions, made.train[1:], prog="opasd train", about="")
            assert (config.name, config.output_dir) == (run.name, str(tmp_path))
            assert not differing(config, run.config)


def test_a_grid_is_every_combination_with_every_seed_and_names_say_what_differs() -> None:
    text = """
      recipe: lab-short
      set: {train.max_steps: 3}
      grid: {objective.attention_weight: [0.25, 1.0], teacher.update: [frozen, ema]}
      seeds: [1, 42]
      with_base: true
    """
    found = sweep(text)
    points = [(weight, update, seed) for weight in ("0.25", "1") for update in ("frozen", "ema") for seed in (1, 42)]
    expected = [f"attention_weight-{weight}-update-{update}-seed-{seed}" for weight, update, seed in points]
    assert [run.name for run in found.runs] == ["base", *expected]
    last = found.runs[-1]
    assert (last.config.objective.attention_weight, last.config.teacher.update) == (1, "ema")
    assert last.config.train.seed == 42
    assert all(run.config.train.max_steps == 3 for run in found.runs)
    assert last.group == "attention_weight-1-update-ema"
    assert names(text.replace("[1, 42]", "[42]"))[-1] == last.name  # what else is in the file does not rename a run


def test_fields_with_the_same_last_name_are_told_apart_and_odd_values_keep_names_safe() -> None:
    found = names("recipe: lab\ngrid: {objective.token.divergence: [jsd], objective.attention.divergence: [jsd]}")
    assert found == ["token.divergence-jsd-attention.divergence-jsd"]
    odd = names('recipe: lab\ngrid: {model.name_or_path: [a/b, a_b, "a b", "a\\nb", ÄÖ, aB, Ab]}')
    assert len({name.casefold() for name in odd}) == 7
    assert odd[1] == "name_or_path-a_b"
    assert all(re.fullmatch(r"[\w.+=@-]+", name, re.ASCII) for name in odd)


@given(st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=5, unique=True))
@settings(max_examples=20, deadline=None)
def test_names_are_stable_safe_and_never_collide(values: list[str]) -> None:
    file = SweepFile(recipe="lab", grid={"model.name_or_path": list(values)})
    found = [run.name for run in plan(file, Path(), "x").runs]
    assert len({name.casefold() for name in found}) == len(values)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=@-]*", name) and len(name) < 160 for name in found)
    assert found == [run.name for run in plan(file, Path(), "x").runs]


def test_a_list_takes_recipes_files_entries_and_the_base(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: lab-opsd\ntrain: {max_steps: 4}")
    (tmp_path / "list.yaml").write_text(
        "recipe: lab\nruns: [base, lab-opsd, mine.yaml, {set: {teacher.update: ema}}, {name: x, label: X}]\n"
    )
    found = read_sweep(tmp_path / "list.yaml")
    assert found.name == "list"
    assert [run.name for run in found.runs] == ["base", "lab-opsd", "mine", "lab-update-ema", "x"]
    assert [run.evaluate_only for run in found.runs] == [True, False, False, False, False]
    assert found.runs[2].recipe == str(tmp_path / "mine.yaml")
    assert found.runs[4].label == "X"
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


def test_null_takes_a_validation_set_away_on_a_command_line_too() -> None:
    _, _, config = parse(TrainOptions, ["lab", "--validation-data.lab", "null"], prog="opasd train", about="")
    assert config.validation_data == {}
    with pytest.raises(ConfigError, match="validation_data.no: got nothing"):
        parse(TrainOptions, ["lab", "--validation-data.no", "null"], prog="opasd train", about="")


def test_values_that_look_alike_have_names_of_their_own() -> None:
    found = names('recipe: lab\ngrid: {prompts.template_options.x: [true, "true", 1, "1", "one"]}')
    assert (found[0], found[2], found[4]) == ("x-true", "x-1", "x-one")
    assert len(set(found)) == 5
    assert len(set(names('recipe: lab\ngrid: {train.save_total_limit: [null, 1], data.revision: [null, "1"]}'))) == 4


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
        ("recipe: lab\ngrid: {train.seed: [1, 1]}", "1 stands twice"),
        ("recipe: lab\ngrid: {train.max_steps: [many]}", "train.max_steps: got 'many'"),
        ("grid: {train.seed: [1]}", "needs the recipe"),
        ("recipe: lab\nruns: [lab]\nseeds: [1, 1]", "seeds: 1 stands twice"),
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
        read_sweep(tmp_path / "s.yaml")
    for text, key in (("seeds: 3", "seeds"), ("runs: lab", "runs"), ("grid: {train.seed: 1}", "grid.train.seed")):
        (tmp_path / "s.yaml").write_text(f"recipe: lab\n{text}")
        with pytest.raises(ConfigError, match=rf"{key}: got .*; give a list such as \[a, b\]"):
            read_sweep(tmp_path / "s.yaml")
    with pytest.raises(ConfigError, match="is what the sweep varies"):
        load_sweep(["lab-lambda"], Changes({"objective.attention_weight": 1.0}, {}))
    with pytest.raises(ConfigError, match=r'no sweep "lab-lamda", and no recipe; did you mean lab-lambda\?'):
        load_sweep(["lab-lamda"])
    with pytest.raises(ConfigError, match="nothing says how to evaluate it"):
        load_sweep(["lab-base"], Changes({}, {}, evaluated=False))


_roots = {"": RunConfig, "evaluate.": EvaluateConfig}


def test_flags_set_fields_of_all_runs() -> None:
    rest, found = take_flags(
        ["lab", "--train.max-steps", "2", "--jobs", "3", "--model.lora_target_modules", "q_proj", "v_proj",
         "--layout=padded", "--train.bf16", "--evaluate.budgets", "8,16", "--prompts.system", "12",
         "--prompts.template_options.a-b", "x",
         "--data.revision", "null", "--train.report-to", "--evaluate.thinking=false", "--rollout.top-p", "1"],
        _roots,
    )  # fmt: skip
    assert rest == ["lab", "--jobs", "3"]
    assert found[""] == {
        "train.max_steps": 2, "model.lora_target_modules": ["q_proj", "v_proj"], "layout": "padded", "train.bf16": True,
        "prompts.system": "12", "prompts.template_options.a-b": "x", "data.revision": None, "train.report_to": [],
        "rollout.top_p": 1,
    }  # fmt: skip
    assert found["evaluate."] == {"budgets": [8, 16], "thinking": False}
    for word, message in (
        ("--train.max-step", r"did you mean train.max_steps\?"),
        ("--evaluate.bugdets", r"did you mean evaluate.budgets\?"),
        ("--train.max-steps", "needs a value"),
    ):
        with pytest.raises(ConfigError, match=message):
            take_flags([word], _roots)


_text = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20)
_fields = {
    "objective.attention_weight": st.floats(0, 1e6),
    "train.learning_rate": st.floats(0, 1),
    "train.bf16": st.booleans(),
    "train.save_total_limit": st.none() | st.integers(1, 99),
    "prompts.system": st.none() | _text.filter(lambda text: text.lower() not in ("none", "null", "true", "false")),
    "prompts.template_options.some_key": _text | st.booleans() | st.integers(),
    "train.extra.key-2": st.floats(allow_nan=False, allow_infinity=False) | st.booleans(),
    "validation_data.my-set.sample": st.integers(1, 9),
    "model.lora_target_modules": st.lists(st.sampled_from(["q_proj", "v_proj"]), unique=True),
    "validation.thinking": st.none() | st.booleans(),
    "data.seed": st.integers(-5, 5),
}


@given(st.lists(st.sampled_from(sorted(_fields)), min_size=1, unique=True).flatmap(
    lambda fields: st.fixed_dictionaries({field: _fields[field] for field in fields})
))  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_what_is_written_as_flags_is_read_back_by_train_and_by_sweep(values: dict[str, Any]) -> None:
    words = to_flags(values)
    expected = RunConfig.model_validate(nested(values))
    _, _, config = parse(TrainOptions, words, prog="opasd train", about="")
    assert config == expected
    _, found = take_flags(words, _roots)
    assert RunConfig.model_validate(nested(found[""])) == expected


def test_several_processes_take_as_many_problems_in_a_step() -> None:
    cases = {"opasd-qwen3-4b": "train.gradient_accumulation_steps", "lab": "train.per_device_train_batch_size"}
    for name, field in cases.items():
        run = load_sweep([name]).runs[0]
        four = divided(run, 4)
        assert value_of(four.config, field) * 4 == value_of(run.config, field)
        train = Commands.of(four, Path("out"), 4).train
        assert train is not None
        assert train[-2:] == ["--num-processes", "4"]
        with pytest.raises(ConfigError, match="can be divided by 7"):
            divided(run, 7)
    base = load_sweep(["lab-base"]).runs[0]
    assert divided(base, 7) is base


def test_a_base_is_evaluated_by_its_name_its_revision_and_its_precision() -> None:
    run = load_sweep(["base-qwen3-1.7b"], Changes({"model.revision": "abc"}, {})).runs[0]
    evaluate = Commands.of(run, Path("out")).evaluate
    assert evaluate is not None
    assert evaluate[1:8] == ["base", "--model", "Qwen/Qwen3-1.7B", "--revision", "abc", "--dtype", "bfloat16"]


def test_commands_and_scripts_are_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "it's a $(touch owned) folder"
    found = sweep("recipe: lab\ngrid: {prompts.system: [\"$(touch owned); `x` 'y'\", plain]}")
    script = "opasd() { printf '%s\\0' \"$@\" END; }\n" + as_shell(found, folder, 1)
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = [line.split("\0")[:-1] for line in done.stdout.split("END\0")]
    assert lines[0] == Commands.of(found.runs[0], folder).train
    assert lines[3] == Commands.of(found.runs[1], folder).evaluate
    asked = Slurm(3, 2, "1:00:00", ("--qos=high",))
    slurm = as_slurm(found, folder, ["my sweep.yaml", "--train.max-steps", "2"], asked)
    options = [line.removeprefix("#SBATCH ") for line in slurm.splitlines() if line.startswith("#SBATCH")]
    assert {"--array=0-1%3", "--gpus-per-task=2", "--time=1:00:00", "--qos=high"} <= set(options)
    body = re.sub(r"exec \S+", "exec printf '%s\\\\n'", slurm)
    task = {"SLURM_ARRAY_TASK_ID": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", body], env=task, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[3:] == [
        "my sweep.yaml", "--train.max-steps", "2", "--output", str(folder), "--only", "system-plain",
    ]  # fmt: skip
    assert not (tmp_path / "owned").exists()
    with pytest.raises(ConfigError, match="Slurm option"):
        as_slurm(found, folder, [], Slurm(options=("--x\nrm",)))


def test_runs_take_turns_on_gpus_and_share_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(3, ("0", "2", "5", "7"), 2)
    shares = [machine.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert shares == ["0,2", "5,7", "0,2"]
    assert [machine.shared(0, slot) for slot in range(3)] == [True, False, True]
    assert all(Machine(3, ("0", "1", "12"), 2).shared(*pair) for pair in ((0, 1), (1, 2), (0, 2)))
    assert not Machine(2, ("1", "12")).shared(0, 1)
    assert Machine(2).shared(0, 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert Machine(3).environment(0) == {"OMP_NUM_THREADS": "2"}
    assert Machine(20).environment(19) == {"OMP_NUM_THREADS": "1"}
    assert Machine(2, ("0",), 0).environment(1) == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "4"}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert Machine(3).environment(0) == {}


def made(folder: Path, run: Planned, accuracies: dict[str, list[int]], *, samples: int = 1, budget: int = 160) -> None:
    """A run's folders as training and evaluation leave them, of problems with so many right samples each."""
    path = folder / run.name
    if not run.evaluate_only:
        (path / "final").mkdir(parents=True)
        (path / "final" / "README.md").write_text("")
        config = run.config.model_copy(update={"name": run.name, "output_dir": str(folder)})
        (path / "config.yaml").write_text(write_yaml(config.model_dump()))
        rows = [
            {"step": n, "grad_norm": 1.0, "rollout/accuracy": n / 20, "rollout/length_mean": 60.0} for n in range(1, 11)
        ]
        (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    evaluation = {"results": []}
    for name, correct in accuracies.items():
        mean = statistics.fmean(correct) / samples
        interval = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}
        evaluation["results"].append(
            {"target": "t", "benchmark": name, "budget": budget, "samples": samples, "avg": interval}
            | {"pass": {str(samples): interval}, "tokens": {"mean": 50.0}, "truncated": {"mean": 0.0}}
            | {"per_problem": {f"p{n}": {"correct": c} for n, c in enumerate(correct)}}
        )
    place = Place(run, folder)
    place.evaluation.mkdir(parents=True)
    (place.evaluation / "evaluation.json").write_text(json.dumps(evaluation))
    place.note("evaluate", 0, 1.0, "")


def test_the_table_has_means_over_seeds_intervals_and_differences(tmp_path: Path) -> None:
    """The paper's own seeds: 50.88 ± 0.14, [50.53, 51.24]."""
    found = sweep("recipe: opasd-qwen3-4b\nruns: [{name: opasd, label: OPASD}]\nseeds: [1, 42, 123]\nwith_base: true")
    paper = {1: [6327, 5083, 5533, 3472], 42: [6333, 5027, 5556, 3389], 123: [6354, 5063, 5487, 3436]}
    sets = ("aime24", "aime25", "aime26", "hmmt25")
    base = {name: [5000, 5000] for name in sets}
    made(tmp_path, found.runs[0], base, samples=10_000)
    for run in found.runs[1:]:
        scores = {name: [right, right] for name, right in zip(sets, paper[run.config.train.seed], strict=True)}
        made(tmp_path, run, scores, samples=10_000)
    outcomes = [results.read_outcome(Place(run, tmp_path), found.table.metrics) for run in found.runs]
    table = results.make_table(found, outcomes)
    cells = dict(zip(table.header, (cell.text for cell in table.rows[1]), strict=True))
    assert cells["run"] == "OPASD"
    assert cells["seeds"] == "1, 42, 123"
    assert cells["aime24 Avg@10000, %"] == "63.38 ± 0.14 [63.03, 63.73]"
    means = [statistics.fmean(row) / 100 for row in paper.values()]
    half = 4.302652729749464 * statistics.stdev(means) / math.sqrt(3)
    average = statistics.fmean(means)
    assert cells["average Avg@10000, %"].startswith("50.88 ± 0.14")
    row = results.as_json(found, outcomes)["rows"][1]
    assert row["accuracy"]["average"]["interval"] == pytest.approx([average - half, average + half], abs=1e-9)
    assert row["against_base"]["mean"] == pytest.approx(average - 50)
    assert cells["rollout accuracy, %"] == "47.5 ± 0.0"  # steps 9 and 10 of ten
    untrained = dict(zip(table.header, (cell.text for cell in table.rows[0]), strict=True))
    assert untrained["average Avg@10000, %"] == "50.0 [50.0, 50.0]"
    (seeds,) = results.seed_tables(outcomes)
    assert [row[0].text for row in seeds.rows] == ["Seed 1", "Seed 42", "Seed 123", "Mean", "Std", "95 % CI"]
    # The paper's ± 0.36 is of averages that were rounded first.
    assert [cell.text for cell in seeds.rows[5][1:]] == ["± 0.35", "± 0.70", "± 0.87", "± 1.03", "± 0.35"]


def test_a_run_stands_beside_the_base_that_was_asked_the_same_way(tmp_path: Path) -> None:
    found = sweep(
        "recipe: lab\nevaluate: {temperature: 0.6}\n"
        "runs: [{name: warm, evaluate: {temperature: 1.0}}, {name: more, evaluate: {samples: 3}},"
        " {name: thought, evaluate: {thinking: true}}, {name: as-the-profile}]\nwith_base: true"
    )
    assert found.runs[0].evaluate_only
    for run in found.runs:
        samples = run.evaluate.samples or 1
        made(tmp_path, run, {"lab": [0 if run.evaluate_only else samples] * 4}, samples=samples)
    outcomes = [results.read_outcome(Place(run, tmp_path), ()) for run in found.runs]
    rows = {row.label: row for row in results.rows_of(outcomes)}
    compared = {label: row.gain(["lab"]) is not None for label, row in rows.items() if not row.run.evaluate_only}
    assert compared == {"warm": False, "more": True, "thought": False, "as-the-profile": True}


def test_the_table_tells_the_papers_number_budgets_and_what_is_missing(tmp_path: Path) -> None:
    found = load_sweep(["lambda"])
    made(tmp_path, found.runs[0], {"aime24": [1, 0, 1, 0]})
    made(tmp_path, found.runs[2], {"aime24": [1, 1, 1, 0]})
    outcomes = [results.read_outcome(Place(run, tmp_path), found.table.metrics) for run in found.runs]
    outcomes[3].failed = "no such data"
    table = results.make_table(found, outcomes)
    rows = {row[0].text: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert list(rows) == ["0.25", "0.5", "1.0", "2.0"]
    assert [row["paper's average, %"].text for row in rows.values()] == ["33.75", "34.02", "32.85", "31.82"]
    assert [row[""].text for row in rows.values()] == ["", "not done", "", "failed"]
    assert [row["attention_weight"].text for row in rows.values()] == ["0.25", "0.5", "1", "2"]
    assert rows["1.0"]["aime24 Avg@1, %"].best
    assert not rows["0.25"]["aime24 Avg@1, %"].best
    results.write(tmp_path / "tables", [table], results.as_json(found, outcomes))
    written = {path.name for path in (tmp_path / "tables").iterdir()}
    assert written == {"results.csv", "results.md", "results.tex", "results.json"}
    assert "75.0 [65.0, 85.0]" in results.as_text(table)


def test_runs_that_differ_in_the_seed_alone_share_a_row_however_they_are_listed(tmp_path: Path) -> None:
    paper = load_sweep(["seeds"])
    for run in paper.runs:
        made(tmp_path, run, {"aime24": [run.config.train.seed % 7]}, samples=12)
    outcomes = [results.read_outcome(Place(run, tmp_path), ()) for run in paper.runs]
    table = results.make_table(paper, outcomes)
    (cells,) = [dict(zip(table.header, (cell.text for cell in row), strict=True)) for row in table.rows]
    assert (cells["method"], cells["seeds"], cells["paper's average, %"]) == ("OPASD", "1, 42, 123", "50.88")
    (seeds,) = results.seed_tables(outcomes)
    assert seeds.id == "seeds-seed-1+seed-42+seed-123-160"

    grid = sweep("recipe: lab\ngrid: {train.seed: [1, 2], train.max_steps: [3, 4]}")
    rows = results.rows_of([results.Outcome(run, done=False) for run in grid.runs])
    assert [row.label for row in rows] == [f"seed-1-max_steps-{n}, seed-2-max_steps-{n}" for n in (3, 4)]
    mixed = sweep("recipe: lab\nruns: [{evaluate_only: true, name: x}, {name: x}]\nseeds: [1, 2]")
    rows = results.rows_of([results.Outcome(run, done=False) for run in mixed.runs])
    assert [len(row.outcomes) for row in rows] == [1, 2]


def test_of_long_texts_a_table_shows_what_differs(tmp_path: Path) -> None:
    wording = "Here is a solution:\\n=== {block} ===\\nRead it, and then work the problem out again.\\n"
    texts = [wording.replace("{block}", block) for block in ("{solution}", "The answer is {answer}.", "{answer} " * 20)]
    runs = "".join(f'  - {{name: r{n}, set: {{prompts.reference: "{text}"}}}}\n' for n, text in enumerate(texts))
    found = sweep(f"recipe: lab\nruns:\n{runs}with_base: true")  # whose wording is another, and is not shown
    outcomes = [results.read_outcome(Place(run, tmp_path), ()) for run in found.runs]
    table = results.make_table(found, outcomes)
    assert table.rows[0][table.header.index("reference")].text == "–"
    cells = [row[table.header.index("reference")].text for row in table.rows[1:]]
    assert cells == ["… {solution} …", "… The answer is {answer}. …", "… {answer} {answer} {answer} {answer} {…"]
    assert all(len(line) < 200 for line in results.as_text(table).splitlines())


@given(st.lists(st.text("ab \n", max_size=90), min_size=2, max_size=4))
def test_shortened_texts_are_single_lines_and_short(texts: list[str]) -> None:
    cells = results.in_short(texts)
    if all(len(text.split()) < 2 or ("\n" not in text and len(text) <= 40) for text in texts):
        assert cells == texts
    else:
        assert all("\n" not in cell and len(cell) <= 40 for cell in cells)
        words = [text.split() for text in texts]
        for cell, mine in zip(cells, words, strict=True):
            if not cell.endswith("…"):
                assert mine[len(mine) - len(cell.removeprefix("… ").split()) :] == cell.removeprefix("… ").split()


def test_paths_stay_whole() -> None:
    paths = [f"/a/folder/of/models/that/has/a/rather/long/name/{model}" for model in ("one", "other")]
    assert results.in_short(paths) == paths


def test_written_tables_have_their_title_tell_of_unknown_metrics_and_leave_no_old_ones(tmp_path: Path) -> None:
    found = sweep("recipe: lab\nruns: [{name: x}]\nseeds: [1, 2]\ntable: {title: My title, metrics: [rollout/acuracy]}")
    for run in found.runs:
        made(tmp_path, run, {"lab": [1, 0]})
    for runs, tables in ((found.runs, 3), (found.runs[:1], 0)):
        outcomes = [results.read_outcome(Place(run, tmp_path), ("rollout/accuracy",)) for run in runs]
        table = results.make_table(found, outcomes)
        results.write(tmp_path / "t", [table, *results.seed_tables(outcomes)], results.as_json(found, outcomes))
        assert len(list((tmp_path / "t").glob("seeds-*"))) == tables
    assert (tmp_path / "t" / "results.md").read_text().startswith("My title\n\n|")
    assert r"\caption{My title. " in (tmp_path / "t" / "results.tex").read_text()
    assert "No run has rollout/acuracy." in (tmp_path / "t" / "results.md").read_text()


def test_runs_with_other_numbers_of_samples_are_not_called_by_one(tmp_path: Path) -> None:
    found = sweep("recipe: lab\nruns: [base, {name: x, evaluate: {samples: 4}}]")
    made(tmp_path, found.runs[0], {"lab": [1, 0]})
    made(tmp_path, found.runs[1], {"lab": [4, 0]}, samples=4)
    outcomes = [results.read_outcome(Place(run, tmp_path), ()) for run in found.runs]
    header = results.make_table(found, outcomes).header
    assert "lab Avg@k, %" in header
    assert not any(name.startswith("Pass@") for name in header)


@given(st.binary(max_size=200))
@settings(max_examples=15, deadline=None)
def test_damaged_folders_make_a_table_of_what_is_there(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    folder = tmp_path_factory.mktemp("noise")
    found = load_sweep(["lab-main"])
    for run in found.runs:
        place = Place(run, folder)
        for path in (
            place.path / "metrics.jsonl",
            place.evaluation / "evaluation.json",
            folder / "state" / f"{run.name}.json",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(noise)
    outcomes = [results.read_outcome(Place(run, folder), found.table.metrics) for run in found.runs]
    assert len(results.make_table(found, outcomes).rows) == 3


def test_folders_of_other_settings_are_refused(tmp_path: Path) -> None:
    (run,) = load_sweep(["lab"]).runs
    made(tmp_path, run, {"lab": [1]})
    Place(run, tmp_path).check()
    (other,) = load_sweep(["lab"], Changes({"train.max_steps": 7}, {})).runs
    with pytest.raises(ConfigError, match=r"other settings \(train.max_steps 40\)"):
        Place(other, tmp_path).check()
    (other,) = load_sweep(["lab"], Changes({}, {"problems": 3})).runs
    with pytest.raises(ConfigError, match=r"lab.evaluation was made with other settings"):
        Place(other, tmp_path).check()
    shutil.rmtree(tmp_path / "lab")
    with pytest.raises(ConfigError, match=r"lab.evaluation is of a run that is no longer there"):
        Place(run, tmp_path).check()
    (tmp_path / "lab-opsd").mkdir()
    with pytest.raises(ConfigError, match="is no run"):
        Place(load_sweep(["lab-opsd"]).runs[0], tmp_path).check()


@pytest.mark.parametrize("text", ['{"evaluate": 5}', '{"evaluate": {"code": []}}', "[" * 100_000, '{"results": ['])
def test_bookkeeping_and_results_that_cannot_be_read_are_made_again(tmp_path: Path, text: str) -> None:
    (run,) = load_sweep(["lab"]).runs
    made(tmp_path, run, {"lab": [1]})
    place = Place(run, tmp_path)
    assert place.next() is None
    for path in (place.evaluation / "evaluation.json", tmp_path / "state" / "lab.json"):
        before = path.read_text()
        path.write_text(text)
        place.check()
        assert (place.next(), place.mistake()) == ("evaluate", None)
        assert not results.read_outcome(place, ()).done
        path.write_text(before)
    place.forget()
    assert place.next() is None


def test_the_same_run_of_another_sweep_is_linked(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    for run in load_sweep(["lab", "lab-base"]).runs:
        made(first, run, {"lab": [1]})
    other = sweep("recipe: lab\nruns: [base, {name: mine}, {name: longer, set: {train.max_steps: 50}}]")
    places = [Place(run, second) for run in other.runs]
    found = [place.found_in(first) for place in places]
    assert [path for path, _ in found] == [None, first / "lab", None]
    assert [other and other.evaluation.name for _, other in found] == ["lab-base.evaluation", "lab.evaluation", None]
    assert not list(second.iterdir())
    linked = [place.reuse(first) for place in places]
    assert linked == [[str(first / "lab-base.evaluation")], [str(first / "lab"), str(first / "lab.evaluation")], []]
    assert [place.next() for place in places] == [None, None, "train"]
    assert load_recipe("lab").config().train.max_steps == 40


def test_the_chat_templates_variables_are_told_to_the_evaluation():
    sweep = load_sweep(["families"])
    found = {run.name: Commands.of(run, Path("out")).evaluate for run in sweep.runs}
    told = {name: [arg for arg in args or () if arg.startswith("--template-option")] for name, args in found.items()}
    llama = [name for name in told if "llama" in name and told[name]]
    assert llama
    assert all(told[name] == ["--template-option=date_string=26 Jul 2024"] for name in llama)


@pytest.mark.parametrize("damage", [{}, {"targets": 5}, {"benchmarks": {}}, {"targets": {"a": {}, "b": {}}}])
def test_an_evaluation_of_a_run_by_hand_counts_if_it_is_what_the_sweep_would_ask(
    tmp_path: Path, damage: dict[str, Any]
) -> None:
    asked = {"benchmarks": ("lab",), "problems": 3}
    (run,) = load_sweep(["lab"], Changes({}, asked)).runs
    made(tmp_path, run, {"lab": [1]})
    shutil.rmtree(tmp_path / "state")
    place = Place(run, tmp_path)
    assert place.next() == "evaluate"  # nothing says how it was asked
    place.check()
    targets = {"lab": {"model": "lab", "dtype": "auto", "adapter": "x", "run": f"/elsewhere/{run.name}"}}
    benchmarks = {"lab": load(packaged()["lab"], None, 3).describe()}
    settings = {"profile": PROFILES["lab"].model_dump(mode="json"), "engine": "transformers", "group": 128}
    file = place.evaluation / "settings.json"
    file.write_text(json.dumps(settings | {"targets": targets, "benchmarks": benchmarks} | damage))
    if damage:
        assert place.next() == "evaluate"
        with pytest.raises(ConfigError, match="was made with other settings"):
            place.check()
    else:
        assert place.next() is None
        place.check()
        (other,) = load_sweep(["lab"], Changes({}, asked | {"problems": 4})).runs
        with pytest.raises(ConfigError, match=r"was made with other settings \(problems\)"):
            Place(other, tmp_path).check()
