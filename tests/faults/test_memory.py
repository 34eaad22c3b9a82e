"""A step for which the memory is too small: smaller micro-batches first, then without the rollout that is too long."""

import pytest
import torch
from safetensors.torch import load_file

from opasd.run.records import Records
from opasd.trainer import memory
from tests.training import PROBLEMS, make_trainer, rows

LONG = "What is 1 + 1? " * 12


def problems():
    return [*PROBLEMS[:7], PROBLEMS[7].__class__(LONG, "2", "2", "long")]


def limited(trainer, most):
    """Let a micro-batch with more tokens than that run out of memory in the middle of its backward pass."""
    compute_loss = trainer.compute_loss

    def compute(model, inputs, **options):
        loss = compute_loss(model, inputs, **options)
        if sum(len(rollout.teacher_ids) for rollout in inputs["rollouts"]) > most:
            loss.backward()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return loss

    trainer.compute_loss = compute
    return trainer


def test_smaller_micro_batches_lose_nothing(tmp_path):
    settings = {"train_dataset": PROBLEMS[:8], "max_steps": 2}
    make_trainer(tmp_path / "whole", **settings).train()
    longest = max(len(pair.teacher_ids) for pair in make_trainer(tmp_path / "x", **settings).data.pairs) + 6
    limited(make_trainer(tmp_path / "small", **settings), 2 * longest).train()
    whole, small = (load_file(tmp_path / name / "final" / "adapter_model.safetensors") for name in ("whole", "small"))
    for name in whole:
        torch.testing.assert_close(small[name], whole[name], atol=1e-4, rtol=1e-3)
    for first, second in zip(rows(tmp_path / "whole"), rows(tmp_path / "small"), strict=True):
        assert first.keys() == second.keys()
        assert second["loss"] == pytest.approx(first["loss"], rel=1e-4)
        assert second["token/divergence"] == pytest.approx(first["token/divergence"], rel=1e-4)


def test_a_rollout_that_does_not_fit_alone_is_set_aside_and_counted(tmp_path, capsys):
    trainer = make_trainer(tmp_path / "run", train_dataset=problems(), max_steps=1)
    longest = sorted(len(pair.teacher_ids) for pair in trainer.data.pairs)[-2] + 6
    limited(trainer, longest).train()
    assert trainer.state.global_step == 1
    (row,) = rows(tmp_path / "run")
    assert row[memory.SET_ASIDE] == 1
    (kept,) = Records(tmp_path / "run" / "set_aside.jsonl")
    assert kept["step"] == 1
    assert "long" in kept["id"]
    assert "no memory for 1 of its rollouts" in capsys.readouterr().err
    # The step equals one on the other problems: the mean is over them.
    without = make_trainer(tmp_path / "without", train_dataset=problems()[:7], max_steps=1, method={"layout": "padded"})
    without.train()
    assert row["loss"] == pytest.approx(rows(tmp_path / "without")[0]["loss"], rel=1e-4)


def test_a_step_in_which_nothing_fits_ends_the_run(tmp_path):
    with pytest.raises(torch.OutOfMemoryError):
        limited(make_trainer(tmp_path, max_steps=1), 1).train()
