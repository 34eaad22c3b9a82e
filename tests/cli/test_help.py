"""Help pages, first flags, mistyped flags and completion, as someone new to the command line meets them."""

import io
import pkgutil
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import opasd.cli
from opasd.cli._completion import SCRIPTS, candidates
from opasd.cli._parser import coloured, listed, nearest, painted
from opasd.cli.train import parser
from opasd.recipes import recipe_names
from opasd.recipes.fields import SHORT_FLAGS, to_flags, with_line_breaks
from tests.cli.conftest import CommandLine
from tests.commands import opasd as run_opasd

COMMANDS = [module.name for module in pkgutil.iter_modules(opasd.cli.__path__) if not module.name.startswith("_")]
NARROW = {"COLUMNS": "80"}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_page_fits_eighty_columns(opasd: CommandLine, command: str) -> None:
    code, page, _ = opasd(*filter(None, [command]), "--help", **NARROW)
    assert code == 0
    assert page.startswith("usage: opasd")
    if command:  # the list of commands is wrapped on a terminal alone
        assert max(map(len, page.splitlines())) <= 80
    assert "\x1b" not in page


def test_the_page_of_train_fits_one_screen_and_the_rest_is_behind_help_all(opasd: CommandLine) -> None:
    _, page, _ = opasd("train", "--help", **NARROW)
    assert len(page.splitlines()) <= 50
    for flag in (*SHORT_FLAGS, "--name", "--resume", "--num-processes", "--help-all"):
        assert f"{flag} " in page
    assert "(default: 200)" in page
    assert "(default: 5e-06)" in page
    _, whole, _ = opasd("train", "lab", "--help-all", **NARROW)
    missing = [flag for flag in parser().flags() if "." in flag and flag not in whole]
    assert not missing
    assert "(default: 40)" in whole
    _, section, _ = opasd("train", "--help-all", "rollout", **NARROW)
    assert "--rollout.vllm.memory-share" in section
    assert "--train.seed" not in section
    assert "did you mean rollout?" in opasd.refuses("train", "--help-all", "rolout")


def test_bare_train_says_what_to_give_and_starts_nothing(opasd: CommandLine) -> None:
    for words in ([], ["--steps", "3"], ["--name", "x"]):
        refused = opasd.refuses("train", *words)
        assert "opasd train lab" in refused
        assert "--model MODEL --data DATA" in refused
    assert not (opasd.folder / "runs").exists()
    for command in ("probe", "prompt"):
        assert f"opasd {command} lab" in opasd.refuses(command)
    (opasd.folder / "p.jsonl").write_text('{"problem": "p", "solution": "s"}\n')
    code, _, errors = opasd("train", "--model", "lab", "--data", "p.jsonl", "--name", "n", "--steps", "3")
    assert code == 0, errors
    assert (opasd.folder / "runs/n/called-0").read_text().startswith("3 ")


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (["train", "lab", "--learning_rate", "1"], "--lr (--train.learning-rate)"),
        (["train", "lab", "--max_steps=3"], "--steps (--train.max-steps)"),
        (["validate", "--batch-size", "3"], "--train.per-device-train-batch-size"),
        (["plan", "--gpuss", "3"], "--gpus"),
        (["probe", "lab", "--problem", "3"], "--problems"),
        (["prompt", "lab", "--problems", "3"], "--problem"),
        (["evaluate", "lab", "--sample", "3"], "--samples"),
        (["sweep", "lab", "--dryrun"], "--dry-run"),
        (["report", "--titel", "x"], "--title"),
        (["attend", "lab", "--layer", "2"], "--layers"),
        (["demo", "--quik"], "--quick"),
        (["recipes", "--ful"], "--full"),
        (["merge", "a", "--ouput", "b"], "--output"),
        (["env", "--jsn"], "--json"),
    ],
)
def test_a_mistyped_flag_gets_the_nearest_ones(tmp_path: Path, words: list[str], suggested: str) -> None:
    result = run_opasd(tmp_path, *words)
    assert result.returncode == 2
    assert "has no flag" in result.stderr
    assert f"did you mean {suggested}" in result.stderr
    assert not list(tmp_path.iterdir())


@given(st.text(max_size=30))
def test_any_text_may_be_mistyped(text: str) -> None:
    flags = ["--lr", "--train.learning-rate", "--rollout.top-p"]
    assert set(nearest(f"--{text}", flags)) <= set(flags)
    assert nearest("--lern-rate", flags)[0] == "--train.learning-rate"
    assert nearest("--xyzzyx", flags) == []


