"""The trainer on a tiny random model: the algorithm's arithmetic, what training may touch, checkpoints and mistakes."""

import json
import resource
import shutil
import types
from pathlib import Path

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torch.utils.data import BatchSampler
from transformers import (
    AutoModelForCausalLM,
    EarlyStoppingCallback,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    Phi3Config,
    TrainerCallback,
    TrainerState,
)

from opasd.config import ObjectiveConfig, OPASDConfig
from opasd.data.problems import Problem
from opasd.errors import ConfigError, DataError, NonFiniteError, OpasdError
from opasd.losses.objective import objective_loss
from opasd.model.checks import same_positions_up_to
from opasd.model.objective import opasd_loss
from opasd.model.scoring import Scorer, choose_layout
from opasd.run.manifest import checkpoints
from opasd.run.records import Records
from opasd.trainer.batches import without_repeats
from opasd.trainer.setup import freeze_untied_head, use_liger
from opasd.trainer.trainer import OPASDTrainer
from tests import nursery
from tests.training import METHOD, PROBLEMS, TOKENIZER, make_model, make_trainer, rows


class Gradients(TrainerCallback):
    """The gradient of the first optimizer step, before clipping is undone or weights move."""

    def __init__(self):
        self.first = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.first is None:
            self.first = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def first_gradient(folder, **arguments):
    trainer = make_trainer(folder, max_steps=1, max_grad_norm=0.0, **arguments)
    trainer.add_callback(gradients := Gradients())
    trainer.train()
    return gradients.first, trainer


def test_a_step_is_algorithm_1(tmp_path):
    """Roll out, judge the same token ids in both roles, add both losses, mean over tokens then rollouts."""
    actual, _ = first_gradient(tmp_path)
    fresh = make_trainer(tmp_path / "again")
    pairs = fresh.data.pairs
    order = [row["id"] for row in Records(tmp_path / "samples.jsonl")]
    chosen = [next(pair for pair in pairs if f" {pair.problem.id}," in name) for name in order]
    rollouts = fresh.roll_out(chosen)
    scorer = Scorer(fresh.model)
    with fresh.teacher.judging():
        teacher = scorer(rollouts, "teacher")
    student = scorer(rollouts, "student")
    output = opasd_loss(rollouts, student, teacher, student.head, teacher.head, fresh.config.objective)
    output.loss.backward()
    expected = {name: p.grad for name, p in fresh.model.named_parameters() if p.grad is not None}
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-6, rtol=1e-4)
    assert rows(tmp_path)[0]["loss"] == pytest.approx(output.loss.item(), rel=1e-4)


def test_accumulation_changes_nothing(tmp_path):
    shapes = [(1, 8), (2, 4), (8, 1)]
    results = [
        first_gradient(
            tmp_path / f"{batch}x{steps}", per_device_train_batch_size=batch, gradient_accumulation_steps=steps
        )
        for batch, steps in shapes
    ]
    for actual, _ in results[1:]:
        for name, gradient in results[0][0].items():
            torch.testing.assert_close(actual[name], gradient, atol=1e-6, rtol=1e-4)
    losses = [rows(tmp_path / f"{batch}x{steps}")[0]["loss"] for batch, steps in shapes]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def test_how_rollouts_share_a_forward_changes_nothing(tmp_path):
    ways = [("padded", 16_384), ("padded", 1), ("padded", 400), ("packed", 16_384), ("packed", 400)]
    actual = [
        first_gradient(tmp_path / f"{layout}{budget}", method={"layout": layout, "tokens_per_microbatch": budget})
        for layout, budget in ways
    ]
    for gradients, _ in actual[1:]:
        for name, gradient in actual[0][0].items():
            torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-4)
    readings = [rows(tmp_path / f"{layout}{budget}")[0] for layout, budget in ways]
    names = ("loss", "token/divergence", "attention/divergence", "attention/solution_mass", "attention/template_mass")
    for name in (*names, "attention/first_token_mass", "grad_norm"):
        assert [reading[name] for reading in readings] == pytest.approx([readings[0][name]] * len(ways), rel=1e-4)


def test_a_model_that_cannot_be_packed_is_warned_of_or_refused(monkeypatch, caplog):
    scorer = Scorer(make_model(), 0)
    monkeypatch.setattr(scorer, "packing_obstacle", "its sequences would mix")
    cuda = torch.device("cuda")
    assert choose_layout(scorer, "auto", device=cuda, half=True) == "padded"
    assert "not packed: its sequences would mix" in caplog.text
    with pytest.raises(ConfigError, match="layout: packed, but its sequences would mix; use layout: auto"):
        choose_layout(scorer, "packed", device=cuda, half=True)


def test_packing_without_a_kernel_for_it_is_reported(tmp_path, caplog):
    make_trainer(tmp_path, method={"layout": "packed"}).check()
    assert "rollouts of a micro-batch are packed; attention: one sequence at a time" in caplog.text


