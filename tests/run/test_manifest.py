"""The manifest of a folder: any change of any file is found, and the newest whole result of a run is taken."""

import hashlib
import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.errors import ConfigError
from opasd.files import write_json
from opasd.run.manifest import MANIFEST, checkpoints, damage_of, is_finished, newest_result, write_manifest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "checkpoint-3"
    (path / "inner").mkdir(parents=True)
    (path / "weights").write_bytes(bytes(range(256)) * 64)
    (path / "inner" / "state").write_bytes(b"state")
    (path / "empty").write_bytes(b"")
    write_manifest(path, "a")
    return path


@given(data=st.data())
def test_any_change_of_any_file_is_found(folder, data):
    assert damage_of(folder, "a") is None
    file = data.draw(st.sampled_from([path for path in sorted(folder.rglob("*")) if path.is_file()]))
    whole = file.read_bytes()
    changed = bytearray(whole)
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "remove"] if whole else ["grow", "remove"]))
    place = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    if kind == "flip":
        changed[place] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del changed[place:]
    elif kind == "grow":
        changed += b"x"
    try:
        file.unlink() if kind == "remove" else file.write_bytes(changed)
        fault = damage_of(folder, "a")
        if file.name == MANIFEST and kind != "remove":  # white space in it may change
            assert fault or _meaning(bytes(changed)) == _meaning(whole)
        else:
            assert fault is not None
            assert file.name in fault
    finally:
        file.write_bytes(whole)


def _meaning(text: bytes) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def test_a_manifest_names_nothing_outside_its_folder(folder, tmp_path):
    """Not even to compare it: the name of a file and a guess of its content would tell whether that is right."""
    folder = shutil.copytree(folder, tmp_path / "checkpoint-3")
    outside = tmp_path / "secret"
    outside.write_text("1234")
    manifest = json.loads((folder / MANIFEST).read_text())
    for name in ("../secret", str(outside)):
        manifest["files"][name] = {"bytes": 4, "sha256": hashlib.sha256(b"1234").hexdigest()}
        write_json(folder / MANIFEST, manifest)
        assert damage_of(folder) == f"it has no {name}"
        del manifest["files"][name]


def test_notes_may_be_added_and_numbers_are_digits(folder, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "checkpoint-3")
    for name in ("NOTES.md", ".hidden.json", "Modelfile", "model.gguf"):
        (folder / name).write_text("mine")
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / "evaluation.json").write_text("{}")
    assert damage_of(folder) is None
    for name in ("checkpoint-2", "checkpoint--3", "checkpoint-x-4", "checkpoint-٣"):
        (folder / name).mkdir()
    assert [path.name for path in checkpoints(folder)] == ["checkpoint-2"]


def test_a_folder_of_another_run(folder):
    assert damage_of(folder, "b") == "it is of another run"
    assert damage_of(folder) is None


def test_the_newest_whole_result_is_taken_and_the_others_are_named(folder, tmp_path, capsys):
    for name in ("checkpoint-3", "checkpoint-20", "final"):
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "final" / "README.md").touch()
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / "checkpoint-99").touch()
    assert newest_result(tmp_path) == tmp_path / "final"
    assert is_finished(tmp_path)
    for damaged, taken in (("final", "checkpoint-20"), ("checkpoint-20", "checkpoint-3")):
        (tmp_path / damaged / "weights").write_bytes(bytes(64 * 256))
        assert newest_result(tmp_path) == tmp_path / taken
        said = capsys.readouterr().err
        assert f"{damaged} is damaged: weights has changed since it was written; {taken} is used\n" in said
    (tmp_path / "final" / "weights").write_bytes(b"")
    assert not is_finished(tmp_path)
    (tmp_path / "checkpoint-3" / "weights").unlink()
    with pytest.raises(ConfigError, match=r"checkpoint-3 is damaged: it has no weights; continue the run"):
        newest_result(tmp_path)


def test_a_result_that_lost_its_manifest_is_damaged(folder, tmp_path, capsys):
    """A run whose environment names it writes manifests, so a folder without one is not as it was written."""
    for name in ("checkpoint-3", "final"):
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "final" / "README.md").touch()
    (tmp_path / "environment.json").write_text('{"run": "a"}')
    assert is_finished(tmp_path)
    (tmp_path / "final" / MANIFEST).unlink()
    assert not is_finished(tmp_path)
    assert newest_result(tmp_path) == tmp_path / "checkpoint-3"
    assert f"final is damaged: it has no {MANIFEST}, which is written last; checkpoint-3" in capsys.readouterr().err
    (tmp_path / "checkpoint-3" / MANIFEST).unlink()
    with pytest.raises(ConfigError, match="checkpoint-3 is damaged: it has no manifest.json"):
        newest_result(tmp_path)


def test_results_of_a_version_without_manifests(tmp_path):
    (tmp_path / "final").mkdir()
    assert newest_result(tmp_path) == tmp_path / "final"
    (tmp_path / "checkpoint-1").mkdir()
    assert newest_result(tmp_path) == tmp_path / "checkpoint-1"  # the card, written last, is not there
    (tmp_path / "final" / "README.md").touch()
    assert newest_result(tmp_path) == tmp_path / "final"
    shutil.rmtree(tmp_path / "final")
    shutil.rmtree(tmp_path / "checkpoint-1")
    assert newest_result(tmp_path) is None
