"""The light commands as a user runs them: help, validate, recipes, env, merge; mistakes are messages, exit code 2."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel
from tokenizers import Tokenizer

import opasd.cli as cli
from opasd.errors import ConfigError
from opasd.lab import model_path
from opasd.recipes import load_recipe, recipe_names
from opasd.recipes.reading import parse_yaml
from tests.cli.conftest import CommandLine
from tests.processes import run


@pytest.mark.parametrize("module", ["opasd", "opasd.cli"])
def test_help_names_every_command_and_the_exit_codes(opasd: CommandLine, module: str) -> None:
    code, text, _ = opasd.apart("--help", module=(module,))
    assert code == 0
    for word in ("train", "validate", "recipes", "sweep", "env", "merge", "75 stopped by a signal"):
        assert word in text


@pytest.mark.parametrize("command", ["train", "validate", "recipes", "sweep", "env", "merge"])
def test_every_command_has_help(opasd: CommandLine, command: str) -> None:
    code, text, _ = opasd(command, "--help")
    assert code == 0
    assert f"opasd {command}" in text


LIGHT = """
import sys
from opasd.cli import main
for words in {words}:
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    assert code == 0, words
assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)
"""
HEAVY = {"torch", "transformers", "datasets", "pyarrow"}


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        ([[name, "--help"] for name in ("train", "validate", "recipes", "sweep", "env", "merge")], HEAVY),
        ([["validate", "lab"]], HEAVY | {"numpy"}),
    ],
    ids=["help", "validate"],
)
def test_light_commands_import_nothing_heavy(words: list[list[str]], heavy: set[str]) -> None:
    done = run([sys.executable, "-c", LIGHT.format(words=words, heavy=heavy)])
    assert done.returncode == 0, done.stderr


def test_help_shows_the_recipes_own_values(opasd: CommandLine) -> None:
    _, text, _ = opasd("train", "lab", "--help")
    assert f"Optimizer steps. (default: {load_recipe('lab').config().train.max_steps})" in text
    assert "75 stopped by a signal" in text


def test_validate_prints_a_file_that_gives_the_same_configuration(opasd: CommandLine) -> None:
    code, text, _ = opasd("validate", "opsd-qwen3-4b", "--train.max-steps", "50", "--num-processes", "4")
    assert code == 0
    assert "problems per step  256 = 1 a device x 64 accumulation x 4 processes" in text
    assert "rollouts in all    12,800" in text
    assert "10,240 tokens for the student, 24,576 for the teacher" in text
    (opasd.folder / "again.yaml").write_text(text)
    again = load_recipe(str(opasd.folder / "again.yaml")).config()
    expected = load_recipe("opsd-qwen3-4b").config()
    assert again == expected.model_copy(update={"train": expected.train.model_copy(update={"max_steps": 50})})


def test_validate_knows_what_an_evaluation_can_be_told(opasd: CommandLine) -> None:
    (opasd.folder / "a.yaml").write_text("extends: lab\nevaluate: {sampels: 4, foo: 1}\n")
    refused = opasd.refuses("validate", "a.yaml")
    assert "evaluate.sampels: unknown key; did you mean samples?" in refused
    assert "evaluate.foo: unknown key; the keys here are benchmarks, profile" in refused
    (opasd.folder / "b.yaml").write_text("extends: lab\nevaluate: {samples: 0}\n")
    code, text, _ = opasd("validate", "b.yaml", "--json")
    assert code == 2
    assert "evaluate.samples: got 0; it must be greater than 0" in json.loads(text)["errors"][0]


def test_validate_counts_epochs_of_a_file(opasd: CommandLine) -> None:
    rows = "".join(f'{{"problem": "p{number}", "solution": "s"}}\n' for number in range(128))
    (opasd.folder / "d.jsonl").write_text(f"{rows}\n")
    code, text, _ = opasd("validate", "--data.source", "d.jsonl", "--json")
    shown = json.loads(text)
    assert code == 0
    assert (shown["batch"]["problems_at_most"], shown["batch"]["epochs_at_least"]) == (128, 100)
    for rows, known in (("64:", 64), (":32", 32), ("100:500", 28), (":", 128)):
        _, text, _ = opasd("validate", "--data.source", "d.jsonl", "--data.rows", rows, "--json")
        assert json.loads(text)["batch"]["problems_at_most"] == known
    refused = opasd.refuses("train", "--data.source", "d.jsonl", "--data.rows", "128:")
    assert "data.source: d.jsonl has 128 rows, and none of them is in rows '128:'" in refused
    assert "data.rows: got '5'; give FIRST:END" in opasd.refuses("validate", "--data.rows", "5")


def test_validate_looks_into_local_data_as_a_run_does(opasd: CommandLine) -> None:
    rows = [{"q": f"What is {number} + 1?", "s": "Add one. " * number} for number in range(1, 41)]
    (opasd.folder / "d.csv").write_text("q,s\n" + "".join(f"{row['q']},{row['s']}\n" for row in rows))
    refused = opasd.refuses("validate", "lab", "--data", "d.csv")
    assert 'd.csv, row 1: column "problem" is missing; the row has "q", "s"' in refused
    columns = ["--data", "d.csv", "--data.columns.question", "q", "--data.columns.solution", "s"]
    code, text, errors = opasd("validate", "lab", *columns, "--json")
    assert code == 0, errors
    found = json.loads(text)["looks"]["data"]
    assert (found["rows"], found["problems"], found["answers"], found["unit"]) == (40, 40, 0, "tokens")
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    lengths = [len(tokenizer.encode(row["s"].strip() + " ").ids) for row in rows]
    assert abs(found["solution"]["longest"] - max(lengths)) <= 1
    assert abs(found["solution"]["mean"] - sum(lengths) / 40) <= 1
    refused = opasd.refuses("validate", "lab", *columns, "--prompts.max-student-tokens", "5")
    assert "the question alone has more than prompts.max_student_tokens = 5 tokens" in refused
    skipping = ["--prompts.max-student-tokens", "5", "--data.on-bad-row", "skip"]
    code, text, _ = opasd("validate", "lab", *columns, *skipping)
    assert code == 0
    assert "# warning: data: d.csv:" in text
    refused = opasd.refuses("validate", "lab", *columns, "--prompts.reference", "{answer} ")
    assert "40 problems have no answer, such as d.csv:1" in refused
    (opasd.folder / "v.jsonl").write_text('{"problem": "p", "solution": ""}\n')
    refused = opasd.refuses("validate", "lab", "--validation-data.own.source", "v.jsonl")
    assert 'validation_data.own: v.jsonl, row 1: column "solution" is empty' in refused
    code, text, _ = opasd("validate", "--model", "some/model", *columns)
    assert code == 0
    assert "characters on average" in text
    assert "# plan: " in text


def test_validate_prints_the_plan_in_short(opasd: CommandLine) -> None:
    _, text, _ = opasd("validate", "opasd-qwen3-4b", "--num-processes", "4")
    _, plan, _ = opasd("plan", "opasd-qwen3-4b", "--gpus", "4", "--json")
    needed = json.loads(plan)["memory"]["needed"] / 2**30
    assert "# plan on 4 x H200" in text
    assert f"memory of a GPU    {needed:.1f} GiB, fits 131.3; the rollout needs the most" in text
    assert f"{json.loads(plan)['tokens']['sampled']:,} tokens sampled" in text
    assert "limit              sampling takes" in text
    shown = json.loads(opasd("validate", "opasd-qwen3-4b", "--num-processes", "4", "--json")[1])["plan"]
    assert shown == {key: value for key, value in json.loads(plan).items() if key != "recipe"}


def test_validate_tells_what_a_task_made_by_code_does_not_know(opasd: CommandLine) -> None:
    refused = opasd.refuses("validate", "arithmetic-0.5b", "--data.seed", "3", "--data.columns.question", "q")
    assert "data.source: data source arithmetic is made by code and has no columns, seed; leave that out" in refused
    refused = opasd.refuses("validate", "lab", "--validation-data.lab.rows", ":5")
    assert "validation_data.lab.source: data source lab is made by code and has no rows" in refused
    assert opasd("validate", "lab", "--data.seed", "3")[0] == 0


def test_flags_take_yaml_words_and_keys_of_mappings(opasd: CommandLine) -> None:
    args = ["--train.bf16", "true", "--train.gradient_checkpointing=false", "--validation.thinking", "true"]
    args += ["--train.extra.optim", "sgd", "--train.extra.adam_beta2=0.9", "--train.save-total-limit", "null"]
    args += ["--validation-data.my-set.source", "a/b", "--validation_data.my-set.columns.solution", "q"]
    args += ["--validation-data.my-set.columns.answer-pattern", r"####\s*(.+)", "--validation-data.2.source", "a/b"]
    args += ["--validation-data.2.columns.solution", "null", "--validation-data.2.sample", "5"]
    args += ["--validation-data.2.columns.answer", "2024"]
    args += ["--prompts.template-options.note", "a #b"]
    code, text, errors = opasd("validate", *args, "lab", "--train.report-to")
    assert code == 0, errors
    config = parse_yaml(text, "output")
    assert config["validation_data"]["my-set"]["columns"]["answer_pattern"] == r"####\s*(.+)"
    other = config["validation_data"]["2"]
    assert (other["columns"]["answer"], other["columns"]["solution"], other["sample"]) == ("2024", None, 5)
    assert config["prompts"]["template_options"] == {"note": "a #b"}
    assert (config["train"]["bf16"], config["train"]["gradient_checkpointing"]) == (True, False)
    assert config["train"]["extra"] == {"optim": "sgd", "adam_beta2": 0.9}
    assert (config["train"]["save_total_limit"], config["validation"]["thinking"]) == (None, True)
    assert config["validation_data"]["my-set"]["source"] == "a/b"
    assert config["validation_data"]["my-set"]["columns"]["solution"] == "q"
    assert config["model"]["name_or_path"] == "lab"


@pytest.mark.parametrize(
    ("args", "messages"),
    [
        (["--train.lerning-rate", "1"], ["train.lerning_rate: unknown field; did you mean train.learning_rate?"]),
        (["--train.max-steps", "many"], ["train.max_steps: got 'many'; it must be a valid integer"]),
        (["--train.max-steps", "0"], ["train.max_steps: got 0; it must be greater than 0"]),
        (["--objective.token.clip", "pertoken"], ["objective.token.clip: got 'pertoken'", "did you mean per_token?"]),
        (["--train.lr-scheduler-type", "cosin"], ["train.lr_scheduler_type: got 'cosin'", "did you mean cosine?"]),
        (["--objective.token-weight", "0", "--objective.attention-weight", "0"], ["nothing to learn"]),
        (["--train.bf16", "--train.fp16"], ["train.bf16 and train.fp16 are both true"]),
        (["--prompts.reference", "Look it up."], ["prompts.reference must have {solution} once", "{answer}"]),
        (["--data.columns.solution", "null"], ["the teacher needs solutions", "{answer} alone in prompts.reference"]),
        (["--model.adaptation", "qlora"], ["qlora needs bitsandbytes"]),
        (["--model.name-or-path", "./absent"], ["no folder './absent'"]),
        (["--model.name-or-path", "site"], ["site lacks config.json, a tokenizer (tokenizer.json), weights"]),
        (["--data.source", "absent.jsonl"], ["data.source: no file or folder 'absent.jsonl'"]),
        (["--data.source", "site"], ["data.source: the folder site has no jsonl"]),
        (["--train.extra.learning_rat", "1"], ["train.extra.learning_rat", "did you mean learning_rate?"]),
        (["--train.extra.seed", "1"], ["set train.seed"]),
        (["--train.extra.output_dir", "x"], ["output_dir and name"]),
        (["--train.extra.hub_token", "x"], ["train.extra: hub_token: a secret would be kept", "HF_TOKEN"]),
        (["--train.report-to", "tensorbord"], ["train.report_to: got 'tensorbord'; transformers has all, ", "wandb"]),
        (["--train.extra.num_train_epochs", "1"], ["train.extra.num_train_epochs: train.max_steps says how long"]),
        (["--train.extra.eval_steps", "1"], ["train.extra.eval_steps: validation.every says when"]),
        (["--train.extra.logging_steps", "5"], ["train.extra.logging_steps: every step is logged"]),
        (["--train.extra.label_smoothing_factor", "0.1"], ["label_smoothing_factor: the losses have no labels"]),
        (["--validation-data.x.sorce", "y"], ["did you mean validation_data.x.source?"]),
        (["--num-processes", "0"], ["--num-processes: expected a number from 1 to 1024"]),
        (["--name", "../x"], ["name: got '../x'"]),
        (["opsd-qwen3-2b"], ['no recipe "opsd-qwen3-2b"; did you mean opsd-qwen3-']),
        (["bad.yaml"], ["bad.yaml:", "train.max_stepz: unknown key; did you mean train.max_steps?"]),
    ],
)
def test_mistakes_are_explained(
    args: list[str],
    messages: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "bad.yaml").write_text("train: {max_stepz: 1}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("opasd.cli._preview.find_spec", lambda name: None if name == "bitsandbytes" else _spec(name))
    monkeypatch.setenv("COLUMNS", "200")
    try:
        code = cli.main(["validate", *args])
    except SystemExit as stop:  # tyro's own
        code = stop.code
    assert code == 2
    errors = capfd.readouterr().err
    for message in messages:
        assert message in errors


def _spec(name: str) -> object:
    from importlib.util import find_spec

    return find_spec(name)


def test_a_mistake_in_a_process_of_its_own(opasd: CommandLine) -> None:
    (opasd.folder / "bad.yaml").write_text("train: {max_stepz: 1}")
    code, _, errors = opasd.apart("train", "bad.yaml")
    assert (code, "Traceback" in errors) == (2, False)
    assert "did you mean train.max_steps?" in errors
    assert "did you mean train.max_steps?" in opasd.refuses("train", "--train.max-stepz", "1")
    assert "did you mean train?" in opasd.refuses("trian")
    code, text, errors = opasd("validate", "bad.yaml", "--json")
    assert (code, errors) == (2, "")
    assert "max_stepz" in json.loads(text)["errors"][0]
    code, _, errors = opasd("--debug", "validate", "bad.yaml")
    assert code == 1
    assert "Traceback" in errors
    assert not (opasd.folder / "runs").exists()


def test_recipes_are_listed_shown_and_copied(opasd: CommandLine) -> None:
    _, text, _ = opasd("recipes")
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  ")] == recipe_names()
    _, text, _ = opasd("recipes", "list", "--json")
    listed = {recipe["name"]: recipe for recipe in json.loads(text)}
    assert listed["opasd-qwen3-1.7b"]["expects"]["avg@12"]["average"] == 34.02
    _, text, _ = opasd("recipes", "show", "opsd-qwen3-8b")
    first, _, rest = text.partition("\n")
    assert first == "# opsd-qwen3-8b extends opasd-qwen3-8b extends opasd-qwen3-1.7b"
    assert rest == load_recipe("opsd-qwen3-8b").text
    for number, full in enumerate(([], ["--full"])):
        target = opasd.folder / f"mine{number}.yaml"
        assert opasd("recipes", "copy", "opsd-qwen3-8b", str(target), *full)[0] == 0
        assert load_recipe(str(target)).config() == load_recipe("opsd-qwen3-8b").config()
    assert "not overwritten" in opasd.refuses("recipes", "copy", "lab", str(opasd.folder / "mine0.yaml"))
    assert "no recipe" in opasd.refuses("recipes", "show", "labb")
    assert opasd("recipes", "copy", "lab", "--full", str(opasd.folder / "behind.yaml"))[0] == 0
    assert load_recipe(str(opasd.folder / "behind.yaml")).config() == load_recipe("lab").config()


def test_a_copied_recipe_still_finds_what_it_extends(opasd: CommandLine) -> None:
    for name in ("here", "there"):
        (opasd.folder / name).mkdir()
    assert opasd("recipes", "copy", "lab", "here/parent.yaml")[0] == 0
    (opasd.folder / "here" / "child.yaml").write_text("extends: parent.yaml\ntrain: {max_steps: 3}\n")
    assert "extends parent.yaml" in opasd.refuses("recipes", "copy", "here/child.yaml", "there")
    assert not list((opasd.folder / "there").iterdir())
    assert opasd("recipes", "copy", "here/child.yaml", "there", "--full")[0] == 0
    assert opasd("recipes", "copy", "here/child.yaml", "here/second.yaml")[0] == 0
    for copy in ("there/child.yaml", "here/second.yaml"):
        assert load_recipe(str(opasd.folder / copy)).config().train.max_steps == 3


@pytest.mark.parametrize("command", [["evaluate"], ["report"], ["sweep"], ["train", "--resume"], ["recipes", "show"]])
def test_a_path_that_cannot_be_is_a_mistake(opasd: CommandLine, command: list[str]) -> None:
    refused = opasd.refuses(*command, "a" * 300 + ".yaml")
    assert "cannot be read or written (File name too long)" in refused
    assert len(refused) < 600


def test_the_demo_refuses_a_seed_before_it_makes_anything(opasd: CommandLine) -> None:
    assert "expected a number from 0" in opasd.refuses("demo", "--seed", "-1", "--output", "d")
    assert not (opasd.folder / "d").exists()


def test_env_tells_versions_devices_and_what_is_missing(opasd: CommandLine) -> None:
    code, text, _ = opasd("env", "--json")
    shown = json.loads(text)
    assert code == 0
    assert shown["versions"]["transformers"]
    assert shown["devices"][0]["kind"] == "cpu"
    assert all(shown["versions"][name] is None for name in shown["missing"])


def test_a_package_that_is_missing_is_named() -> None:
    blocked = "import sys; sys.modules['pydantic'] = None; from opasd.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", blocked, "recipes"]
    done = run(command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('error: the package "pydantic" is not installed; install it')
    assert "Traceback" in run([*command, "--debug"]).stderr


def test_merge_writes_only_to_a_new_or_empty_folder(opasd: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(adapter: Path, output: Path, **_: bool) -> None:
        output.mkdir()
        (output / "merged").write_text(str(adapter))

    monkeypatch.setattr("opasd.model.merging.merge", merge)
    assert "no folder absent" in opasd.refuses("merge", "absent", "out")
    assert opasd("merge", "site", "out")[0] == 0
    assert (opasd.folder / "out" / "merged").read_text() == "site"
    assert "not overwritten" in opasd.refuses("merge", "site", "out")


def test_a_closed_pipe_is_silent(opasd: CommandLine) -> None:
    for args in (["train", "--help"], ["validate"]):
        with opasd.start(*args) as process:
            assert process.stdout
            assert process.stderr
            process.stdout.close()
            assert process.stderr.read() == ""
        assert process.returncode == cli.BROKEN_PIPE


def test_errors_that_reach_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Strict(BaseModel):
        x: int

    def env(action: Callable[[], object]) -> int:
        monkeypatch.setattr("opasd.cli.env.run", lambda _: action())
        return cli.main(["env"])

    def failing(error: BaseException) -> Callable[[], object]:
        def fail() -> None:
            raise error

        return fail

    assert env(failing(KeyboardInterrupt())) == 130
    assert env(failing(ConfigError("what; do this"))) == 2
    assert capsys.readouterr().err == "error: what; do this\n"
    assert env(lambda: Strict.model_validate({"x": "y"})) == 2
    assert "x: " in capsys.readouterr().err
    with pytest.raises(ValueError, match="a bug"):
        env(failing(ValueError("a bug")))