def test_the_base_is_bit_identical_after_training(tmp_path):
    model = make_model()
    before = {name: p.clone() for name, p in model.named_parameters()}
    trainer = make_trainer(tmp_path, model=model, max_steps=3)
    trainer.train()
    after = {
        name.replace("base_model.model.", "").replace(".base_layer", ""): p
        for name, p in trainer.model.named_parameters()
    }
    for name, weight in before.items():
        assert torch.equal(after[name], weight), name
    assert any((p != 0).any() for name, p in after.items() if "lora_B" in name)


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("update", ["frozen", "ema", "live", "snapshot"])
def test_every_teacher_with_adapters_and_without(tmp_path, update, lora):
    method = {"teacher": {"update": update, "ema_decay": 0.5, "snapshot_every": 2}}
    trainer = make_trainer(tmp_path, lora=lora, method=method, save_steps=2)
    trainer.train()
    losses = [row["attention/divergence"] for row in rows(tmp_path)]
    assert len(losses) == 3
    assert all(loss > 0 for loss in losses)
    has_copies = update in ("ema", "snapshot") or (update == "frozen" and not lora)
    assert (tmp_path / "checkpoint-2" / "teacher.safetensors").exists() == has_copies


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)], ids=["opsd", "attention only"])
def test_one_objective_alone(tmp_path, weights):
    objective = ObjectiveConfig(token_weight=weights[0], attention_weight=weights[1]).model_dump()
    make_trainer(tmp_path, method={"objective": objective}).train()
    row = rows(tmp_path)[-1]
    assert ("token/loss" in row) == (weights[0] > 0)
    assert ("attention/divergence" in row) == (weights[1] > 0)


def test_the_attention_divergence_falls(tmp_path):
    objective = {"token_weight": 0.0, "attention_weight": 1.0}
    make_trainer(tmp_path, method={"objective": objective}, max_steps=15).train()
    values = [row["attention/divergence"] for row in rows(tmp_path)]
    assert sum(values[-3:]) < 0.7 * sum(values[:3])


