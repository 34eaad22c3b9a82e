"""Loss terms from outside: their share of the loss does not depend on how rollouts are divided."""

import pytest
import torch
from torch import Tensor

from opasd.errors import ConfigError
from opasd.losses.terms import LossTerm, MicroBatch
from tests.training import make_trainer


def size(batch: MicroBatch) -> Tensor:
    """The student's mean squared hidden state in each rollout, from the teacher's too, so that both are read."""
    values = []
    for index in range(len(batch.rollouts)):
        student, teacher = batch.student[index].hidden_TE, batch.teacher[index].hidden_TE
        values.append((student - 0.5 * teacher).square().mean())
    return torch.stack(values)


def loss_and_gradient(folder, term, **method):
    trainer = make_trainer(folder, method=method | {"save_samples_every": 0}, loss_terms=[term])
    pairs = [trainer.data.pairs[number] for number in range(5)]
    loss = trainer.training_step(trainer.student, {"pairs": pairs})
    gradients = [p.grad.double().flatten() for p in trainer.student.parameters() if p.grad is not None]
    return float(loss), torch.cat(gradients), trainer


def test_micro_batches_and_layouts_change_nothing(tmp_path):
    term = LossTerm("size", size, 2.0)
    expected, gradient, _ = loss_and_gradient(tmp_path / "a", term, tokens_per_microbatch=10**6)
    for number, changes in enumerate(({"tokens_per_microbatch": 1}, {"layout": "packed"}), 1):
        loss, other, _ = loss_and_gradient(tmp_path / str(number), term, **changes)
        assert loss == pytest.approx(expected, rel=1e-4)
        # float32 through two layers
        torch.testing.assert_close(other, gradient, rtol=1e-3, atol=1e-5 * float(gradient.abs().max()))


def test_the_weight_scales_the_term_and_its_metric_does_not(tmp_path):
    losses, metrics = [], []
    for weight in (0.0, 1.0, 3.0):
        loss, _, trainer = loss_and_gradient(tmp_path / str(weight), LossTerm("size", size, weight))
        losses.append(loss)
        metrics.append(trainer.step_metrics.sums["term/size"])
    assert losses[2] - losses[0] == pytest.approx(3 * (losses[1] - losses[0]), rel=1e-4)
    assert metrics == pytest.approx([losses[1] - losses[0]] * 3, rel=1e-3)


def test_a_term_sees_readings_alignments_and_layers(tmp_path):
    seen = []

    def look(batch: MicroBatch):
        seen.append(batch)
        return torch.zeros(len(batch.rollouts)), {"ones": 1.0}

    _, _, trainer = loss_and_gradient(tmp_path, LossTerm("look", look))
    [batch] = seen
    assert len(batch.rollouts) == len(batch.alignments) == len(batch.student.spans) == 5
    for index, rollout in enumerate(batch.rollouts):
        assert batch.readings[index]["token/divergence"].shape == (rollout.num_tokens,)
        assert batch.readings[index]["attention/solution_mass"].shape == (rollout.num_tokens,)
        assert batch.student[index].layers[0].query_HTD.requires_grad
        assert not batch.teacher[index].hidden_TE.requires_grad
    assert trainer.step_metrics.sums["term/look/ones"] == pytest.approx(1.0)


def test_attention_is_captured_for_a_term_alone(tmp_path):
    def rows(batch: MicroBatch):
        return torch.stack([s.layers[0].query_HTD.square().mean() for s in map(batch.student.__getitem__, range(5))])

    method = {"objective": {"token_weight": 1.0, "attention_weight": 0.0}}
    loss, _, _ = loss_and_gradient(tmp_path, LossTerm("rows", rows), **method)
    assert loss > 0


@pytest.mark.parametrize("result", [torch.zeros(()), torch.zeros(5, 2), 1.0, (None, {})])
def test_a_wrong_shape_is_explained(tmp_path, result):
    with pytest.raises(ConfigError, match="loss term 'odd' returned .* one number for each of the 5 rollouts"):
        loss_and_gradient(tmp_path, LossTerm("odd", lambda batch: result))
