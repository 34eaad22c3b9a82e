"""`opasd sweep` as a user runs it: with a stand-in for training where the bookkeeping matters, and once for real."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import opasd.cli as cli
from opasd.run.records import Records
from opasd.sweep.commands import quoted
from tests import nursery
from tests.cli.conftest import CommandLine
from tests.cli.test_commands import HEAVY, LIGHT
from tests.processes import PATIENCE, run, wait_until

STAND_IN = """
import json
from opasd.run.manifest import write_manifest
_stand_in = module.train

def train(config, folder, *, resume):
    os.environ["STAND_IN"] = json.loads(os.environ.get("RUNS", "{}")).get(folder.name, "")
    (folder / "threads").write_text(os.environ.get("OMP_NUM_THREADS", ""))
    outcome = _stand_in(config, folder, resume=resume)
    if outcome == "finished":
        (folder / "final").mkdir(exist_ok=True)
        (folder / "final" / "README.md").touch()
        write_manifest(folder / "final", None)
    return outcome

module.train = train
"""
SWEEP = """
recipe: lab-short
grid: {objective.attention_weight: [0.25, 0.5, 1.0]}
"""
NAMES = [f"attention_weight-{weight}" for weight in ("0.25", "0.5", "1")]
TRAIN = ("sweep", "three.yaml", "--no-evaluation")


@pytest.fixture
def three(tmp_path: Path) -> CommandLine:
    """The command line with a sweep of three runs, whose training does what RUNS says of each."""
    command_line = CommandLine(tmp_path, STAND_IN)
    (tmp_path / "three.yaml").write_text(SWEEP)
    command_line.environment.pop("OMP_NUM_THREADS", None)
    return command_line


def runs(**what: str) -> str:
    return json.dumps(what)


def test_a_run_that_fails_stops_no_other_and_a_mistake_is_not_made_again(three: CommandLine) -> None:
    failing = runs(**{NAMES[0]: "mistake", NAMES[1]: "bug"})
    code, table, errors = three(*TRAIN, "--jobs", "2", RUNS=failing)
    folder = three.folder / "sweeps" / "three"
    assert code == 1, errors
    assert f"{NAMES[0]}: failed (exit code 2): no such column; name another" in errors
    assert f"{NAMES[1]}: failed (exit code 1): RuntimeError: a bug" in errors
    assert "Traceback" in (folder / "logs" / f"{NAMES[1]}.log").read_text()
    assert [line.split()[-1] for line in table.splitlines() if line.startswith("attention_weight-")] == [
        "failed", "failed", "1",
    ]  # fmt: skip
    assert (folder / NAMES[2] / "threads").read_text() == str(max(1, (os.cpu_count() or 1) // 2))

    code, _, errors = three(*TRAIN)
    assert code == 2
    assert f"{NAMES[0]}: failed before and is not tried again without --retry: no such column" in errors
    assert f"{NAMES[1]}: resuming training" in errors
    assert f"{NAMES[2]}: done before" in errors
    code, text, _ = three(*TRAIN, "--dry-run")
    assert "failed before: no such column" in text
    code, _, errors = three(*TRAIN, "--retry")
    assert (code, errors.count("done before")) == (0, 2), errors
    whole = json.loads((folder / "tables" / "results.json").read_text())
    assert [run["done"] for run in whole["runs"]] == [True, True, True]
    assert three(*TRAIN)[0] == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_it_survives_interruption(three: CommandLine, how: signal.Signals) -> None:
    folder = three.folder / "sweeps" / "three"
    waiting = runs(**dict.fromkeys(NAMES, "wait"))
    with three.start(*TRAIN, "--jobs", "2", RUNS=waiting) as process:
        wait_until(lambda: all((folder / name / "ready-0").exists() for name in NAMES[:2]), process)
        if how == signal.SIGTERM:
            assert "in use by a live process" in three.refuses(*TRAIN)
        process.send_signal(how)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == (-how if how == signal.SIGKILL else 75), errors
    assert how == signal.SIGKILL or "continue with: opasd sweep three.yaml --no-evaluation" in errors
    assert not (folder / NAMES[2]).exists()
    # Runs outlive a killed sweep for the moment they need to save; the next one waits for them.
    code, _, errors = three(*TRAIN)
    assert code == 0, errors
    assert [(folder / name / "called-0").read_text().split()[1] for name in NAMES] == ["True", "True", "False"]


def test_what_another_sweep_has_is_told_before_it_is_linked(three: CommandLine) -> None:
    assert three(*TRAIN, "--only", NAMES[1])[0] == 0
    again = (*TRAIN, "--output", "other", "--reuse", "sweeps/three")
    code, text, _ = three(*again, "--dry-run")
    assert (code, (three.folder / "other").exists()) == (0, False)
    first, second, third = text.splitlines()[1:]
    assert f"trained: sweeps/three/{NAMES[1]}  (" in second
    assert all("train 20 steps  (" in line for line in (first, third))
    code, _, errors = three(*again)
    assert (code, f"{NAMES[1]}: from sweeps/three/{NAMES[1]}" in errors) == (0, True), errors
    (three.folder / "sweeps" / "three").rename(three.folder / "moved")
    assert f"other/{NAMES[1]} is a link to" in three.refuses(*TRAIN, "--output", "other", "--dry-run")


def test_one_run_alone_as_a_task_of_a_cluster(three: CommandLine) -> None:
    code, output, _ = three(*TRAIN, "--only", NAMES[1])
    assert (code, output) == (0, "")
    assert not (three.folder / "sweeps" / "three" / NAMES[0]).exists()
    code, output, _ = three(*TRAIN, "--table")
    assert code == 0
    assert [line.split()[2:] for line in output.splitlines() if line.startswith("attention_weight-")] == [
        ["not", "done"], [], ["not", "done"],
    ]  # fmt: skip
    code, output, errors = three(*TRAIN, "--table", "--train.max-steps", "7")
    assert (code, errors.count("was made with other settings (train.max_steps 20)")) == (0, 1)
    assert [line.split()[2:] for line in output.splitlines() if line.startswith(NAMES[1])] == [["failed"]]


def test_planning_imports_nothing_heavy(three: CommandLine) -> None:
    ways = (["--dry-run"], ["--print-commands"], ["--slurm", "--dry-run"], ["--power"])
    words = [["sweep", "three.yaml", *way] for way in ways]
    done = run([sys.executable, "-c", LIGHT.format(words=words, heavy=HEAVY | {"tyro"})], cwd=three.folder)
    assert done.returncode == 0, done.stderr
    assert not (three.folder / "sweeps").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["sweep"], "nothing to sweep"),
        (["sweep", "lab-lamda"], "did you mean lab-lambda?"),
        (["sweep", "three.yaml", "--train.max-step", "2"], "did you mean train.max_steps?"),
        (["sweep", "three.yaml", "--seeds", "a"], "--seeds: got 'a'"),
        (["sweep", "three.yaml", "--seeds=--5"], "--seeds: got '--5'"),
        (["sweep", "three.yaml", "--seeds", "9" * 5000], "--seeds: got '999"),
        (["sweep", "three.yaml", "--slurm", "--only", "x"], "the runs are attention_weight-0.25, "),
        (["sweep", "three.yaml", "--gpus-per-run", "8"], "--gpus-per-run 8, but there are"),
        (["sweep", "three.yaml", "--data.source", "absent.jsonl"], "attention_weight-0.25 cannot run:"),
        (["sweep", "three.yaml", "--jobs", "0"], "--jobs: got 0; give 1 or more"),
        (["sweep", "three.yaml", "--gpus-per-run", "-1"], "expected a number from 0 to 1024, got '-1'"),
        (["sweep", "three.yaml", "--slurm", "--time", "abc"], "expected a time such as 12:00:00"),
        (["sweep", "three.yaml", "--evaluate.benchmarks", "amie24"], 'evaluate.benchmarks: no benchmark "amie24"; did'),
        (["sweep", "main", "lambda"], "main is a sweep, which is given alone"),
        (["sweep", "three.yaml", "--reuse", "absent"], "--reuse: no folder absent"),
        (["sweep", "three.yaml", "--only", "x"], "the runs are attention_weight-0.25, "),
        (["train", "lab-base"], "is for evaluation, nothing is trained; use `opasd evaluate lab`"),
    ],
)
def test_mistakes_of_the_command_line(
    args: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "three.yaml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(args)
    except SystemExit as stop:  # argparse's own
        code = stop.code
    assert code == 2
    assert message in capfd.readouterr().err


def test_a_command_is_one_line_whatever_is_in_it() -> None:
    words = [
        "plain",
        "two words",
        "it's",
        "a\nb",
        "\ttab\r",
        "back\\n\n",
        "\x01f'\n",
        "{answer} \\boxed{{}}\n",
        "é\n",
        "",
    ]
    line = " ".join(map(quoted, words))
    assert len(line.splitlines()) == 1
    printed = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True).stdout
    assert printed.decode().split("\0")[:-1] == words


def test_commands_and_scripts_can_be_of_some_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "three.yaml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", "three.yaml", "--print-commands", "--only", NAMES[1]]) == 0
    (line,) = capfd.readouterr().out.splitlines()
    assert f"--name {NAMES[1]} " in line
    assert cli.main(["sweep", "three.yaml", "--slurm", "--dry-run", f"--only={NAMES[1]},{NAMES[2]}"]) == 0
    script = capfd.readouterr().out
    assert "--array=0-1\n" in script
    assert script.count("--only") == 1
    assert NAMES[0] not in script


def test_power_before_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "three.yaml").write_text(SWEEP)
    (tmp_path / "own.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n' * 4)
    monkeypatch.chdir(tmp_path)
    plan = ["sweep", "three.yaml", "--power", "--seeds", "1,2,3", "--evaluate.samples", "4"]
    assert cli.main([*plan, "--evaluate.benchmarks", "aime24,math500", "--evaluate.problems", "60"]) == 0
    first, second = capfd.readouterr().out.splitlines()
    # Var = (D + 2 W / 12) / 80, t of 79 degrees of freedom is 1.990 and z is 0.842; 80 = 4 / (1/30 + 1/60).
    points = 100 * (1.990 + 0.842) * ((2 * 0.1 * 0.6 * 0.24 + 2 * 0.4 * 0.24 / 12) / 80) ** 0.5
    assert "aime24 30, math500 60 problems × 4 samples × 3 seeds" in first
    assert f"a difference of {points:.1f} points" in first
    assert second.startswith("assumed: Avg 0.4, correlation 0.6, agreement 0.9 ")
    assert cli.main([*plan, "--evaluate.benchmarks", "own.jsonl"]) == 0
    assert "own 4 problems × 4 samples × 3 seeds" in capfd.readouterr().out
    assert cli.main([*plan, "--no-evaluation"]) == 2
    assert "--power: nothing is evaluated; add evaluate:" in capfd.readouterr().err
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize("name", ["logs", "state"])
def test_a_folder_that_cannot_be_written_is_one_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweeps" / "lab-base").mkdir(parents=True)
    (tmp_path / "sweeps" / "lab-base" / name).touch()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", "lab-base", "--retry", "--evaluate.problems", "1"]) == 2
    assert f"sweeps/lab-base/{name} cannot be written (File exists)" in capfd.readouterr().err


def test_what_is_only_evaluated_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "lab-base"]) == 0
    assert "# nothing is trained: the model is evaluated as it is" in capfd.readouterr().out
    assert cli.main(["sweep", "lab-main", "--print-commands", "--evaluate.problems", "9"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith(
        "opasd evaluate lab --dtype float32 --benchmarks lab --profile lab --problems 9 --output "
    )
    assert lines[1].startswith("opasd train lab-short-opsd --name opsd --output-dir sweeps/lab-main && opasd evaluate ")
    assert cli.main(["sweep", "--list"]) == 0
    assert "lab-lambda " in capfd.readouterr().out


def test_killed_in_the_middle_and_continued_it_ends_in_a_table_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(
        "recipe: lab-short\nruns: [{name: opasd}]\nevaluate: {problems: 8, max_new_tokens: 16}\n"
        "set: {train.max_steps: 6, train.save_steps: 1, train.per_device_train_batch_size: 2, data.sample: 16,\n"
        "      rollout.max_new_tokens: 8, model.lora_r: 2}\n"
    )
    folder = tmp_path / "sweeps" / "tiny"
    metrics = folder / "opasd" / "metrics.jsonl"
    words = ["-m", "opasd.cli", "sweep", "tiny.yaml"]
    with nursery.Python(*words, cwd=tmp_path) as process:
        wait_until(lambda: list(Records(metrics)), process)
        process.kill()
    before = len(list(Records(metrics)))
    assert before < 6
    done = nursery.run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "opasd: resuming training" in done.stderr
    assert [row["step"] for row in Records(metrics)] == list(range(1, 7))
    rows = [line.split()[0] for line in done.stdout.splitlines()[2:4]]
    assert rows == ["run", "opasd"]
    whole = json.loads((folder / "tables" / "results.json").read_text())
    assert whole["rows"][0]["accuracy"]["lab"]["runs"] == 1
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(folder)]) == 0
    table = (tmp_path / "report" / "tables" / "evaluations.csv").read_text()
    assert "opasd" in table


def test_what_the_printed_commands_made_is_found_and_not_shown_under_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    few = "{benchmarks: [lab], problems: 2, samples: 1, max_new_tokens: 4}"
    (tmp_path / "s.yaml").write_text(f"recipe: lab\nruns: [base]\nevaluate: {few}\n")
    assert cli.main(["sweep", "s.yaml", "--print-commands"]) == 0
    program, *command = shlex.split(capfd.readouterr().out)
    assert program == "opasd"
    assert cli.main(command) == 0
    capfd.readouterr()
    assert cli.main(["sweep", "s.yaml", "--dry-run"]) == 0
    assert "base  done" in capfd.readouterr().out
    assert cli.main(["sweep", "s.yaml", "--table", "--json"]) == 0
    assert [run["done"] for run in json.loads(capfd.readouterr().out)["runs"]] == [True]
    for other, what in (("problems", "problems"), ("samples", "profile"), ("max-batch", "group")):
        assert cli.main(["sweep", "s.yaml", "--dry-run", f"--evaluate.{other}", "3"]) == 2
        assert f"base.evaluation was made with other settings ({what})" in capfd.readouterr().err
        assert cli.main(["sweep", "s.yaml", "--table", "--json", f"--evaluate.{other}", "3"]) == 0
        (run,) = json.loads(capfd.readouterr().out)["runs"]
        assert (run["done"], run["evaluation"]) == (False, [])
    assert not (tmp_path / "sweeps" / "s" / "state").exists()
