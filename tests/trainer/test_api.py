"""The Python API beyond what the command uses: names, columns, processors, arguments, what a step has, the hub."""

import inspect
import json
import re
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from transformers import TrainingArguments

from opasd import OPASDArguments, OPASDConfig, OPASDTrainer
from opasd.config import TrainConfig
from opasd.errors import ConfigError, DataError
from opasd.losses.objective import LossOutput
from opasd.run.records import Records
from opasd.trainer.batches import step_size
from opasd.trainer.described import described_run, refuse_only_python
from opasd.trainer.setup import tokenizer_of
from tests.training import METHOD, PROBLEMS, TOKENIZER, make_model

ODD = [{"frage": p.question, "weg": p.solution, "wert": p.answer} for p in PROBLEMS]
COLUMNS = {"question": "frage", "solution": "weg", "answer": "wert"}


def trainer(folder, *, model=None, args=None, **arguments):
    settings = {"train_dataset": PROBLEMS, "processing_class": TOKENIZER} | arguments
    args = args or OPASDArguments(str(folder), max_steps=1, gradient_accumulation_steps=2, use_cpu=True)
    return OPASDTrainer(model or make_model(), args, OPASDConfig.model_validate(METHOD), **settings)


def test_the_defaults_are_the_papers():
    arguments, paper = OPASDArguments("x", use_cpu=True), TrainConfig()
    assert arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps == 64
    for name in ("max_steps", "learning_rate", "weight_decay", "max_grad_norm", "save_steps", "lr_scheduler_type"):
        assert getattr(arguments, name) == getattr(paper, name)
    snippet = re.search(
        r"```python\n(from peft.*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.DOTALL
    )
    assert snippet
    assert "args=OPASDArguments(" in snippet[1]
    assert "batch" not in snippet[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (OPASDArguments("x", use_cpu=True), "64 problems (1 per device x 64 accumulated x 1 process), 128 rollouts"),
        (TrainingArguments("x", use_cpu=True), "8 problems (8 per device x 1 accumulated x 1 process), 16 rollouts"),
        (TrainingArguments("x", use_cpu=True, gradient_accumulation_steps=64), "512 problems (8 per device x 64"),
    ],
    ids=["paper", "transformers", "accumulated"],
)
def test_a_run_says_what_a_step_has(tmp_path, arguments, expected):
    method = OPASDConfig.model_validate({"rollout": {"max_new_tokens": 10, "rollouts_per_problem": 2}})

    class Pairs(list):
        @property
        def longest(self):
            return {"student": 30, "teacher": 70}

    text = step_size(arguments, method, Pairs(range(600)))
    assert text.startswith(f"a step has {expected}")
    problems = int(re.search(r"\d+", text)[0])
    assert f"at most {20 * problems:,} new tokens" in text
    assert f"read at most {2 * problems * (30 + 70 + 2 * 10):,} tokens" in text
    assert ("per_device_train_batch_size is 8, transformers' default" in text) == (problems != 64)
    assert "would be" in step_size(arguments, method, Pairs(range(5)))


def test_rows_with_other_columns_train_and_validate(tmp_path, capsys):
    made = trainer(tmp_path, train_dataset=[*ODD, ODD[0]], eval_dataset=ODD[:2], columns=COLUMNS)
    made.train()
    assert "a step has 2 problems" in capsys.readouterr().err
    account = json.loads((tmp_path / "data.json").read_text())["data"]
    assert (account["rows"], account["kept"], account["left_out"]) == (len(ODD) + 1, len(ODD), {"deduplicate": 1})
    assert made.run_config.data.columns.question == "frage"
    assert json.loads((tmp_path / "python.json").read_text())[0] == "the problems of train_dataset"
    with pytest.raises(ConfigError, match=r"made in Python with the problems of train_dataset, .*; continue it there"):
        refuse_only_python(tmp_path)
    with pytest.raises(DataError, match="map it in columns={…}"):
        trainer(tmp_path / "other", train_dataset=ODD)