def test_short_flags_are_the_fields(opasd: CommandLine) -> None:
    words = ["--model", "lab", "--data", "lab", "--steps", "7", "--lr", "3e-4", "--seed", "5", "--output", "o"]
    words += ["--attention-weight", "0.25", "--max-new-tokens", "33", "--engine", "transformers", "--revision", "r"]
    _, _, config = parser().parse(words)
    assert (config.model.name_or_path, config.model.revision, config.data.source) == ("lab", "r", "lab")
    assert (config.train.max_steps, config.train.learning_rate, config.train.seed) == (7, 3e-4, 5)
    assert (config.objective.attention_weight, config.rollout.max_new_tokens, config.output_dir) == (0.25, 33, "o")
    _, text, _ = opasd("sweep", "lab", "--steps", "7", "--lr=3e-4", "--dry-run", "--output", "o")
    assert "train 7 steps" in text
    assert "train.learning_rate 0.0003" in text
    _, text, _ = opasd("plan", "--model", "lab", "--steps", "7")
    assert "lab: " in text
    assert "the run: 7 steps" in text


def test_a_line_break_may_be_written_in_a_wording() -> None:
    _, _, config = parser().parse(
        ["lab", "--prompts.instruction", r"One.\nTwo \\neq \boxed{}.", "--prompts.system", "a"]
    )
    assert config.prompts.instruction == "One.\nTwo \\neq \\boxed{}."
    _, _, config = parser().parse(["lab", r"--prompts.reference=A:\n{solution}\n\n"])
    assert config.prompts.reference == "A:\n{solution}\n\n"


@given(st.text(st.sampled_from("\\n \na")))
def test_wordings_come_back_from_flags(text: str) -> None:
    written = to_flags({"prompts.system": text or "x"})[-1].removeprefix("--prompts.system=")
    assert with_line_breaks(written) == (text or "x")


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured(Terminal())
    assert not coloured(io.StringIO())
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not coloured(Terminal())
    page = "usage: x\n\nwhat:\n  --steps N  Steps of on-policy runs. (default: 3)\n"
    assert re.sub(r"\x1b\[\d*m", "", painted(page)) == page
    assert "\x1b[36m--steps\x1b[0m" in painted(page)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, listed("name", "word " * 30, 8).splitlines())) <= 40


def test_completion_knows_commands_recipes_flags_and_values() -> None:
    assert "train" in candidates([], COMMANDS)
    assert set(recipe_names()) <= set(candidates(["train"], COMMANDS))
    assert "lab-lambda" in candidates(["sweep"], COMMANDS)
    assert {"--steps", "--resume", "--train.learning-rate"} <= set(candidates(["train", "lab"], COMMANDS))
    clips = candidates(["train", "lab", "--objective.token.clip"], COMMANDS)
    assert clips == ["none", "pointwise", "pointwise_masked", "per_token"]
    assert "vllm" in candidates(["train", "lab", "--engine"], COMMANDS)
    assert candidates(["train", "lab", "--resume"], COMMANDS) == []
    assert candidates(["recipes"], COMMANDS)[-3:] == ["list", "show", "copy"]
    assert "lab" in candidates(["recipes", "show"], COMMANDS)
    assert candidates(["nothing"], COMMANDS) == []
    for command in COMMANDS:
        assert "--help" in candidates([command, "x"], COMMANDS)


def test_a_shell_completes(opasd: CommandLine, tmp_path: Path) -> None:
    code, script, _ = opasd("--print-completion", "bash")
    assert (code, script) == (0, SCRIPTS["bash"])
    assert "give one of bash, zsh, fish" in opasd.refuses("--print-completion")
    assert opasd("--complete", "train", "lab", "--objective.token.cl")[1].splitlines() == [
        "--objective.token.clip",
        "--objective.token.clip-threshold",
    ]
    asked = "opasd() { printf '%s\\n' \"$@\"; }; COMP_WORDS=(opasd train la); COMP_CWORD=2; _opasd; "
    done = subprocess.run(
        ["bash", "-c", f'{script}{asked} echo "${{COMPREPLY[@]}}"'], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["--complete", "train", "la"]


def test_help_of_a_command_and_the_version(opasd: CommandLine) -> None:
    assert opasd("help", "train")[1] == opasd("train", "--help")[1]
    code, text, _ = opasd("--version")
    assert (code, text.split()[0]) == (0, "opasd")


def test_a_package_that_is_used_without_being_installed_has_no_version(opasd: CommandLine, monkeypatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("opasd.run.environment.metadata.version", missing)
    assert opasd("--version")[:2] == (0, "opasd not installed\n")
