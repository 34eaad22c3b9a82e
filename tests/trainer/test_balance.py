"""Both losses' gradients: their share, a balanced weight, and that measuring changes nothing."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from opasd.config import ObjectiveConfig
from opasd.model.objective import opasd_loss
from opasd.model.scoring import Scorer
from opasd.run.records import Records
from tests.trainer.test_trainer import first_gradient
from tests.training import make_trainer, rows

TOKEN = {"token": {"clip": "none"}}
MEASURED = ("attention/gradient_share", "attention/gradient_cosine", "objective/attention_weight")


def objective(**settings):
    return {"objective": {**TOKEN, **settings}}


def gradients_apart(folder, order):
    """The gradient of each loss by itself, of the first step's rollouts in one forward, as one vector."""
    fresh = make_trainer(folder, method=objective())
    chosen = [next(pair for pair in fresh.data.pairs if f" {pair.problem.id}," in name) for name in order]
    rollouts = fresh.roll_out(chosen)
    scorer, vectors = Scorer(fresh.model), []
    for weights in ({"attention_weight": 0.0}, {"token_weight": 0.0, "attention_weight": 1.0}):
        with fresh.teacher.judging():
            teacher = scorer(rollouts, "teacher")
        student = scorer(rollouts, "student")
        fresh.model.zero_grad()
        config = ObjectiveConfig.model_validate({**TOKEN, **weights})
        opasd_loss(rollouts, student, teacher, student.head, teacher.head, config).loss.backward()
        trained = [p for p in fresh.model.parameters() if p.requires_grad]
        vectors.append(torch.cat([p.grad.flatten() for p in trained if p.grad is not None]).double())
    return vectors


@pytest.mark.parametrize("budget", [32_768, 400])
@pytest.mark.parametrize("weight", [0.8, "balanced"])
def test_share_and_balance_equal_both_gradients_by_themselves(tmp_path, weight, budget):
    settings = objective(attention_weight=weight, attention_ratio=0.3, gradients_every=2)
    actual, _ = first_gradient(tmp_path / "run", method={**settings, "tokens_per_microbatch": budget})
    (row,) = rows(tmp_path / "run")
    order = [row["id"] for row in Records(tmp_path / "run/samples.jsonl")]
    token, attention = gradients_apart(tmp_path / "apart", order)
    used = row.get("objective/attention_weight", 0.8)
    norms = token.norm().item(), used * attention.norm().item()
    if weight == "balanced":
        assert norms[1] == pytest.approx(0.3 * norms[0], rel=1e-4)
    assert row["attention/gradient_share"] == pytest.approx(norms[1] / sum(norms), rel=1e-4)
    cosine = torch.cosine_similarity(token, attention, dim=0).item()
    assert row["attention/gradient_cosine"] == pytest.approx(cosine, abs=1e-4)
    step = torch.cat([gradient.flatten() for gradient in actual.values()]).double()
    torch.testing.assert_close(step, token + used * attention, atol=1e-6, rtol=1e-4)
    assert row["loss"] == pytest.approx(row["token/loss"] + used * row["attention/divergence"], rel=1e-4)
    assert ("objective/attention_weight" in row) == (weight == "balanced")


def test_measuring_a_constant_weight_changes_nothing(tmp_path):
    """Bit for bit, with dropout: the pass that measures draws no random number of the run."""
    results = []
    for every in (0, 2):
        trainer = make_trainer(tmp_path / str(every), method=objective(gradients_every=every))
        for module in trainer.student.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.2
        trainer.train()
        results.append({name: p.detach().clone() for name, p in trainer.student.named_parameters()})
    for name, weight in results[0].items():
        assert torch.equal(weight, results[1][name]), name
    plain, measured = (rows(tmp_path / str(every)) for every in (0, 2))
    assert [MEASURED[0] in row for row in measured] == [True, False, True]
    for first, second in zip(plain, measured, strict=True):
        changed = {name for name in second if second[name] != first.get(name)}
        flops = {"flops/teacher", "flops/student", "flops/update"}
        assert changed == ({*MEASURED[:2], *flops} if MEASURED[0] in second else set())
        assert second["flops/update"] == first["flops/update"] * (2 if MEASURED[0] in second else 1)


def test_a_balanced_run_resumes_bit_for_bit(tmp_path):
    settings = {"method": objective(attention_weight="balanced", gradients_every=3), "max_steps": 5, "save_steps": 2}
    whole = make_trainer(tmp_path / "whole", **settings)
    whole.train()
    weights = [row["objective/attention_weight"] for row in rows(tmp_path / "whole")]
    assert weights[0] == weights[2] != weights[3] == weights[4]
    make_trainer(tmp_path / "part", **{**settings, "max_steps": 2}).train()
    saved = json.loads(Path(tmp_path / "part/checkpoint-2/balance.json").read_text())
    assert saved == {"attention_weight": weights[0]}
    part = make_trainer(tmp_path / "part", **settings)
    part.train(resume_from_checkpoint=True)
    assert rows(tmp_path / "part") == rows(tmp_path / "whole")
    for (name, first), second in zip(whole.student.named_parameters(), part.student.parameters(), strict=True):
        assert torch.equal(first, second), name


def test_all_weights_are_measured_only_if_asked_for(tmp_path):
    trainers = [
        make_trainer(tmp_path / name, lora=lora, method=objective(**settings))
        for name, lora, settings in (
            ("a", False, {}), ("b", True, {}), ("c", False, {"attention_weight": "balanced"}),
            ("d", True, {"attention_weight": 0}), ("e", False, {"gradients_every": 1}),
        )
    ]  # fmt: skip
    assert [trainer.balance.due for trainer in trainers] == [False, True, True, False, True]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_weight": -1}, "give a number of at least 0, or balanced"),
        ({"attention_weight": "even"}, "got 'even'; give a number"),
        ({"attention_weight": "balanced", "token_weight": 0}, "balanced needs a token loss to balance"),
    ],
)
def test_weights_that_cannot_be(settings, message):
    with pytest.raises(ValidationError, match=message):
        ObjectiveConfig.model_validate(settings)


def test_a_run_says_that_the_teacher_reads_twice(tmp_path):
    own = {"prompts": {"attention_reference": "It is {answer}.\n"}}
    both, one = (
        make_trainer(tmp_path / str(weight), method={**own, **objective(attention_weight=weight, gradients_every=0)})
        for weight in (0.5, 0.0)
    )
    assert "The teacher reads each rollout twice" in both.step_size
    assert "twice" not in one.step_size
    for trainer in (both, one):
        trainer.args.max_steps = trainer.state.max_steps = 1
        trainer.train()
    twice, once = (rows(tmp_path / str(weight))[0] for weight in (0.5, 0.0))
    assert twice["flops/student"] == once["flops/student"]
    assert twice["flops/teacher"] > 1.1 * once["flops/teacher"]
    assert twice["tokens/processed"] > once["tokens/processed"]
