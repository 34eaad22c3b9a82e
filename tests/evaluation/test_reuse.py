"""Samples taken over from other evaluations: where everything agrees, and never where one ingredient differs."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from opasd.config import ModelConfig, RolloutConfig
from opasd.errors import ConfigError
from opasd.evaluation import folder as folders
from opasd.evaluation import reuse
from opasd.evaluation.loop import Base, Evaluation
from opasd.evaluation.samples import SampleFile
from opasd.evaluation.targets import Target
from opasd.lab import model_path
from tests.evaluation.lab import EIGHT_ROWS, SAMPLING, Quiet, make_adapter, run, short_evaluation


class Drawn(Exception):
    """Something would have been drawn."""


class Idle(Base):
    """A base whose engine is never wanted."""

    def engine(self, longest, adapters):
        raise Drawn


def idle(model: ModelConfig) -> Base:
    return Idle(model, EIGHT_ROWS)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return shutil.copytree(model_path(), tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory, model) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapters") / "one", 0, base=str(model))


def asking(model: Path, adapter: Path | None, *sources: Path, name: str = "first", **changes) -> Evaluation:
    target = Target(name, ModelConfig(name_or_path=str(model)), adapter)
    return dataclasses.replace(short_evaluation(target, **changes), reuse=sources)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, model, adapter) -> Path:
    """Six problems, two samples each, in groups of four."""
    path = tmp_path_factory.mktemp("drawn") / "evaluation"
    run(asking(model, adapter), path)
    return path


def lines(path: Path) -> list[dict]:
    return sorted(map(json.loads, (path / folders.SAMPLES).read_text().splitlines()), key=json.dumps)


def test_the_same_question_is_asked_once_whatever_the_names_of_target_and_folders(tmp_path, drawn, model, adapter):
    copies = [shutil.copytree(folder, tmp_path / f"moved-{folder.name}") for folder in (model, adapter)]
    progress = Quiet()
    results = run(asking(*copies, drawn.parent, name="second"), tmp_path / "new", idle, progress)
    source = f"{drawn}#first"
    assert results["reused"] == {source: 12}
    assert progress.skipped == 12
    assert progress.said == [f"reused: 12 samples of 12 (12 from {source})"]
    assert results["spent"]["total"]["calls"] == results["spent"]["tokens"] == 0
    assert lines(tmp_path / "new") == [row | {"target": "second", "source": source} for row in lines(drawn)]
    before = json.loads((drawn / folders.RESULTS).read_text())
    assert "reused" not in before
    assert results["results"] == [row | {"target": "second"} for row in before["results"]]
    # A third evaluation names the folder where the samples were drawn, not the one that took them over.
    third = run(asking(model, adapter, tmp_path / "new"), tmp_path / "third", idle)
    assert third["reused"] == {source: 12}


def test_whole_groups_of_a_longer_or_shorter_evaluation_are_reused_and_the_rest_is_drawn(
    tmp_path, drawn, model, adapter
):
    more = run(asking(model, adapter, drawn, problems=7), tmp_path / "more")
    assert more["reused"] == {f"{drawn}#first": 12}
    assert more["spent"]["total"]["samples"] == 2
    fewer = run(asking(model, adapter, drawn, problems=4), tmp_path / "fewer", idle)
    assert fewer["reused"] == {f"{drawn}#first": 8}
    whole = run(asking(model, adapter, problems=7), tmp_path / "whole")
    assert more["results"] == whole["results"]


def test_two_targets_of_one_model_are_asked_once(tmp_path, model, adapter):
    first, second = (Target(name, ModelConfig(name_or_path=str(model)), adapter) for name in ("a", "b"))
    results = run(short_evaluation(first, second, problems=2), tmp_path / "both")
    assert results["reused"] == {f"{tmp_path / 'both'}#a": 4}
    assert results["spent"]["total"]["samples"] == 4
    scores = [row["per_problem"] for row in results["results"]]
    assert scores[0] == scores[1]


def changed_bytes(path: Path, at: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 1
    path.write_bytes(content)


def other_template(model: Path) -> None:
    for path in (*model.glob("*.jinja"), model / "tokenizer_config.json"):
        text = path.read_text()
        if path.suffix == ".jinja":
            path.write_text(text + "{# the same prompts #}")
        elif '"chat_template"' in text:
            path.write_text(json.dumps(json.loads(text) | {"chat_template": "{{ messages[0]['content'] }}"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SAMPLING.model_copy(update={"temperature": 0.9})},
        {"sampling": SAMPLING.model_copy(update={"top_p": 0.9})},
        {"sampling": SAMPLING.model_copy(update={"top_k": 3})},
        {"sampling": SAMPLING.model_copy(update={"max_new_tokens": 47})},
        {"seed": 1},
        {"thinking": True},
        {"samples": 3},
        {"group": 5},
    ],
    ids=str,
)
def test_another_setting_is_another_question(tmp_path, drawn, model, adapter, changes):
    with pytest.raises(Drawn):
        run(asking(model, adapter, drawn, **changes), tmp_path / "new", idle)
    assert not (tmp_path / "new" / folders.SAMPLES).exists()


@pytest.mark.parametrize("ingredient", ["template", "weights", "adapter", "adapter's settings", "no adapter"])
def test_other_files_are_another_model(tmp_path, drawn, model, adapter, ingredient):
    model, one = shutil.copytree(model, tmp_path / "small"), shutil.copytree(adapter, tmp_path / "one")
    if ingredient == "template":
        other_template(model)
    elif ingredient == "weights":
        changed_bytes(next(model.glob("*.safetensors")), 0.5)
    elif ingredient == "adapter":
        changed_bytes(one / "adapter_model.safetensors", 0.5)
    elif ingredient == "adapter's settings":
        about = json.loads((one / "adapter_config.json").read_text())
        (one / "adapter_config.json").write_text(json.dumps(about | {"lora_alpha": 99}))
    with pytest.raises(Drawn):
        run(asking(model, None if ingredient == "no adapter" else one, drawn), tmp_path / "new", idle)


def test_other_engines_number_formats_and_versions_are_other_models(model, monkeypatch):
    small = ModelConfig(name_or_path=str(model))
    others = [
        small.model_copy(update=update)
        for update in ({"dtype": "bfloat16"}, {"attn_implementation": "eager"}, {"adaptation": "qlora"})
    ]
    digests = [reuse.base_digest(other, EIGHT_ROWS) for other in (small, *others)]
    digests += [reuse.base_digest(small, RolloutConfig(max_batch=9))]
    digests += [reuse.base_digest(small, RolloutConfig(engine="vllm", max_batch=8))]
    monkeypatch.setattr(reuse, "VERSION", 2)
    digests.append(reuse.base_digest(small, EIGHT_ROWS))
    assert len(set(digests)) == len(digests)
    assert all(digests)
    monkeypatch.undo()
    # The settings of training an adapter do not matter.
    assert reuse.base_digest(small.model_copy(update={"lora_r": 3}), EIGHT_ROWS) == digests[0]


def test_what_is_known_by_name_alone_is_never_reused(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub = ModelConfig(name_or_path="org/name")
    assert reuse.base_digest(hub, EIGHT_ROWS) == ""
    cached, commits = tmp_path / "models--org--name", []
    (cached / "refs").mkdir(parents=True)
    for commit in ("a" * 40, "b" * 40, "a" * 40):
        (cached / "refs" / "main").write_text(commit)
        (cached / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
        (cached / "snapshots" / commit / "config.json").write_text("{}")
        commits.append(reuse.base_digest(hub, EIGHT_ROWS))
    assert all(commits)
    assert commits[0] == commits[2] != commits[1]
    served = RolloutConfig.model_validate({"engine": "vllm_server", "servers": {"urls": ["http://localhost:1"]}})
    assert reuse.base_digest(hub, served) == reuse.model_digest("", None) == ""
    key = next(iter(SampleFile(drawn / folders.SAMPLES))).key
    assert reuse.Shelf([drawn]).take(reuse.question("", [[1]], SAMPLING, [0]), [key]) == []


def test_old_damaged_or_replaced_samples_are_not_taken(tmp_path, drawn):
    path = shutil.copytree(drawn, tmp_path / "copy")
    first, *_ = samples = list(SampleFile(path / folders.SAMPLES))
    shelf = reuse.Shelf([path])
    assert [sample.source for sample in shelf.take(first.asked, [first.key])] == [f"{path}#first"]
    file = path / folders.SAMPLES
    whole = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(reversed(whole)))
    assert shelf.take(first.asked, [first.key]) == []
    file.write_bytes(b"{}\n\xff\n" + whole[0][:-1])  # the end of the last line is not there yet
    shelf = reuse.Shelf([path])
    assert shelf.take(first.asked, [first.key]) == []
    with file.open("ab") as open_file:
        open_file.write(b"\n")
    assert len(shelf.take(first.asked, [first.key])) == 1
    # Those of an earlier version do not say what was asked.
    SampleFile(file).replace([dataclasses.replace(sample, asked="") for sample in samples])
    assert reuse.Shelf([path]).take(first.asked, [first.key]) == reuse.Shelf([path]).take("", [first.key]) == []


def test_verdicts_are_given_anew(tmp_path, drawn, model, adapter):
    path = shutil.copytree(drawn, tmp_path / "copy")
    file = SampleFile(path / folders.SAMPLES)
    file.replace([dataclasses.replace(sample, verdict="grader_failed", answer="1") for sample in list(file)])
    results = run(asking(model, adapter, path, budgets=(20, 48)), tmp_path / "new", idle)
    assert sum(row["verdicts"]["grader_failed"] for row in results["results"]) == 0
    assert {row["budget"] for row in results["results"]} == {20, 48}


def test_a_folder_that_is_not_there_is_a_mistake_unless_the_evaluation_makes_it(tmp_path):
    with pytest.raises(ConfigError, match="--reuse: no folder .*absent; give"):
        reuse.check_folders([tmp_path / "absent"], tmp_path / "sweep" / "a.evaluation")
    reuse.check_folders([tmp_path / "sweep"], tmp_path / "sweep" / "a.evaluation")
