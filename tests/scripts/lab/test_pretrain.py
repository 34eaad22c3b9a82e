"""The training step of the embedded model, in groups and with Muon, against a plain loop."""

import pytest
import torch
from torch.nn import functional
from transformers import AutoTokenizer

from opasd.lab import model_path
from scripts.lab.demos import Rates
from scripts.lab.muon import Muon, orthogonal
from scripts.lab.pretrain import Settings, _batches, _schedule, _Step, main, make_examples, make_model

TOKENIZER = AutoTokenizer.from_pretrained(model_path())
SETTINGS = Settings(size="small", steps=4, batch=7, examples=30, warmup=2)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 40), (4, 40, 5)])
def test_orthogonal_brings_singular_values_near_one_and_keeps_directions(shape):
    matrices = torch.randn(shape, dtype=torch.float64)
    found = orthogonal(matrices)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    singular = torch.linalg.svdvals(found)
    inside = left.mT @ found @ right.mT  # diagonal in the matrices' own directions
    torch.testing.assert_close(inside, torch.diag_embed(inside.diagonal(dim1=-2, dim2=-1)), atol=1e-9, rtol=0)
    assert singular.max() < 1.3
    assert singular.median() > 0.6


def test_muon_is_momentum_made_orthogonal_matrix_by_matrix():
    weights = [torch.nn.Parameter(torch.randn(*shape, dtype=torch.float64)) for shape in ((4, 6), (6, 4), (4, 6))]
    expected, means = [w.detach().clone() for w in weights], [torch.zeros_like(w) for w in weights]
    muon = Muon(weights, 0.1, torch.device("cpu"))
    muon.rate.fill_(0.02)
    muon.means = [mean.double() for mean in muon.means]
    for _ in range(3):
        for index, weight in enumerate(weights):
            gradient = weight.grad = torch.randn_like(weight)
            means[index] = 0.95 * means[index] + 0.05 * gradient
            change = orthogonal((0.05 * gradient + 0.95 * means[index])[None])[0]
            scale = 0.02 * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
            expected[index] = expected[index] * (1 - 0.02 * 0.1) - scale * change
        muon.step()
    for weight, wanted in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.detach(), wanted, atol=1e-7, rtol=1e-7)  # the rate is float32


def test_a_step_in_groups_is_a_plain_step_on_one_padded_batch():
    examples = make_examples(TOKENIZER, SETTINGS, Rates(), workers=1)
    model, plain = make_model(TOKENIZER, SETTINGS), make_model(TOKENIZER, SETTINGS)
    step = _Step(model, SETTINGS, torch.device("cpu"))
    layers = [weight for layer in plain.model.layers for weight in layer.parameters()]
    outer = [plain.model.embed_tokens.weight, plain.model.norm.weight, *(w for w in layers if w.ndim == 1)]
    adamw = torch.optim.AdamW(outer, lr=1.0, betas=(0.9, 0.98), weight_decay=0.0)
    muon = Muon([w for w in layers if w.ndim == 2], SETTINGS.weight_decay, torch.device("cpu"))
    count = 0
    for number, groups in enumerate(_batches(examples.lengths, SETTINGS)):
        share = _schedule(number, SETTINGS)
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
        muon.rate.fill_(share * SETTINGS.matrix_rate)
        muon.step()
        assert float(found) == pytest.approx(loss.item(), rel=1e-5)
        count += 1
    assert count == SETTINGS.steps
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


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
    assert [sum(len(rows) for rows, _ in groups) for groups in _batches(lengths, settings)] == [batch] * 5
