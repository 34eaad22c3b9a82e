"""`opasd evaluate` as a user runs it, in processes of its own."""

import json
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opasd import cli
from opasd.cli import _shares
from opasd.errors import EngineError
from opasd.evaluation.samples import SampleFile
from opasd.recipes import load_recipe
from opasd.run.folder import RunFolder
from opasd.run.locks import hold
from opasd.run.manifest import write_manifest
from tests import nursery
from tests.commands import opasd
from tests.evaluation.lab import make_adapter
from tests.nursery import Python
from tests.processes import run, wait_until
from tests.rollout.vllm.fake_server import Process
from tests.rollout.vllm.test_server import released

SHORT = ["--samples", "2", "--problems", "12", "--max-new-tokens", "48", "--max-batch", "4", "--output", "out"]


def test_killed_and_restarted_it_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Killed with SIGKILL, and the last line cut on top of it; then compared with a run that nothing disturbed."""
    samples = tmp_path / "killed" / "out" / "samples.jsonl"
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
    with Python("-m", "opasd.cli", "evaluate", "lab", *SHORT, cwd=tmp_path / "killed") as first:
        wait_until(lambda: samples.exists() and samples.read_bytes().count(b"\n") >= 4, first)
        first.send_signal(signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL
    there = samples.read_bytes()
    assert 4 <= there.count(b"\n") < 24
    samples.write_bytes(there[:-25])
    results, lines = [], []
    for name in ("killed", "whole"):
        monkeypatch.chdir(tmp_path / name)
        assert evaluate("lab", *SHORT, "--json") == 0
        output = capfd.readouterr()
        results.append(json.loads(output.out)["results"])
        lines.append(sorted(Path("out/samples.jsonl").read_bytes().splitlines()))
        assert ("samples are there already" in output.err) == (name == "killed")
        assert "tokens/s" in output.err
    assert results[0] == results[1]
    assert lines[0] == lines[1]
    assert len({sample.key for sample in SampleFile(samples)}) == len(lines[0]) == 24


def test_two_processes_have_the_results_of_one(tmp_path: Path) -> None:
    """Also after a call of two processes that was killed: what it left in its parts is used."""
    results, lines = [], []
    for name, more in (("one", []), ("two", ["--num-processes", "2"])):
        folder = tmp_path / name
        folder.mkdir()
        if more:
            assert run_until_killed(folder)
            left = [p for p in folder.glob("out/part-*/samples.jsonl") if p.stat().st_size]
            assert left
        done = nursery.run("-m", "opasd.cli", "evaluate", "lab", *SHORT, *more, "--json", cwd=folder)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
        lines.append([json.loads(line) for line in (folder / "out/samples.jsonl").read_text().splitlines()])
    assert results[0]["results"] == results[1]["results"]
    assert lines[0] == lines[1]
    assert results[1]["spent"]["total"]["samples"] >= 24 - 2 * 4  # a kill may lose the costs of a group a process
    assert not list((tmp_path / "two").glob("out/part-*"))


def run_until_killed(folder: Path) -> bool:
    """Start two processes and kill the command when one has written something; its processes end with it."""
    with Python("-m", "opasd.cli", "evaluate", "lab", *SHORT, "--num-processes", "2", cwd=folder) as command:
        parts = folder / "out"
        wait_until(lambda: any(p.stat().st_size for p in parts.glob("part-*/samples.jsonl")), command)
        command.send_signal(signal.SIGKILL)
    return command.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_is_named(number: int, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "opasd.py").write_text(f"import os; os.kill(os.getpid(), {int(number)})")
    monkeypatch.setenv("PYTHONPATH", str(here))
    with pytest.raises(EngineError, match=f"^process 0 of 2 was killed by {signal.Signals(number).name}.*; give the"):
        _shares.run("evaluate", [], 2, ["--output", "out"], lambda rank: here / f"part-{rank}")


def test_servers_share_the_requests_themselves(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--engine", "vllm_server", "--server", "http://localhost:1", "--num-processes", "2"]
    assert evaluate("lab", *SHORT, *words) == 2
    assert "--num-processes: the servers of --server share the requests themselves" in capfd.readouterr().err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluate(*args: str) -> int:
    try:
        return cli.main(["evaluate", *args])
    except SystemExit as stop:  # argparse's own
        return int(str(stop.code))


def test_base_and_runs_at_several_budgets(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = load_recipe("lab").config().model_copy(update={"output_dir": "runs"})
    for seed, name in enumerate(("a", "b")):
        RunFolder.create(config, name)
        write_manifest(make_adapter(here / "runs" / name / "final", seed), None)
    args = ["base", "runs/a", "runs/b", "--problems", "4", "--samples", "2", "--budgets", "16,40"]
    assert evaluate(*args) == 0
    text = capfd.readouterr().out
    assert text.splitlines()[0].startswith("| benchmark | budget | target | Avg@2")
    assert text.count("| lab ") == 6
    (folder,) = (here / "evaluations").iterdir()
    record = json.loads((folder / "evaluation.json").read_text())
    assert (record["schema"], list(record["targets"])) == (1, ["base", "a", "b"])
    assert json.loads((here / "runs" / "b" / "evaluations" / f"{folder.name}.json").read_text()) == record
    assert evaluate(*args, "--json") == 0
    again = json.loads(capfd.readouterr().out)
    assert again["results"] == record["results"]
    assert evaluate(*args, "--seed", "1", "--output", str(folder)) == 2
    refused = capfd.readouterr().err
    assert refused == (
        f"error: {folder} holds samples of other settings: profile.seed is 0 there and 1 now. Give the same ones or "
        "another --output\n"
    )


def test_the_benchmarks_are_listed(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--list") == 0
    assert "AIME 2026" in capfd.readouterr().out
    assert evaluate("--list", "--json") == 0
    assert json.loads(capfd.readouterr().out)[0]["name"] == "aime24"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "nothing to evaluate"),
        (["lab", "--benchmarks", "aime2"], 'no benchmark "aime2"; did you mean aime2'),
        (["lab", "--benchmarks", "absent.jsonl"], 'no benchmark "absent.jsonl"'),
        (["lab", "--benchmarks", "broken.jsonl"], "not valid JSON"),
        (["lab", "--benchmarks", "aime24", "--data-dir", "absent"], "no folder absent"),
        (["base"], "base: which model"),
        (["runs/absent"], "no model, adapter or run"),
        (["adapter", "--model", "Qwen/Qwen3-8B", "--benchmarks", "lab"], "was trained on lab, but --model is"),
        (["lab", "--revision", "abc"], "--revision is the commit of --model"),
        (["lab", "--samples", "0"], "error: --samples: got '0'; it must be greater than 0\n"),
        (["lab", "--budgets", "10,x"], "error: --budgets: got 'x'; it must be a valid integer"),
        (["lab", "--budgets", "10,20", "--max-new-tokens", "30"], "the largest budget must be"),
        (["lab", "--temperature", "-1"], "error: --temperature: got '-1'; it must be greater than or equal to 0\n"),
        (["lab", "--profile", "mine"], "error: --profile: got 'mine'; use one of paper, opsd, lab\n"),
        (["lab", "--engine", "vllm_server"], "go together; give both or neither"),
        (["lab", "--server", "http://localhost:1"], "go together; give both or neither"),
        (["lab", "--difference", "3"], "error: --difference: got it without --power, which it belongs to; add --power"),
        (["lab", "--from", "x"], "error: --from: got it without --power"),
        (["--power", "--samples", "0"], "error: --samples: got '0'; give a whole number greater than 0\n"),
        (["--power", "--width", "0"], "error: --width: got 0; give points between 0 and 100\n"),
        (["--power", "--certainty", "1"], "error: --certainty: got 1; give a share between 0 and 1\n"),
        (["--engine", "openai", "--url", "http://localhost:1"], "error: --engine openai: got no model; give"),
        (["lab", "--template-option", "date"], "expected NAME=VALUE, got 'date'"),
        (["lab", "--output", "broken.jsonl", "--problems", "1"], "cannot be written to"),
    ],
)
def test_mistakes_are_explained(here: Path, capfd: pytest.CaptureFixture[str], args: list[str], words: str) -> None:
    (here / "broken.jsonl").write_text("{not json\n")
    (here / "adapter").mkdir()
    (here / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "lab", "r": 4}')
    (here / "adapter" / "adapter_model.safetensors").touch()
    assert evaluate(*args) == 2
    output = capfd.readouterr()
    assert output.out == ""
    assert words in output.err
    assert "Traceback" not in output.err


def test_help_needs_no_torch() -> None:
    code = "import sys; from opasd.cli import main\ntry: main(['evaluate', '--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'transformers', 'sympy', 'numpy') if m in sys.modules])"
    done = run([sys.executable, "-c", code])
    assert done.stdout.endswith("[]\n")
    assert "--benchmarks" in done.stdout


def test_servers_are_given_the_adapters(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    adapter = make_adapter(here / "trained", 0)
    server = Path(__file__).parents[1] / "rollout" / "vllm" / "fake_server.py"
    with subprocess.Popen([sys.executable, str(server), "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            args = ["lab", str(adapter), "--engine", "vllm_server", "--server", url, "--problems", "3", "--json"]
            assert evaluate(*args) == 0
        finally:
            process.kill()
    record = json.loads(capfd.readouterr().out)
    assert [result["target"] for result in record["results"]] == ["lab", "trained"]
    (folder,) = (here / "evaluations").iterdir()
    drawn: dict[str, list[tuple[int, ...]]] = {"lab": [], "trained": []}
    for sample in SampleFile(folder / "samples.jsonl"):
        drawn[sample.target].append(tuple(sample.ids))
    assert len(drawn["lab"]) == len(drawn["trained"]) == 3
    assert drawn["lab"] != drawn["trained"]


def test_a_server_that_gives_tokens_of_no_vocabulary(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers = [
        {"model": "base", "choices": [{"token_ids": [token], "finish_reason": "stop"}]} for token in (10**12, 5000)
    ]
    with Process() as sound, Process() as mad:
        mad.set(faults=answers * 50)
        sound.hold()  # or it has answered all before the other is asked
        servers = ["--server", sound.url, "--server", mad.url]
        with released(sound, once=lambda: mad.received(1)):
            assert evaluate("lab", "--engine", "vllm_server", *servers, "--problems", "6", "--output", "e") == 0
    drawn = list(SampleFile(here / "e" / "samples.jsonl"))
    assert len(drawn) == 6
    assert max(token for sample in drawn for token in sample.ids) < 200
    assert "a token beyond the vocabulary of 832" in caplog.text


def test_a_wrong_address_is_named_as_it_was_given(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Process() as other:
        other.set(model_faults=[404])
        assert evaluate("lab", "--engine", "vllm_server", "--server", other.url, "--problems", "1") == 2
    refused = capfd.readouterr().err
    assert f"{other.url} is no OpenAI-compatible server (HTTP 404: told to say 404); correct --server" in refused
    assert "servers.urls" not in refused


def test_a_folder_in_use_or_damaged_is_refused(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "out").mkdir()
    with hold(here / "out", "evaluation"):
        assert evaluate("lab", "--problems", "1", "--output", "out") == 2
    assert "evaluation folder out in use by a live process" in capfd.readouterr().err
    (here / "out" / "settings.json").write_text('{"targets": ')
    assert evaluate("lab", "--problems", "1", "--output", "out") == 2
    assert "settings.json is damaged" in capfd.readouterr().err
    (here / "out" / "settings.json").write_bytes(b"\xff")
    assert evaluate("lab", "--problems", "1", "--output", "out") == 2
    assert "settings.json is damaged" in capfd.readouterr().err
    (here / "out" / "settings.json").rename(here / "out" / "samples.jsonl")
    assert evaluate("lab", "--problems", "1", "--output", "out") == 2
    assert capfd.readouterr().err == "error: out has samples.jsonl but no settings.json; give a new --output\n"


@pytest.mark.parametrize("name", ["problems.jsonl", "evaluation.json", "settings.json"])
def test_a_folder_with_files_of_somebody_else_is_left_as_it_is(
    here: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    folder = here / "mine"
    folder.mkdir()
    (folder / name).write_text('{"problem": "What is 2 + 2?", "answer": "4"}\n')
    assert evaluate("lab", "--problems", "1", "--max-new-tokens", "2", "--output", "mine") == 2
    error = capfd.readouterr().err
    assert error.startswith(f"error: mine{'/' if 'settings' in name else ' has '}{name}")
    assert error.endswith("give a new --output\n")
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == [name]
    assert (folder / name).read_text() == '{"problem": "What is 2 + 2?", "answer": "4"}\n'


def test_a_folder_without_samples_takes_other_settings(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What could not begin must not stand in the way of the same command put right."""
    args = ["lab", "--problems", "2", "--output", "out", "--budgets"]
    assert evaluate(*args, "20,500000") == 2
    refused = capfd.readouterr().err
    most = re.search(r"lab: a budget of 500000, but at most (\d+) new tokens fit the model's context of 1024", refused)
    assert most
    assert evaluate(*args, f"20,{int(most[1]) + 1}") == 2
    assert evaluate(*args, f"20,{most[1]}", "--json") == 0
    record = json.loads(capfd.readouterr().out)
    assert [result["budget"] for result in record["results"]] == [20, int(most[1])]
    assert evaluate(*args, "20,30") == 2
    assert "holds samples of other settings" in capfd.readouterr().err


