"""A whole run from its configuration, with real files: result, card, resume, merge, signals, and a user's mistakes."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from opasd import cli
from opasd.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from opasd.data.sets import load_set
from opasd.errors import ConfigError, DataError, NonFiniteError, PromptError
from opasd.model import loading, merging
from opasd.run.records import Records
from opasd.trainer import result, session
from tests.nursery import Python
from tests.processes import wait_until
from tests.training import make_model, write_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with a model, its tokenizer and a file of problems."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


def make_config(inputs, **changes):
    values = {
        "model": {"name_or_path": str(inputs / "model"), "lora_r": 4, "lora_alpha": 8},
        "data": {"source": str(inputs / "sums.jsonl")},
        "validation_data": {"sums": {"source": str(inputs / "sums.jsonl"), "sample": 3}},
        "validation": {"every": 2, "sampling": {"max_new_tokens": 4}},
        "rollout": {"max_new_tokens": 6},
        "train": {
            "max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 0.01,
            "gradient_checkpointing": False, "save_steps": 1, "extra": {"use_cpu": True},
        },
    }  # fmt: skip
    for path, value in changes.items():
        section, _, field = path.partition("__")
        if field:
            values.setdefault(section, {})[field] = value
        else:
            values[section] = value
    return RunConfig.model_validate(values)


def test_a_run_and_what_it_leaves(inputs, tmp_path):
    config = make_config(inputs)
    assert session.train(config, tmp_path) == "finished"
    assert [row["step"] for row in Records(tmp_path / "metrics.jsonl") if "loss" in row] == [1, 2]
    assert any("validation/sums/avg@1" in row for row in Records(tmp_path / "metrics.jsonl"))
    card = (tmp_path / "final" / "README.md").read_text()
    assert "| attention divergence |" in card
    assert '"source": "sums.jsonl"' in card
    base = AutoModelForCausalLM.from_pretrained(inputs / "model")
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "final"))
    ids = torch.tensor([[4, 5, 6]])
    merging.merge(tmp_path / "final", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, atol=1e-4, rtol=1e-3)
        with adapted.disable_adapter():
            assert (merged(ids).logits - adapted(ids).logits).abs().max() > 1e-4


def test_full_fine_tuning_leaves_a_model(inputs, tmp_path):
    assert (
        session.train(make_config(inputs, model__adaptation="full", train__learning_rate=1e-4), tmp_path) == "finished"
    )
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    base = AutoModelForCausalLM.from_pretrained(inputs / "model")
    assert any(not torch.equal(a, b) for a, b in zip(trained.parameters(), base.parameters(), strict=True))


SCRIPT = """
import sys
from pathlib import Path
from opasd.trainer import result, session
from opasd.config import DataConfig, RunConfig
config = RunConfig.model_validate_json(Path(sys.argv[1]).read_text())
print(session.train(config, Path(sys.argv[2]), resume=sys.argv[3] == "resume"))
"""


def test_sigterm_saves_and_the_run_resumes(inputs, tmp_path):
    config = make_config(inputs, train__max_steps=400, train__save_steps=1000, validation__every=0)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    metrics = tmp_path / "run" / "metrics.jsonl"
    with Python("-c", SCRIPT, str(tmp_path / "config.json"), str(tmp_path / "run"), "new") as process:
        wait_until(lambda: list(Records(metrics)), process)  # its first step is done, and so it listens to the signal
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[0].strip() == "stopped"
    steps = [row["step"] for row in Records(metrics)]
    assert 0 < steps[-1] < 400
    assert (tmp_path / "run" / f"checkpoint-{steps[-1]}").is_dir()
    shorter = config.model_copy(update={"train": config.train.model_copy(update={"max_steps": steps[-1] + 2})})
    assert session.train(shorter, tmp_path / "run", resume=True) == "finished"
    assert [row["step"] for row in Records(metrics)] == list(range(1, steps[-1] + 3))


@pytest.mark.parametrize(("steps", "file"), [(1, "final"), (2, "metrics.jsonl")])
def test_a_full_disk_is_reported_at_every_file(inputs, tmp_path, monkeypatch, steps, file):
    """A link to /dev/full instead of a file that is written late."""
    config = make_config(inputs, train__max_steps=steps, validation__every=0)
    whole = session.OPASDTrainer.log

    def log(self, logs, *args, **kwargs):
        whole(self, logs, *args, **kwargs)
        if "grad_norm" in logs and self.state.global_step == 1 and file != "final":
            (tmp_path / file).unlink(missing_ok=True)
            (tmp_path / file).symlink_to("/dev/full")

    def save(trainer, output):
        output.mkdir()
        (output / "tokenizer_config.json").symlink_to("/dev/full")
        whole_save(trainer, output)

    whole_save = result.save
    monkeypatch.setattr(session.OPASDTrainer, "log", log)
    if file == "final":
        monkeypatch.setattr(result, "save", save)
    with pytest.raises(ConfigError, match="could not be written: No space left on device; free some space") as caught:
        session.train(config, tmp_path)
    assert "continue with --resume" in str(caught.value)
    assert not (tmp_path / "final").exists()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model__name_or_path": "/no/such/folder"}, ConfigError, "cannot load the tokenizer '/no/such/folder'"),
        ({"model__name_or_path": "nobody/nothing"}, ConfigError, "cannot load the tokenizer 'nobody/nothing'"),
        ({"model__lora_target_modules": ["qproj"]}, ConfigError, "names qproj, which the qwen3 model does not have"),
        ({"data": {"source": "/no/file.jsonl"}}, DataError, "/no/file.jsonl"),
        ({"data__columns": {"question": "question"}}, DataError, "question"),
        ({"model__adaptation": "qlora"}, ConfigError, "qlora needs bitsandbytes"),
        ({"train__extra": {"use_cpus": True}}, ConfigError, "use_cpus is no field of TrainingArguments"),
        (
            {"train__extra": {"dataloader_num_workers": "abc"}},
            ConfigError,
            "dataloader_num_workers: got 'abc'; give int",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(inputs, tmp_path, changes, error, message):
    with pytest.raises(error, match=message) as caught:
        session.train(make_config(inputs, **changes), tmp_path / "run")
    assert "\n" not in str(caught.value).strip()


def test_a_bad_validation_question_is_met_before_the_first_step(inputs, tmp_path, capsys):
    rows = [{"problem": "Say <|im_end|>", "answer": "1"}, {"problem": "1 + 1?", "answer": "2"}]
    (tmp_path / "held.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    held = {"source": str(tmp_path / "held.jsonl"), "columns": {"solution": None}}

    def run(folder, **more):
        config = make_config(inputs, prompts={"imitation": "refuse"}, validation_data={"v": held | more})
        return session.train(config, folder)

    with pytest.raises(PromptError, match=r"validation set v, \S*held.jsonl:1: ") as caught:
        run(tmp_path / "stopped")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "stopped" / "metrics.jsonl").exists()
    assert run(tmp_path / "run", on_bad_row="skip") == "finished"
    assert re.search(r"validation_data.v: .* No prompt can be made of 1 of these: imitation \(\S*held.jsonl:1\)",
                     capsys.readouterr().err)  # fmt: skip
    assert any("validation/v/avg@1" in row for row in Records(tmp_path / "run" / "metrics.jsonl"))
    with pytest.raises(ConfigError, match="no question of the validation set v can be asked"):
        run(tmp_path / "none", on_bad_row="skip", rows=":1")


def test_a_validation_set_that_cannot_be_read_is_named(inputs, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"question": "1 + 1?"}\n')
    config = make_config(inputs, validation_data={"mine": {"source": str(tmp_path / "bad.jsonl")}})
    with pytest.raises(DataError, match=r"^validation_data.mine: .*--validation-data.mine null") as caught:
        session.train(config, tmp_path / "run")
    assert not re.search(r"(?<!validation_)data\.(source|columns|on_bad_row)", str(caught.value))


def test_rows_left_out_are_reported_and_recorded(inputs, tmp_path, capsys):
    good = (inputs / "sums.jsonl").read_text()
    (tmp_path / "some.jsonl").write_text("{broken\n" * 30 + good + good)
    config = make_config(
        inputs, data={"source": str(tmp_path / "some.jsonl"), "on_bad_row": "skip"}, train__max_steps=1
    )
    assert session.train(config, tmp_path / "run") == "finished"
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("data: ")]
    assert len(lines) == 1
    assert "16 of 62 rows used. Left out: 16 by deduplicate. Bad rows skipped: 30 (" in lines[0]
    accounts = json.loads((tmp_path / "run" / "data.json").read_text())
    assert list(accounts) == ["data", "validation_data.sums"]
    data = accounts["data"]
    assert (data["source"], data["revision"], data["rows"], data["kept"], data["bad"]) == (
        str(tmp_path / "some.jsonl"), None, 62, 16, 30,
    )  # fmt: skip
    assert data["faults"][0].startswith("some.jsonl, row 1: is not valid JSON")
    assert accounts["validation_data.sums"]["left_out"] == {"sample": 13}
    embedded = load_set(DataConfig(source="lab", sample=3), "train")
    assert (embedded.report.source, embedded.report.rows, embedded.report.kept) == ("lab", 3, 3)


@pytest.mark.parametrize("changed", ["data", "validation_data.sums"])
def test_a_run_does_not_resume_with_other_data(inputs, tmp_path, changed):
    rows = (inputs / "sums.jsonl").read_text().splitlines(keepends=True)
    files = {name: tmp_path / f"{name}.jsonl" for name in ("data", "validation_data.sums")}
    for path in files.values():
        path.write_text("".join(rows))
    sets = {"data": {"source": str(files["data"])},
            "validation_data": {"sums": {"source": str(files["validation_data.sums"])}}}  # fmt: skip
    assert session.train(make_config(inputs, **sets), tmp_path / "run") == "finished"
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.json*")}
    files[changed].write_text("".join(rows[1:]))
    longer = make_config(inputs, **sets, train__max_steps=3)
    with pytest.raises(ConfigError, match=rf"^{changed}: the problems are not .* \(then: 16 rows of .*, now: 15\)"):
        session.train(longer, tmp_path / "run", resume=True)
    assert {path: path.read_bytes() for path in before} == before
    files[changed].write_text("".join(rows))
    assert session.train(longer, tmp_path / "run", resume=True) == "finished"


def test_data_that_gives_too_few_steps_is_reported(inputs, tmp_path):
    few = {"source": str(inputs / "sums.jsonl"), "sample": 3}
    config = make_config(inputs, data=few, train__extra={"use_cpu": True, "dataloader_drop_last": True})
    with pytest.raises(ConfigError, match="training ended after 0 of 2 steps .*: 3 problems; give more, or leave out"):
        session.train(config, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train_sampling_strategy", "group_by_length"),
        ("eval_strategy", "steps"),
        ("fsdp", "full_shard"),
        ("dataloader_num_workers", -1),
        ("data_seed", 1.5),
        ("neftune_noise_alpha", "much"),
        ("parallelism_config", "mine"),
        ("push_to_hub", True),
        ("torch_compile_backend", "none of these"),
        ("accelerator_config", "absent.json"),
        ("warmup_ratio", "a tenth"),
        ("adam_epsilon", True),
        ("dataloader_drop_last", 1),
    ],
)
def test_settings_that_transformers_cannot_train_with(inputs, tmp_path, name, value, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = make_config(inputs, validation_data={}, train__extra={"use_cpu": True, name: value})
    with pytest.raises(ConfigError, match=rf"^(train(\.extra.*{name}|: .*absent.json)|{name}: )") as caught:
        session.train(config, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "samples.jsonl").exists()


def test_weights_that_are_no_numbers_are_not_saved(inputs, tmp_path):
    config = make_config(inputs, train__max_steps=1, train__learning_rate=1e38)
    with pytest.raises(NonFiniteError, match="NaN or infinity in the weights after step 1"):
        session.train(config, tmp_path)
    assert not (tmp_path / "final").exists()


def test_a_broken_model_folder(inputs, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot load the tokenizer"):
        session.train(make_config(inputs, model__name_or_path=str(tmp_path / "model")), tmp_path / "run")


def test_a_folder_without_a_tokenizer_is_reported(inputs, tmp_path):
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_bytes((inputs / "model" / name).read_bytes())
    with pytest.raises(ConfigError, match="model has no tokenizer: a text gives no token"):
        session.train(make_config(inputs, model__name_or_path=str(tmp_path / "model")), tmp_path / "run")


def _weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_weights_that_are_missing_or_of_another_shape_are_reported(inputs, tmp_path):
    shutil.copytree(inputs / "model", tmp_path / "model")
    config = make_config(inputs, model__name_or_path=str(tmp_path / "model"))
    name = "model.layers.0.mlp.up_proj.weight"
    _weights(tmp_path / "model", lambda weights: weights.pop(name))
    with pytest.raises(ConfigError, match=f"model has no {name}, and random"):
        session.train(config, tmp_path / "run")
    _weights(tmp_path / "model", lambda weights: weights.update({name: torch.zeros(3, 3)}))
    with pytest.raises(ConfigError, match="cannot load the model"):
        session.train(config, tmp_path / "run")


def test_a_tokenizer_file_of_nothing_is_reported(inputs, tmp_path):
    shutil.copytree(inputs / "model", tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot load the tokenizer"):
        session.train(make_config(inputs, model__name_or_path=str(tmp_path / "model")), tmp_path / "run")


def test_what_a_model_cannot_do_is_reported(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(type(make_model()), "supports_gradient_checkpointing", False)
    config = make_config(inputs, train={"gradient_checkpointing": True, "extra": {"use_cpu": True}})
    with pytest.raises(ConfigError, match="cannot recompute activations; set train.gradient_checkpointing to false"):
        session.train(config, tmp_path)


def test_full_training_in_half_precision_is_warned_of(inputs, tmp_path):
    config = make_config(inputs, model__adaptation="full", model__dtype="bfloat16")
    with pytest.warns(UserWarning, match="all weights are trained in torch.bfloat16") as caught:
        assert session.train(config, tmp_path) == "finished"
    advice = dict(re.findall(r"((?:model|train)\.\w+): (\w+)", str(caught[0].message)))
    assert advice == {"model.dtype": "float32", "train.bf16": "true"}
    flags = [word for field, value in advice.items() for word in (f"--{field}", value)]
    assert cli.main(["validate", "lab", "--model.adaptation", "full", *flags]) == 0


def test_layers_of_other_kinds_can_be_named_and_those_that_cannot_be_adapted_are_reported():
    shape = {"vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = ModelConfig(lora_target_modules=("c_attn",), lora_r=2)
    adapted = loading.adapt(GPT2LMHeadModel(GPT2Config(**shape)), config, checkpointing=False)
    assert any("c_attn.lora_A" in name for name, _ in adapted.named_parameters())
    model = make_model()
    model.extra = torch.nn.ModuleDict({"q_proj": torch.nn.LayerNorm(3)})
    with pytest.raises(ConfigError, match="cannot be adapted like this: Target module LayerNorm.*; name other modules"):
        loading.adapt(model, ModelConfig(lora_target_modules=("q_proj",)), checkpointing=False)


def test_a_broken_chat_template_is_reported(inputs, tmp_path):
    shutil.copytree(inputs / "model", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(ConfigError, match="chat template cannot render"):
        session.train(make_config(inputs, model__name_or_path=str(tmp_path / "model")), tmp_path / "run")


def test_merging_what_is_no_adapter(tmp_path):
    with pytest.raises(ConfigError, match="is no adapter"):
        merging.merge(tmp_path, tmp_path / "out")


def test_the_embedded_task_has_splits_of_its_own_and_knows_nothing_else():
    def ids(split, role="train"):
        return [p.id for p in load_set(DataConfig(source="lab", sample=3, split=split), role)]

    assert all(name.startswith("lab-train-") for name in ids("train"))
    assert all(name.startswith("lab-validation-") for name in ids("train", "validation"))
    assert all(name.startswith("lab-test-") for name in ids("test", "validation"))
    with pytest.raises(ConfigError, match="has the splits train, validation, test, got 'dev'"):
        ids("dev")
    with pytest.raises(ConfigError, match="has no max_question_chars, revision; leave that out"):
        load_set(DataConfig(source="lab", revision="v1", max_question_chars=9), "train")
    with pytest.raises(ConfigError, match="data source arithmetic is made by code and has no seed; leave that out"):
        load_set(DataConfig(source="arithmetic", seed=1), "train")
    assert [p.id for p in load_set(DataConfig(source="arithmetic", sample=1), "validation")] == [
        "arithmetic/validation/1"
    ]


@pytest.mark.parametrize(
    ("setting", "device", "installed", "expected"),
    [
        (None, "cuda", True, True), (None, "cuda", False, False), (None, "cpu", True, False),
        (True, "cpu", False, True), (False, "cuda", True, False),
    ],
)  # fmt: skip
def test_liger_is_used_where_it_is_installed_and_there_is_a_gpu(
    tmp_path, setting, device, installed, expected, monkeypatch
):
    """The device is the one trained on, whatever else is there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(session, "is_liger_kernel_available", lambda: installed)
    monkeypatch.setattr(session.TrainingArguments, "device", torch.device(device))
    assert session.training_arguments(TrainConfig(use_liger_kernel=setting), tmp_path).use_liger_kernel is expected