def test_metrics_samples_and_validation(tmp_path):
    method = {
        "rollout": METHOD["rollout"] | {"rollouts_per_problem": 2},
        "validation": {"every": 2, "samples": 2, "sampling": {"max_new_tokens": 4}},
        "save_samples_every": 2,
        "saved_samples": 3,
    }
    trainer = make_trainer(tmp_path, method=method, eval_dataset={"sums": PROBLEMS[:4]}, max_steps=4)
    trainer.train()
    steps = [row for row in Records(tmp_path / "metrics.jsonl") if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    wanted = {
        "loss", "token/loss", "attention/divergence", "attention/solution_mass", "attention/visible_mass",
        "token/student_entropy", "token/clipped", "rollout/accuracy", "rollout/length_mean", "rollout/length_median",
        "rollout/length_max", "rollout/truncated", "tokens/generated", "tokens/processed", "rollout/markers_per_1000",
        "seconds/rollout", "seconds/teacher", "seconds/student", "seconds/update", "ms_per_processed_token",
        "memory/peak_bytes", "flops/rollout", "flops/teacher", "flops/student", "flops/update", "grad_norm",
        "learning_rate", "attention/reference_text_mass", "attention/reference_words_mass",
    }  # fmt: skip
    assert wanted <= steps[0].keys()
    kept = [name for row in trainer.state.log_history if "loss" in row for name in row]
    assert len({id(name) for name in kept}) == len(set(kept)), "a long run holds each row's names again"
    assert not [name for name in steps[0] if name.startswith("looked/") or name == "attention/needed_mass"]
    parts = steps[0]["attention/reference_text_mass"], steps[0]["attention/reference_words_mass"]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(steps[0]["attention/solution_mass"], rel=0.2)  # of eight rollouts of sixteen
    assert all(row["seconds/update"] > 0 for row in steps)
    assert steps[0]["tokens/generated"] <= 16 * 6
    samples = list(Records(tmp_path / "samples.jsonl"))
    assert [row["step"] for row in samples] == [1] * 3 + [3] * 3
    assert {"id", "completion", "completion_ids", "finish_reason", "correct"} <= samples[0].keys()
    validated = [row for row in Records(tmp_path / "metrics.jsonl") if "validation/sums/avg@2" in row]
    assert [row["step"] for row in validated] == [2, 4]
    assert any("validation/sums/avg@2" in row for row in trainer.state.log_history)


KILLED = """
import os, signal, sys, traceback
from pathlib import Path
import torch
from transformers import TrainerCallback
from tests.training import make_trainer
torch.set_num_threads(1)

class Kill(TrainerCallback):
    def __init__(self, at):
        self.at = at
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

def run(folder, kill_at):
    trainer = make_trainer(folder, method={"teacher": {"update": "ema", "ema_decay": 0.8}}, max_steps=20, save_steps=3,
                           save_total_limit=2, lr_scheduler_type="cosine", per_device_train_batch_size=3)
    trainer.add_callback(Kill(kill_at))
    trainer.train((folder / "metrics.jsonl").exists() or None)
    trainer.save_model(str(folder / "final"))

for name, kill_at in (("whole", -1), ("killed", 1), ("killed", 3), ("killed", 8), ("killed", 13), ("killed", -1)):
    if (child := os.fork()) == 0:  # a process of its own, that need not import everything again
        code = 1
        try:
            run(Path(sys.argv[1]) / name, kill_at)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_run_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path):
    """SIGKILL before the first checkpoint, right after one, and in between; then weights and metrics are compared."""
    done = nursery.run("-c", KILLED, str(tmp_path))
    assert done.stdout.split() == ["0", *["-9"] * 4, "0"], done.stderr[-3000:]
    from safetensors.torch import load_file

    whole, killed = (load_file(tmp_path / n / "final" / "adapter_model.safetensors") for n in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    assert rows(tmp_path / "whole") == rows(tmp_path / "killed")
    assert rows(tmp_path / "whole", "samples.jsonl") == rows(tmp_path / "killed", "samples.jsonl")
    teacher = [load_file(checkpoints(tmp_path / n)[-1] / "teacher.safetensors") for n in ("whole", "killed")]
    assert all(torch.equal(teacher[0][name], teacher[1][name]) for name in teacher[0])
    assert len(checkpoints(tmp_path / "whole")) == 2


def test_a_checkpoint_cut_short_is_never_taken_for_one(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, save_steps=1, max_steps=2)
    original = trainer.teacher.state_dict

    def dies():
        if trainer.state.global_step == 2:
            raise KeyboardInterrupt
        return original()

    monkeypatch.setattr(trainer.teacher, "state_dict", dies)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-1"]
    resumed = make_trainer(tmp_path, save_steps=1, max_steps=2)
    resumed.train(True)
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-1", "checkpoint-2"]
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]


def test_resuming_without_a_run(tmp_path):
    with pytest.raises(ConfigError, match="no run in .* to resume"):
        make_trainer(tmp_path).train(True)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    make_trainer(tmp_path, max_steps=1).train()
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(ConfigError, match="already has a run in it"):
        make_trainer(tmp_path, max_steps=1).train()
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_a_run_without_a_checkpoint_starts_again_and_keeps_its_records(tmp_path):
    make_trainer(tmp_path, max_steps=1, save_strategy="no").train()
    before = {name: (tmp_path / name).read_bytes() for name in ("metrics.jsonl", "samples.jsonl")}
    for number in (1, 2):
        make_trainer(tmp_path, max_steps=1, save_strategy="no").train(True)
        assert [row["step"] for row in rows(tmp_path)] == [1]
        assert (tmp_path / f"metrics.jsonl.before-{number}").exists()
    assert all((tmp_path / f"{name}.before-1").read_bytes() == text for name, text in before.items())


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("adapter_model.safetensors", empty, "adapter_model.safetensors is cut"),
        ("adapter_model.safetensors", Path.unlink, "it has no adapter_model.safetensors"),
        ("trainer_state.json", Path.unlink, "it has no trainer_state.json"),
        ("optimizer.pt", Path.unlink, "it has no optimizer.pt"),
        ("optimizer.pt", empty, "optimizer.pt is cut"),
        ("rng_state.pth", Path.unlink, "it has no rng_state"),
        ("teacher.safetensors", Path.unlink, "it has no teacher.safetensors"),
    ],
)
def test_a_damaged_checkpoint_is_reported_before_anything_is_changed(tmp_path, damaged_run, file, damage, message):
    shutil.copytree(damaged_run, tmp_path / "run")
    damage(tmp_path / "run" / "checkpoint-1" / file)
    Records(tmp_path / "run" / "metrics.jsonl").append({"step": 2})
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=rf"checkpoint-1 is damaged: {message}.*; delete it, and --resume continues"):
        make_trainer(tmp_path / "run", **EMA).train(True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


EMA = {"method": {"teacher": {"update": "ema"}}, "max_steps": 1, "save_steps": 1}


@pytest.fixture(scope="module")
def damaged_run(tmp_path_factory):
    """A run of one step and its checkpoint, to be damaged in a copy."""
    folder = tmp_path_factory.mktemp("run")
    make_trainer(folder, **EMA).train()
    return folder


@pytest.mark.parametrize("file", ["optimizer.pt", "adapter_model.safetensors"])
def test_a_full_disk_is_reported_and_leaves_no_half_checkpoint(tmp_path, damaged_run, file):
    """A limit on a file's size is the full disk that can be had here."""
    trainer = make_trainer(tmp_path, max_steps=2, save_steps=1)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((damaged_run / "checkpoint-1" / file).stat().st_size - 1, hard))
    try:
        with pytest.raises(ConfigError, match="checkpoint-1 could not be written: .*; free some space, and") as caught:
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert "\n" not in str(caught.value)
    assert not checkpoints(tmp_path)
    assert not (tmp_path / ".checkpoint").exists()


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ({"objective": {"attention": {"layers": 99}}}, {}, "objective.attention.layers is 99"),
        ({"objective": {"attention": {"impl": "fused"}}}, {}, "objective.attention.impl: fused needs Triton"),
        ({"objective": {"token": {"impl": "fused"}}}, {}, "objective.token.impl: fused needs Triton"),
        ({}, {"lr_scheduler_type": "cosine_with_min_lr"}, "lr_scheduler_type: cosine_with_min_lr .*min_lr"),
        ({}, {"lr_scheduler_type": "warmup_stable_decay"}, "lr_scheduler_type: warmup_stable_decay .*decay"),
        ({}, {"optim": "adamw_bnb_8bit"}, "optim: adamw_bnb_8bit .*bitsandbytes"),
        ({}, {"adam_beta1": "abc"}, "optim: adamw_torch.* '<=' not supported"),
        ({}, {"optim_args": "foo"}, "optim: adamw_torch"),
    ],
)
def test_a_mistake_is_reported_before_the_first_rollout(tmp_path, monkeypatch, method, arguments, message):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    validation = {"every": 2, "at_start": True, "sampling": {"max_new_tokens": 3}}
    with pytest.raises(OpasdError, match=message) as caught:
        make_trainer(
            tmp_path, method={"validation": validation, **method}, eval_dataset=PROBLEMS[:2], **arguments
        ).train()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_loss_without_weight_needs_no_kernel(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    objective = {"token_weight": 0, "token": {"impl": "fused"}}
    make_trainer(tmp_path, method={"objective": objective}, max_steps=1).train()


def test_a_request_to_stop_saves_and_ends(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=50)

    class Ask(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            trainer.stop_requested = state.global_step == 1

    trainer.add_callback(Ask())
    trainer.train()
    assert trainer.state.global_step == 2
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-2"]


def stopping(trainer, at_step):
    """Ask the run to stop while it is at a step."""

    class Ask(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            trainer.stop_requested = state.global_step == at_step == 0

        def on_step_begin(self, args, state, control, **kwargs):
            trainer.stop_requested = state.global_step == at_step - 1

    trainer.add_callback(Ask())
    return trainer


def test_a_stop_does_not_wait_for_a_validation_which_is_made_when_the_run_resumes(tmp_path):
    method = {"validation": {"every": 2, "sampling": {"max_new_tokens": 3}}}
    arguments = {"method": method, "eval_dataset": PROBLEMS[:2], "max_steps": 4, "save_steps": 10}
    make_trainer(tmp_path / "whole", **arguments).train()
    whole = rows(tmp_path / "whole")
    assert [row["step"] for row in whole] == [1, 2, 2, 3, 4, 4]
    stopping(make_trainer(tmp_path / "cut", **arguments), 2).train()
    assert rows(tmp_path / "cut") == whole[:2]
    assert [path.name for path in checkpoints(tmp_path / "cut")] == ["checkpoint-2"]
    last = stopping(make_trainer(tmp_path / "cut", **arguments), 4)
    last.train(True)  # nothing is left to go on with after the last step
    assert rows(tmp_path / "cut") == whole
    again = make_trainer(tmp_path / "cut", **arguments)
    again.train(True)
    assert rows(tmp_path / "cut") == whole


def test_a_stop_in_the_first_validation_makes_no_step(tmp_path):
    method = {"validation": {"every": 2, "at_start": True, "sampling": {"max_new_tokens": 3}}}
    arguments = {"method": method, "eval_dataset": PROBLEMS[:2], "max_steps": 2, "save_steps": 10}
    make_trainer(tmp_path / "whole", **arguments).train()
    trainer = stopping(make_trainer(tmp_path / "cut", **arguments), 0)
    trainer.train()
    assert trainer.stopped
    assert [row["step"] for row in rows(tmp_path / "cut")] == [0]
    assert not (tmp_path / "cut" / "samples.jsonl").exists()
    make_trainer(tmp_path / "cut", **arguments).train(True)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def poison(trainer, at_step):
    """Make the model's weights NaN before a step, and well again after it."""
    parameter = next(p for name, p in trainer.model.named_parameters() if "lora_B" in name)

    class Poison(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == at_step:
                self.good = parameter.data.clone()
                parameter.data[0, 0] = float("nan")

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == at_step + 1:
                parameter.data.copy_(self.good)

    trainer.add_callback(Poison())


def test_nan_stops_the_run_and_keeps_the_rollouts(tmp_path):
    trainer = make_trainer(tmp_path)
    poison(trainer, 1)
    with pytest.raises(NonFiniteError, match="step 2, .*non_finite.jsonl"):
        trainer.train()
    records = [json.loads(line) for line in (tmp_path / "non_finite.jsonl").read_text().splitlines()]
    assert records[0]["step"] == 2
    assert records[0]["completion_ids"]


def test_nan_skips_the_step_where_so_configured(tmp_path):
    trainer = make_trainer(tmp_path, method={"on_non_finite": "skip"})
    poison(trainer, 1)
    trainer.train()
    assert [row["skipped"] for row in rows(tmp_path)] == [0, 1, 0]
    assert all(p.isfinite().all() for p in trainer.model.parameters())


def test_nan_in_one_micro_batch_drops_the_whole_step(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, method={"on_non_finite": "skip", "tokens_per_microbatch": 1})
    weights, calls, settled = [], [], []
    settle = Scorer.settle

    def counted(scorer):
        settled.append(len(calls))
        settle(scorer)

    def loss(*scores, **kwargs):
        calls.append(scores)
        if len(calls) == 8 + 3:  # the third of the second step's eight
            raise NonFiniteError("NaN")
        return objective_loss(*scores, **kwargs)

    class Weights(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            weights.append(torch.cat([p.detach().flatten() for p in trainer.student.parameters() if p.requires_grad]))

    monkeypatch.setattr("opasd.trainer.trainer.objective_loss", loss)
    monkeypatch.setattr(Scorer, "settle", counted)
    trainer.add_callback(Weights())
    trainer.train()
    assert len(calls) == 3 * 8
    assert settled == list(range(1, 3 * 8 + 1))  # once for each micro-batch, whether the loss failed or not
    assert [row["skipped"] for row in rows(tmp_path)] == [0, 1, 0]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_a_step_spoiled_in_another_process_is_dropped_here_too(tmp_path, monkeypatch):
    """With a loss scaler as well: the processes must ask one another as often as one another."""
    trainer = make_trainer(tmp_path, method={"on_non_finite": "skip"})
    parameter = next(p for p in trainer.student.parameters() if p.requires_grad)
    parameter.grad = torch.ones_like(parameter)
    monkeypatch.setattr(trainer.accelerator, "scaler", object())
    monkeypatch.setattr(trainer, "total", lambda value: value + 1.0)
    trainer.drop_spoiled_gradients()
    assert parameter.grad is None


def test_liger_chooses_its_parts_itself_and_leaves_the_losses(monkeypatch):
    """It refuses rotary embeddings for some families, and knows better than to replace everything in others."""
    given = []
    monkeypatch.setattr("opasd.trainer.setup.is_liger_kernel_available", lambda: True)
    monkeypatch.setattr("opasd.trainer.setup.apply_liger_kernel", lambda model, parts: given.append(parts))
    for own in (None, {"rms_norm": False}):
        args = types.SimpleNamespace(use_liger_kernel=True, device=torch.device("cuda"), liger_kernel_config=own)
        use_liger(make_model(), args)
        assert args.use_liger_kernel is False
    assert given[0] == {"cross_entropy": False, "fused_linear_cross_entropy": False}
    assert given[1] == given[0] | {"rms_norm": False}


@pytest.mark.parametrize("layers", [1, [0], "all"], ids=str)
def test_gradient_checkpointing_changes_nothing(tmp_path, layers):
    method = {"objective": {"token": {"clip": "none"}, "attention": {"layers": layers}}}
    plain, _ = first_gradient(tmp_path / "plain", method=method)
    saved, _ = first_gradient(tmp_path / "saved", method=method, gradient_checkpointing=True)
    for name, gradient in plain.items():
        torch.testing.assert_close(saved[name], gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_low_and_mixed_precision_train(tmp_path, dtype):
    trainer = make_trainer(tmp_path, model=make_model(dtype), bf16=dtype == torch.float32)
    trainer.train()
    assert all(row["loss"] > 0 for row in rows(tmp_path))


def test_the_adapter_loads_with_peft(tmp_path):
    base = make_model()
    base.save_pretrained(tmp_path / "base")
    trainer = make_trainer(tmp_path / "run", model=AutoModelForCausalLM.from_pretrained(tmp_path / "base"))
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), str(tmp_path / "final"))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(ids).logits, trainer.model.eval()(ids).logits, atol=1e-5, rtol=1e-4)


def test_models_by_folder_and_problems_by_column(tmp_path):
    from transformers import TrainingArguments

    from opasd.config import OPASDConfig
    from opasd.trainer.trainer import OPASDTrainer

    make_model().save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    trainer = OPASDTrainer(
        model=str(tmp_path / "model"),
        args=TrainingArguments(output_dir=str(tmp_path / "run"), max_steps=1, use_cpu=True, report_to=[]),
        config=OPASDConfig.model_validate(METHOD),
        train_dataset=[{"problem": "What is 1 + 1?", "solution": "1 + 1 = 2", "answer": "2"}] * 3
        + [{"problem": "What is 2 + 2?", "solution": "2 + 2 = 4", "answer": "4"}],
    )
    trainer.train()
    assert rows(tmp_path / "run")[0]["rollout/accuracy"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_dataset": None}, "needs a train_dataset"),
        ({"processing_class": None}, "needs the model's tokenizer"),
        ({"use_liger_kernel": True}, "use_liger_kernel needs a GPU and liger-kernel"),
    ],
)
def test_mistakes_are_reported(tmp_path, changes, message):
    from transformers import TrainingArguments

    from opasd.trainer.trainer import OPASDTrainer

    arguments = {"train_dataset": PROBLEMS, "processing_class": TOKENIZER} | changes
    liger = arguments.pop("use_liger_kernel", False)
    with pytest.raises(ConfigError, match=message):
        settings = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, use_liger_kernel=liger)
        OPASDTrainer(make_model(), settings, **arguments)


@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig])
def test_an_adapter_that_is_a_prompt_is_refused(tmp_path, kind):
    """It cannot be switched off where the teacher's can, and moves every position."""
    model = get_peft_model(make_model(), kind(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(ConfigError, match="adapter is a prompt"):
        make_trainer(tmp_path, lora=False, model=model)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("update", ["frozen", "snapshot"])
def test_the_teachers_output_head_is_the_teachers_own(tmp_path, monkeypatch, update, offload):
    """With all weights trained, the teacher's head is a copy that must outlast the moment of judging."""
    heads, students = [], []

    def watched(student, teacher, **kwargs):
        heads.append(teacher.head.weight_VE.detach().clone())
        students.append(student.head.weight_VE.detach().clone())
        return objective_loss(student, teacher, **kwargs)

    monkeypatch.setattr("opasd.trainer.trainer.objective_loss", watched)
    teacher = {"update": update, "snapshot_every": 100, "offload": offload}
    trainer = make_trainer(tmp_path, lora=False, method={"teacher": teacher})
    initial = trainer.model.get_output_embeddings().weight.detach().clone()
    trainer.train()
    assert all(torch.equal(head, initial) for head in heads)
    assert not torch.equal(students[-1], initial)


@pytest.mark.parametrize("update", ["frozen", "ema"])
def test_a_teacher_on_the_host_trains_the_same_student(tmp_path, update):
    found = []
    for offload in (False, True):
        folder = tmp_path / str(offload)
        trainer = make_trainer(folder, lora=False, method={"teacher": {"update": update, "offload": offload}})
        trainer.train()
        found.append((rows(folder), [parameter.detach().clone() for parameter in trainer.model.parameters()]))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(*pair) for pair in zip(found[0][1], found[1][1], strict=True))


def resumed(folder, **arguments):
    """Run, then resume as after a kill; the rows of both."""
    make_trainer(folder, **arguments).train()
    before = rows(folder)
    again = make_trainer(folder, **arguments)
    again.train(True)
    return before, rows(folder), again


def test_resuming_a_finished_run_adds_nothing(tmp_path):
    """Also when the last step is not the end of an epoch."""
    before, after, trainer = resumed(tmp_path, max_steps=3, save_steps=3, per_device_train_batch_size=1)
    assert after == before
    assert trainer.state.global_step == 3


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_resumes_bit_for_bit(tmp_path, checkpointing):
    from safetensors.torch import load_file

    def make(name, steps):
        arguments = {"max_steps": steps, "save_steps": 2, "gradient_checkpointing": checkpointing}
        return make_trainer(tmp_path / name, lora=False, model=peft_with_dropout(), **arguments)

    make("whole", 4).train()
    stopped = make("killed", 4)

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    stopped.add_callback(Stop())
    stopped.train()
    make("killed", 4).train(True)
    whole, killed = (
        load_file(tmp_path / n / "checkpoint-4" / "adapter_model.safetensors") for n in ("whole", "killed")
    )
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    assert rows(tmp_path / "whole") == rows(tmp_path / "killed")


def peft_with_dropout():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    return get_peft_model(make_model(), LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.3))


