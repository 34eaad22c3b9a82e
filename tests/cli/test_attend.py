"""`opasd attend`, as it is typed: on the embedded model and on a trained run."""

import json
import re

import torch
from safetensors.torch import load_file, save_file

from opasd.cli import main
from opasd.config import RunConfig
from opasd.recipes import load_recipe
from opasd.report.folders import read_run
from opasd.report.viewer import is_record
from opasd.run.folder import RunFolder
from opasd.trainer.session import train
from tests.evaluation.lab import make_adapter


def config(tmp_path) -> RunConfig:
    record = load_recipe("lab").config()
    small = record.train.model_copy(update={"max_steps": 1, "save_steps": 1, "per_device_train_batch_size": 2})
    data = record.data.model_copy(update={"sample": 16})
    return record.model_copy(
        update={
            "train": small,
            "data": data,
            "validation_data": {},
            "output_dir": str(tmp_path),
            "save_samples_every": 0,
        }
    )


def test_the_embedded_model(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["attend", "lab", "--problem", "3"]) == 0
    assert capsys.readouterr().out == "attention-lab-3.html\n"
    assert (tmp_path / "attention-lab-3.html").stat().st_size < 600_000


def test_a_run_before_and_after(tmp_path, capsys):
    folder = RunFolder.create(config(tmp_path), "run")
    train(folder.config, folder.path)
    capsys.readouterr()
    assert main(["attend", str(folder.path), "--problem", "1", "2", "--max-new-tokens", "12"]) == 0
    assert capsys.readouterr().out == f"{folder.path / 'attention' / 'problem-1-2.html'}\n"
    record = json.loads((folder.path / "attention" / "problem-2.json").read_text())
    assert is_record(record)
    assert [view["stage"] for view in record["views"]] == ["before", "after"]
    assert record["views"][0]["divergence"] != record["views"][1]["divergence"]
    assert len(record["views"][0]["divergence"]) <= 12
    assert len(read_run(folder.path).attention) == 2
    assert main(["report", str(folder.path), "--out", str(tmp_path / "report")]) == 0
    assert "Where they look" in (tmp_path / "report" / "report.html").read_text()


def test_a_run_whose_adapter_is_cut(tmp_path, capsys):
    folder = RunFolder.create(config(tmp_path), "run").path
    weights = make_adapter(folder / "final", 0) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert main(["attend", str(folder)]) == 2
    assert "final is damaged: it has no manifest.json" in capsys.readouterr().err
    (folder / "environment.json").unlink()  # of a version without manifests
    assert main(["attend", str(folder)]) == 2
    assert f"the adapter in {folder / 'final'} is damaged (" in capsys.readouterr().err


def test_what_is_not_ours_is_not_overwritten(tmp_path, capsys):
    folder = RunFolder.create(config(tmp_path), "run")
    train(folder.config, folder.path)
    file = tmp_path / "problem-1.json"
    for content in ("mine", "{}", "[" * 100_000):
        file.write_text(content)
        capsys.readouterr()
        assert main(["attend", str(folder.path), "--output", str(tmp_path / "page.html"), "--max-new-tokens", "5"]) == 2
        assert "problem-1.json exists and is no record of ours" in capsys.readouterr().err
        assert file.read_text() == content
        assert not (tmp_path / "page.html").exists()
    file.unlink()
    for _ in range(2):  # its own is replaced
        assert main(["attend", str(folder.path), "--output", str(tmp_path / "page.html"), "--max-new-tokens", "5"]) == 0
    assert is_record(json.loads(file.read_text()))


def test_what_does_not_fit_the_context_is_one_message(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long").write_text("1 2 3 " * 800)
    assert main(["attend", "lab", "--completion", "long"]) == 2
    said = capfd.readouterr()
    match = re.fullmatch(
        r"error: --completion: the text has 24\d\d tokens, of which at most (\d+) fit the model's context of 1024 "
        r"beside the problem and its solution; give a shorter one\n",
        said.err,
    )
    assert match, said.err
    assert list(tmp_path.glob("*.html")) == []
    for count, code in ((int(match[1]), 0), (int(match[1]) + 1, 2)):
        (tmp_path / "text").write_text(" ".join("1" * count))
        assert main(["attend", "lab", "--completion", "text", "--output", "page.html"]) == code
    (tmp_path / "d.jsonl").write_text(json.dumps({"problem": "1", "solution": " ".join("1" * 1200), "answer": "1"}))
    capfd.readouterr()
    assert main(["attend", "lab", "--data", "d.jsonl"]) == 2
    assert re.search(
        r"the problem has 1024 tokens with its solution, and the model's context is 1024", capfd.readouterr().err
    )


def test_an_answer_is_sampled_within_the_context(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("opasd.report.attend.stop_ids", lambda *_: frozenset())
    (tmp_path / "d.jsonl").write_text(json.dumps({"problem": "1", "solution": " ".join("1" * 800), "answer": "1"}))
    assert main(["attend", "lab", "--data", "d.jsonl", "--max-new-tokens", "5000", "--output", "page.html"]) == 0
    [record] = json.loads(re.search(r'id="attention-data">(.*?)</script>', (tmp_path / "page.html").read_text())[1])
    assert len(record["teacher"]["tokens"]) == 1024
    assert len(record["seen"]["shared"]) == 1024 - record["teacher"]["prompt"] < 200


def test_mistakes(tmp_path, capsys):
    (tmp_path / "c").write_text("x")
    for arguments, words in {
        ("lab", "--problem", "1", "2", "--completion", str(tmp_path / "c")): "the answer to one problem",
        (str(tmp_path),): "neither a run",
        ("",): "nothing to look at",
    }.items():
        assert main(["attend", *arguments]) == 2
        assert words in capsys.readouterr().err


def test_a_model_that_computes_nan_has_nothing_to_show(tmp_path, capsys):
    folder = RunFolder.create(config(tmp_path), "run").path
    file = make_adapter(folder / "final", 0) / "adapter_model.safetensors"
    save_file({name: weight * torch.inf for name, weight in load_file(file).items()}, file)
    (folder / "environment.json").unlink()  # of a version without manifests
    assert main(["attend", str(folder), "--max-new-tokens", "2", "--output", str(tmp_path / "page.html")]) == 2
    assert "error: NaN or infinity in the attention (after), so there is nothing to show" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