def test_the_embedded_model_by_its_name(tmp_path):
    made = trainer(
        tmp_path, model="lab", processing_class=None, peft_config=LoraConfig(r=2, target_modules="all-linear")
    )
    assert made.run_config.model.name_or_path == "lab"
    assert made.run_config.model.adaptation == "lora"
    with pytest.raises(ConfigError, match="cannot load the tokenizer 'no/such-model'"):
        trainer(tmp_path, model="no/such-model", processing_class=None)


def test_a_processor_gives_its_tokenizer():
    class Processor:
        tokenizer, chat_template = TOKENIZER, "{{ messages[0].content }}"

    assert tokenizer_of(Processor()) is TOKENIZER
    bare = type("Bare", (Processor,), {"tokenizer": type(TOKENIZER)(tokenizer_object=TOKENIZER.backend_tokenizer)})()
    bare.tokenizer.chat_template = None
    assert tokenizer_of(bare).chat_template == Processor.chat_template
    assert bare.tokenizer.chat_template is None
    with pytest.raises(ConfigError, match="got int; give a tokenizer, or a processor that has one"):
        tokenizer_of(3)


def test_every_argument_is_documented():
    text = inspect.getdoc(OPASDTrainer)
    parameters = inspect.signature(OPASDTrainer.__init__).parameters
    for name, parameter in parameters.items():
        if name != "self":
            assert re.search(rf"^ {{4}}\*{{0,2}}{name}: \S", text, re.MULTILINE), name
            assert parameter.annotation is not inspect.Parameter.empty


def test_compute_loss_returns_what_it_computed(tmp_path):
    made = trainer(tmp_path)
    rollouts = made.roll_out(list(made.data.pairs[:2]))
    loss, output = made.compute_loss(made.model, {"rollouts": rollouts, "num_rollouts": 2}, return_outputs=True)
    assert isinstance(output, LossOutput)
    torch.testing.assert_close(loss, output.loss)
    assert output.metrics["token/loss"] > 0
    assert [len(reading["token/divergence"]) for reading in output.readings] == [r.num_tokens for r in rollouts]


def test_other_arguments_are_on_record_and_secrets_are_not(tmp_path):
    args = OPASDArguments(str(tmp_path), max_steps=1, use_cpu=True, adam_beta1=0.8, hub_token="secret")
    made = trainer(tmp_path, args=args)
    config = described_run(made.student, args, made.config, made.data, tmp_path)
    assert config.train.extra["adam_beta1"] == 0.8
    assert "secret" not in config.model_dump_json()


def test_epochs_are_on_record_as_steps(tmp_path):
    args = TrainingArguments(
        str(tmp_path), num_train_epochs=1, per_device_train_batch_size=8, use_cpu=True, report_to=[]
    )
    made = trainer(tmp_path, args=args)
    made.train()
    assert made.run_config.train.max_steps == 2 == len(list(Records(tmp_path / "metrics.jsonl")))


def test_pushing_to_the_hub_fails_in_one_message(tmp_path, monkeypatch):
    from huggingface_hub import HfApi

    def offline(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr(HfApi, "create_repo", offline)
    monkeypatch.setattr(HfApi, "upload_folder", offline)
    with pytest.raises(ConfigError, match=r"^push_to_hub: me/it on the .* \(Name or service not known\); log in"):
        trainer(tmp_path, args=OPASDArguments(str(tmp_path), push_to_hub=True, hub_model_id="me/it", use_cpu=True))
    made = trainer(tmp_path)
    with pytest.raises(ConfigError, match="there is no result in .* yet"):
        made.push_to_hub()
    made.train()
    with pytest.raises(ConfigError, match="push_to_hub: .*hf upload"):
        made.push_to_hub()
    uploads = []
    monkeypatch.setattr(HfApi, "upload_folder", lambda _self, **settings: uploads.append(settings))
    made.hub_model_id = "me/it"
    made.push_to_hub()
    assert uploads[0]["folder_path"] == tmp_path / "final"
    assert uploads[0]["repo_id"] == "me/it"
    assert not any(str(tmp_path) in path.read_text() for path in tmp_path.rglob("README.md"))