def test_validation_at_the_start_is_made_once(tmp_path):
    method = {"validation": {"every": 2, "at_start": True, "sampling": {"max_new_tokens": 3}}}
    arguments = {"method": method, "eval_dataset": PROBLEMS[:2], "max_steps": 2, "save_steps": 2}
    before, after, _ = resumed(tmp_path, **arguments)
    assert [row["step"] for row in before] == [0, 1, 2, 2]
    assert after == before


def test_solutions_are_needed_only_where_the_teacher_reads_them(tmp_path):
    rows = [{"problem": f"What is {n} + 1?", "answer": n + 1} for n in range(8)]
    shown = {"prompts": {"reference": "The final answer is {answer}. "}}
    for number, problems in enumerate((rows, [Problem(row["problem"], answer=str(row["answer"])) for row in rows])):
        trainer = make_trainer(
            tmp_path / str(number), method=shown, train_dataset=problems, eval_dataset=problems, max_steps=1
        )
        trainer.train()
        assert [pair.problem.answer for pair in trainer.data.pairs] == [str(row["answer"]) for row in rows]
        assert json.loads((tmp_path / str(number) / "data.json").read_text())["data"]["kept"] == 8
    with pytest.raises(DataError, match='column "solution" is missing'):
        make_trainer(tmp_path, train_dataset=rows)


