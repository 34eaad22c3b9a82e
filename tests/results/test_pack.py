"""The archives of results/: what is packed, what is unpacked, and how many files there are."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.results.importing import RESULTS, imported


@pytest.fixture
def pack() -> Iterator[ModuleType]:
    with imported("pack") as module:
        yield module


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Make a sweep's folder with one run, its evaluation and one evaluation that was cut short."""
    answers = [
        {
            "benchmark": "arithmetic",
            "problem": "test/1",
            "sample": 0,
            "seed": 5,
            "text": "Wait, 1 + 1 = 3",
            "ids": [7, 8],
        },
        {"benchmark": "arithmetic", "problem": "test/1", "sample": 1, "seed": 6, "text": "2", "ids": [9]},
    ]
    files = {
        "logs/opasd.log": "a line",
        "state/opasd.json": '{"train": {"code": 0}}',
        "opasd/config.yaml": "name: opasd\noutput_dir: /home/someone/sweeps/made\n",
        "opasd/metrics.jsonl": '{"step": 1, "loss": 0.1}\n',
        "opasd/final/README.md": "# opasd\n\nOne line.\n\n## More\n\nAnother line.\n",
        "opasd/final/adapter_model.safetensors": "weights",
        "opasd/checkpoint-1/README.md": "# checkpoint",
        "opasd.evaluation/settings.json": "{}",
        "opasd.evaluation/evaluation.json": "{}",
        "opasd.evaluation/samples.jsonl": "".join(f"{json.dumps(row)}\n" for row in answers),
        "base.evaluation/settings.json": "{}",
        "base.evaluation/samples.jsonl": "",
    }
    for name, text in files.items():
        path = tmp_path / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "made"


def run(pack: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["pack.py", *map(str, arguments)])
    pack.main()


def test_a_sweep_is_packed_and_unpacked(
    pack: ModuleType, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, folder = tmp_path / "made.tar.xz", tmp_path / "again"
    run(pack, monkeypatch, "pack", sweep, archive)
    run(pack, monkeypatch, "unpack", archive, folder)
    unpacked = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    answers = [json.loads(line) for line in unpacked.pop("made/opasd.evaluation/samples.jsonl").splitlines()]
    assert unpacked == {
        "made/state/opasd.json": '{"train": {"code": 0}}',
        "made/opasd/config.yaml": "name: opasd\noutput_dir: made\n",
        "made/opasd/metrics.jsonl": '{"step": 1, "loss": 0.1}\n',
        "made/opasd/final/README.md": "# opasd\n\nOne line.\n",
        "made/opasd.evaluation/settings.json": "{}",
        "made/opasd.evaluation/evaluation.json": "{}",
    }
    assert answers == [
        {"benchmark": "arithmetic", "problem": "test/1", "sample": 0, "text": "Wait, 1 + 1 = 3", "tokens": 2},
        {"benchmark": "arithmetic", "problem": "test/1", "sample": 1, "tokens": 1},
    ]


def test_packing_what_was_unpacked_gives_the_same_bytes(
    pack: ModuleType, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, folder = tmp_path / "first.tar.xz", tmp_path / "second.tar.xz", tmp_path / "again"
    run(pack, monkeypatch, "pack", sweep, first)
    run(pack, monkeypatch, "unpack", first, folder)
    run(pack, monkeypatch, "pack", folder / "made", second)
    assert first.read_bytes() == second.read_bytes()


def test_counts_replace_texts_and_unfinished_evaluations_are_packed_on_request(pack: ModuleType, sweep: Path) -> None:
    files = pack.pack(sweep, counts=True, unfinished=True)
    answer = json.loads(files["opasd.evaluation/samples.jsonl"].splitlines()[0])
    assert "text" not in answer
    assert answer["equations"] == [0, 1]
    assert sum(answer["markers"].values()) == 1
    assert "base.evaluation/settings.json" in files


def test_an_archive_keeps_its_other_sweeps(
    pack: ModuleType, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "made.tar.xz"
    run(pack, monkeypatch, "pack", sweep, archive)
    run(pack, monkeypatch, "pack", sweep, archive, "--name", "other")
    (sweep / "opasd" / "metrics.jsonl").unlink()
    run(pack, monkeypatch, "pack", sweep, archive)
    names = pack.read_archive(archive)
    assert "other/opasd/metrics.jsonl" in names
    assert "made/opasd/config.yaml" in names
    assert "made/opasd/metrics.jsonl" not in names


def test_a_folder_without_records_is_refused(
    pack: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(pack, monkeypatch, "pack", tmp_path, tmp_path / "made.tar.xz")
    assert "nothing to pack" in capsys.readouterr().err
    assert not (tmp_path / "made.tar.xz").exists()


def test_there_are_at_most_30_records() -> None:
    """Beside them: scripts, and the sweeps' own files."""
    files = [path for path in RESULTS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len([path for path in files if path.suffix not in (".py", ".yaml")]) <= 30


def test_an_archive_of_the_project_is_read(pack: ModuleType) -> None:
    names = pack.read_archive(RESULTS / "lab" / "early.tar.xz")
    assert "early/opasd-seed-42/metrics.jsonl" in names
    assert "early/opasd-seed-42.evaluation/evaluation.json" in names
