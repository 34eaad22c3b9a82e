"""The training step of the embedded model, in groups and with Muon, against a plain loop."""

import pytest
import torch
from torch.nn import functional
from transformers import AutoTokenizer

from opasd.lab import model_path
from scripts.lab.demos import Rates
from scripts.lab.pretrain import Settings, Step, batches, main, make_examples, make_model, schedule

TOKENIZER = AutoTokenizer.from_pretrained(model_path())
SETTINGS = Settings(size="small", steps=4, batch=7, examples=30, warmup=2)


def orthogonal(matrix):
    """Return the matrix with its singular values brought near 1: five Newton-Schulz iterations."""
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (2.0315 * square @ square - 4.775 * square) @ x
    return x if wide else x.T


@pytest.mark.parametrize("shape", [(24, 24), (12, 48), (48, 12)])
def test_muon_takes_the_step_that_the_model_was_trained_with(shape):
    """Nesterov momentum 0.95, made orthogonal, times rate · √max(1, rows / columns), after decoupled weight decay."""
    torch.manual_seed(0)
    model = make_model(TOKENIZER, SETTINGS)
    defaults = Step(model, SETTINGS, torch.device("cpu")).muon.defaults
    weight = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64))
    start, mean, rate = weight.detach().clone(), torch.zeros(shape, dtype=torch.float64), 0.02
    expected = start
    muon = torch.optim.Muon([weight], **defaults | {"lr": rate})
    for _ in range(3):
        gradient = weight.grad = torch.randn(shape, dtype=torch.float64)
        mean = 0.95 * mean + 0.05 * gradient
        step = orthogonal(0.05 * gradient + 0.95 * mean) * max(1.0, shape[0] / shape[1]) ** 0.5
        expected = expected * (1 - rate * SETTINGS.weight_decay) - rate * step
        muon.step()
    # torch iterates in bfloat16, whose roundings of 2⁻⁸ the five iterations carry on.
    assert (weight.detach() - expected).norm() < 0.03 * (start - expected).norm()


def test_a_step_in_groups_is_a_plain_step_on_one_padded_batch():
    examples = make_examples(TOKENIZER, SETTINGS, Rates(), workers=1)
    model, plain = make_model(TOKENIZER, SETTINGS), make_model(TOKENIZER, SETTINGS)
    step = Step(model, SETTINGS, torch.device("cpu"))
    layers = [weight for layer in plain.model.layers for weight in layer.parameters()]
    outer = [plain.model.embed_tokens.weight, plain.model.norm.weight, *(w for w in layers if w.ndim == 1)]
    adamw = torch.optim.AdamW(outer, lr=1.0, betas=(0.9, 0.98), weight_decay=0.0)
    muon = torch.optim.Muon([w for w in layers if w.ndim == 2], weight_decay=SETTINGS.weight_decay)
    count = 0
    for number, groups in enumerate(batches(examples.lengths, SETTINGS)):
        share = schedule(number, SETTINGS)
        learned = sum(int(examples.learned[rows].sum()) for rows, _ in groups)
        found = step([(examples.ids[r, :w], examples.learned[r, 1:w]) for r, w in groups], learned, share)

        rows = torch.cat([rows for rows, _ in groups])
        assert len(rows) == SETTINGS.batch
        ids, target = examples.ids[rows].long(), examples.learned[rows, 1:]
        mask = torch.arange(ids.shape[1]) < examples.lengths[rows, None]
        logits = plain(input_ids=ids, attention_mask=mask.long()).logits[:, :-1]
        loss = functional.cross_entropy(logits[target], ids[:, 1:][target])
        plain.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        adamw.param_groups[0]["lr"] = share * SETTINGS.learning_rate
        adamw.step()
        muon.param_groups[0]["lr"] = share * SETTINGS.matrix_rate
        muon.step()
        assert float(found) == pytest.approx(loss.item(), rel=1e-5)
        for name, weight in model.named_parameters():
            other = plain.get_parameter(name)
            torch.testing.assert_close(weight.grad, other.grad, atol=1e-6, rtol=1e-4)
            # Muon rounds to bfloat16: a last bit of a gradient may change an entry of its step by 2⁻⁸ of the largest.
            rounding = share * SETTINGS.matrix_rate * 2**-5 if weight.ndim == 2 and ".layers." in name else 0.0
            torch.testing.assert_close(weight, other, atol=2e-5 + rounding, rtol=1e-4)
        plain.load_state_dict(model.state_dict())
        count += 1
    assert count == SETTINGS.steps


@pytest.mark.parametrize(
    "flags", [["--size", "huge"], ["--batch", "1"], ["--steps", "0"], ["--examples", "-5"], ["--measured", "two"]]
)
def test_impossible_settings_are_told(tmp_path, flags, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--output", str(tmp_path / "new"), *flags])
    assert stopped.value.code == 2
    assert flags[0] in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("batch", [3, 64, 127, 256])
def test_every_step_has_as_many_examples_as_asked_for(batch):
    lengths = torch.randint(20, 400, (1000,))
    settings = Settings(batch=batch, steps=5)
    assert [sum(len(rows) for rows, _ in groups) for groups in batches(lengths, settings)] == [batch] * 5