def test_evaluating_first_does_not_count_as_a_run(tmp_path):
    method = {"validation": {"every": 0, "sampling": {"max_new_tokens": 3}}}
    trainer = make_trainer(tmp_path, method=method, max_steps=1)
    actual = trainer.evaluate({"mine": PROBLEMS[:2]})
    names = ("avg@1", "stderr", "length_mean", "truncated", "markers_per_1000", "leaks")
    assert set(actual) == {f"{start}validation/mine/{name}" for name in names for start in ("", "eval_")}
    trainer.train()
    assert trainer.state.global_step == 1


def test_epochs_are_reported(tmp_path):
    make_trainer(tmp_path, max_steps=4).train()
    assert [row["epoch"] for row in rows(tmp_path)] == [0.5, 1.0, 1.5, 2.0]


def test_other_intervals_may_be_set_on_resuming(tmp_path):
    make_trainer(tmp_path, max_steps=2, save_steps=2).train()
    make_trainer(tmp_path, max_steps=4, save_steps=1).train(True)
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in (2, 3, 4)]


def test_bad_rows_stop_or_are_skipped_as_configured(tmp_path):
    from transformers import TrainingArguments

    from opasd.errors import DataError
    from opasd.trainer.trainer import OPASDTrainer

    data = [{"problem": "What is 1 + 1?", "solution": "2"}, {"problem": "What is 2 + 2?", "solution": ""}]
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    config = OPASDConfig.model_validate({"rollout": {"max_new_tokens": 6}})
    common = {"config": config, "train_dataset": data, "processing_class": TOKENIZER}
    with pytest.raises(DataError, match="row 2"):
        OPASDTrainer(make_model(), arguments, **common)
    trainer = OPASDTrainer(make_model(), arguments, **common, on_bad_row="skip")
    assert len(trainer.train_dataset) == 1


