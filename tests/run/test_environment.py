"""The record of machine, command and repository: secrets are masked."""

import json
import subprocess
from pathlib import Path

import pytest

from opasd.recipes.checking import leaves
from opasd.run.environment import environment, repository


def test_the_repository_is_recorded_and_its_changes_if_asked_for(tmp_path: Path) -> None:
    assert repository(tmp_path) == {}
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "f").write_text("one\n")
    for command in (["init", "-q"], ["add", "f"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    assert json.loads(repository(tmp_path)["git.json"])["clean"]
    (tmp_path / "f").write_text("two\n")
    (tmp_path / "new").write_text("")
    assert set(repository(tmp_path)) == {"git.json"}  # whatever is not committed may be a secret
    files = repository(tmp_path, with_diff=True)
    assert "+two" in files["git.diff"]
    assert json.loads(files["git.json"])["untracked"] == ["new"]
    (tmp_path / "f").write_text("x" * (2 << 20))
    cut = repository(tmp_path, with_diff=True)
    assert json.loads(cut["git.json"])["diff_cut"]
    assert len(cut["git.diff"]) == 1 << 20


def test_secrets_on_the_command_line_are_masked() -> None:
    command = environment(["opasd", "--a.hub_token=abc", "--api-key", "def", "--x", "y"])["command"]
    assert command == ["opasd", "--a.hub_token=***", "--api-key", "***", "--x", "y"]
    assert environment(["HF_TOKEN=a\nb=c"])["command"] == ["HF_TOKEN=***"]


@pytest.mark.parametrize(
    "address", ["http://u:abc@host:1/v1", "--judge=https://abc@host:1/v1", "http://host:1/v1?k=abc#m"]
)
def test_secrets_in_addresses_are_left_out(address) -> None:
    (said,) = environment([address])["command"]
    assert "abc" not in said
    assert "://host:1/v1" in said
    assert environment(["What? http://host:1/x#m & so?"])["command"] == ["What? http://host:1/x#m & so?"]


def test_no_field_of_the_configuration_is_masked() -> None:
    command = [word for path, _ in leaves() for word in (f"--{'.'.join(path)}".replace("_", "-"), "value")]
    command += [f"--{'.'.join(path)}=value" for path, _ in leaves()]
    assert environment(command)["command"] == command