def test_a_full_disk_is_told_and_the_same_command_goes_on(here: Path) -> None:
    """A limit on a file's size is the full disk that can be had here."""
    command = ["evaluate", "lab", "--problems", "8", "--samples", "8", "--max-new-tokens", "16", "--output", "e"]
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, hard))
    try:
        cut = opasd(here, *command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert cut.returncode == 2, cut.stderr
    assert "e could not be written: File too large; free some space, and give the same command again" in cut.stderr
    assert "Traceback" not in cut.stderr
    assert (here / "e" / "samples.jsonl").exists()
    again = opasd(here, *command)
    assert again.returncode == 0, again.stderr
    assert len(list(SampleFile(here / "e" / "samples.jsonl"))) == 64


def test_template_options_are_part_of_the_settings(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["lab", "--problems", "1", "--samples", "1", "--max-new-tokens", "2", "--output", "e"]
    given = [f"--template-option={option}" for option in ("greeting=Ann, Bob", "number=7", "loud=true")]
    assert evaluate(*options, *given) == 0
    settings = json.loads((here / "e" / "settings.json").read_text())
    assert settings["template_options"] == {"greeting": "Ann, Bob", "number": 7, "loud": True}
    assert evaluate(*options) == evaluate(*options, *given[:2]) == 2
    assert "holds samples of other settings" in capfd.readouterr().err


def test_benchmarks_may_be_given_one_by_one(here: Path) -> None:
    for name in "xy":
        (here / f"{name}.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    few = ["lab", "--samples", "1", "--max-new-tokens", "2", "--output", "e"]
    assert evaluate(*few, "--benchmarks", "x.jsonl", "--benchmarks", "y.jsonl") == 0
    assert list(json.loads((here / "e" / "settings.json").read_text())["benchmarks"]) == ["x", "y"]


def test_differences_are_against_the_first_given_whatever_the_folder_has_had(here: Path) -> None:
    config = load_recipe("lab").config().model_copy(update={"output_dir": "runs"})
    RunFolder.create(config, "a")
    write_manifest(make_adapter(here / "runs" / "a" / "final", 0), None)
    few = ["--problems", "1", "--samples", "1", "--max-new-tokens", "2", "--output", "e"]
    for targets, first in ((["lab"], "lab"), (["runs/a", "lab"], "a"), (["lab"], "lab")):
        assert evaluate(*targets, *few) == 0
        record = json.loads((here / "e" / "evaluation.json").read_text())
        assert {difference["against"] for difference in record["differences"]} <= {first}
        assert record["results"][0]["target"] == first