def test_sequences_beyond_the_models_context_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="but the model's context is 4096; lower rollout.max_new_tokens"):
        make_trainer(tmp_path, method={"rollout": {"max_new_tokens": 4096}})


def test_the_models_own_dropout_is_off_and_that_of_adapters_stays(tmp_path, caplog):
    model = make_model()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.2
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.3))
    trainer = make_trainer(tmp_path, lora=False, model=adapted)
    assert [layer.self_attn.attention_dropout for layer in model.model.layers] == [0.0, 0.0]
    assert {module.p for module in trainer.student.modules() if isinstance(module, torch.nn.Dropout)} == {0.3}
    assert "the model's own dropout (0.2) is off" in caplog.text


def test_positions_that_depend_on_the_longest_sequence_are_warned_of(tmp_path, caplog):
    long = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0], "long_factor": [4.0]}
    assert same_positions_up_to(LlamaConfig()) == 2**31
    assert same_positions_up_to(Gemma3Config()) == 2**31
    phi = Phi3Config(hidden_size=64, num_attention_heads=32, original_max_position_embeddings=150, rope_parameters=long)
    assert same_positions_up_to(phi) == 150
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    make_trainer(tmp_path / "a")
    assert "longest sequence" not in caplog.text
    model = make_model()
    model.config.rope_parameters = dynamic | {"original_max_position_embeddings": 20}
    make_trainer(tmp_path / "b", model=model)
    assert "beyond 20 this model's positions depend on the longest sequence" in caplog.text


def test_weights_without_a_gradient_are_waited_for_by_nobody(tmp_path):
    assert make_trainer(tmp_path).args.ddp_find_unused_parameters is False
    assert make_trainer(tmp_path, ddp_find_unused_parameters=True).args.ddp_find_unused_parameters is True
    layers = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = layers | {"vocab_size": len(TOKENIZER), "num_key_value_heads": 1, "head_dim": 8}
    seeing = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=text, vision_config=layers | {"image_size": 28, "patch_size": 14})
    )
    assert make_trainer(tmp_path, model=seeing).args.ddp_find_unused_parameters is True
    tied, apart = make_model(), make_model()
    apart.lm_head.weight = torch.nn.Parameter(apart.lm_head.weight.detach().clone())
    tied.lm_head.weight = tied.get_input_embeddings().weight
    for model, trained in ((tied, True), (apart, False)):
        freeze_untied_head(model)
        assert model.lm_head.weight.requires_grad is trained


def test_the_best_checkpoint_by_validation(tmp_path):
    """Trainer's own choice, and a callback that stops where nothing gets better."""
    method = {"validation": {"every": 1, "samples": 1, "sampling": {"max_new_tokens": 3}}}
    trainer = make_trainer(
        tmp_path, method=method, eval_dataset={"mine": PROBLEMS[:2]}, max_steps=6, save_steps=1,
        metric_for_best_model="validation/mine/length_mean", greater_is_better=False,
    )  # fmt: skip
    trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=2))
    trainer.train()
    assert trainer.state.best_metric == 3
    best = Path(trainer.state.best_model_checkpoint)
    assert (best, best.is_dir()) == (tmp_path / "checkpoint-1", True)
    written = TrainerState.load_from_json(str(best / "trainer_state.json"))
    assert written.best_model_checkpoint == str(best)
    assert trainer.state.global_step == 3
    assert not any("eval_" in name for row in Records(tmp_path / "metrics.jsonl") for name in row)


@pytest.mark.parametrize("last", [1, 3])
def test_a_resumed_run_stops_early_where_the_undisturbed_one_does(last, tmp_path):
    """A run is stopped before its validation; what was best, and for how long nothing got better, is not forgotten."""

    class Stop(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            stopped.stop_requested = state.global_step + 1 == last

    def make(folder):
        method = {"validation": {"every": 1, "samples": 1, "sampling": {"max_new_tokens": 3}}}
        trainer = make_trainer(
            folder, method=method, eval_dataset={"mine": PROBLEMS[:2]}, max_steps=6, save_steps=1,
            metric_for_best_model="validation/mine/length_mean", greater_is_better=False,
        )  # fmt: skip
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=3))
        return trainer

    whole, stopped = make(tmp_path / "whole"), make(tmp_path / "stopped")
    whole.train()
    stopped.add_callback(Stop())
    stopped.train()
    assert (stopped.stopped, stopped.state.global_step) == (True, last)
    again = make(tmp_path / "stopped")
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == whole.state.global_step == 4
    assert Path(again.state.best_model_checkpoint) == tmp_path / "stopped" / "checkpoint-1"
    assert rows(tmp_path / "stopped") == rows(tmp_path / "whole")
    again.state.stateful_callbacks["EarlyStoppingCallback"]["attributes"]["early_stopping_patience_counter"] = "x"
    with pytest.raises(TypeError, match="EarlyStoppingCallback.early_stopping_patience_counter is 'x'"):
        again._load_callback_state()


def test_the_callers_arguments_stay_as_they_are(tmp_path):
    arguments = make_trainer(tmp_path / "a").args
    before = arguments.to_dict()
    config = OPASDConfig.model_validate({**METHOD, "validation": {"every": 2}})
    trainer = OPASDTrainer(make_model(), arguments, config, PROBLEMS, PROBLEMS[:1], processing_class=TOKENIZER)
    assert trainer.args.eval_steps == 2
    assert arguments.to_dict() == before


@pytest.mark.parametrize("arguments", [{"eval_strategy": "epoch"}, {"eval_strategy": "steps", "eval_steps": 3}])
def test_another_schedule_of_validation_is_refused(tmp_path, arguments):
    with pytest.raises(ConfigError, match="validation.every decides when to validate"):
        make_trainer(tmp_path, eval_dataset=PROBLEMS[:1], **arguments)


def test_a_second_adapter_does_not_take_the_firsts_place(tmp_path):
    adapted = get_peft_model(make_model(), LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ConfigError, match="has an adapter already; leave peft_config out"):
        make_trainer(tmp_path, model=adapted, lora=True)


def test_a_model_with_nothing_to_train(tmp_path):
    model = make_model()
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="no weight of the model requires a gradient"):
        make_trainer(tmp_path, model=model, lora=False)


def test_a_tokenizer_that_is_not_the_models(tmp_path):
    model = make_model()
    model.resize_token_embeddings(20)
    with pytest.raises(ConfigError, match=r"the tokenizer gives the token \d+, but the model has embeddings for 20"):
        make_trainer(tmp_path, model=model)


def test_resuming_from_an_older_checkpoint_sets_the_newer_ones_aside(tmp_path):
    """Else the next to go on would take one of them, whose steps are no longer on record."""
    make_trainer(tmp_path, max_steps=6, save_steps=2).train()
    again = make_trainer(tmp_path, max_steps=6, save_steps=4)

    class Dies(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise KeyboardInterrupt

    again.add_callback(Dies())
    with pytest.raises(KeyboardInterrupt):
        again.train(str(tmp_path / "checkpoint-2"))
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-2"]
    assert {path.name for path in tmp_path.glob("aside-*")} == {"aside-checkpoint-4", "aside-checkpoint-6"}
    make_trainer(tmp_path, max_steps=6, save_steps=4).train(True)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_of_another_name_or_place(tmp_path):
    make_trainer(tmp_path / "first", max_steps=2, save_steps=2).train()
    shutil.copytree(tmp_path / "first" / "checkpoint-2", tmp_path / "best")
    make_trainer(tmp_path / "second", max_steps=3).train(str(tmp_path / "best"))
    assert [row["step"] for row in rows(tmp_path / "second")] == [3]
    assert (tmp_path / "second" / "data.json").exists()
    with pytest.raises(ConfigError, match="no checkpoint .*absent; give the folder of one"):
        make_trainer(tmp_path / "third").train(str(tmp_path / "absent"))
    others = make_trainer(tmp_path / "fourth", train_dataset=PROBLEMS[:6])
    with pytest.raises(ConfigError, match="the problems are not those that the run in .*first began with"):
        others.train(str(tmp_path / "first" / "checkpoint-2"))


SMALL = st.integers(1, 5)


@given(count=st.integers(1, 40), size=SMALL, processes=SMALL, epoch=st.integers(0, 2))
def test_all_processes_together_have_what_one_would_have(count, size, processes, epoch):
    sampler = BatchSampler(range(count), size, drop_last=False)
    shards = [list(BatchSamplerShard(sampler, processes, process)) for process in range(processes)]
    alone = list(BatchSampler(range(count), size * processes, drop_last=False))
    assert {len(shard) for shard in shards} == {len(alone)}
    for step, expected in enumerate(alone):
        dealt = [
            without_repeats(
                shard[step], step + epoch * len(alone),
                process=process, processes=processes, batch_size=size, num_problems=count,
            )
            for process, shard in enumerate(shards)
        ]  # fmt: skip
        assert [problem for batch in dealt for problem in batch] == expected
