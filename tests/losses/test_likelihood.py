"""The baselines: supervised fine-tuning on solutions, and rejection sampling, as loss terms of a normal run."""

import pytest
import torch

from opasd.losses.inputs import OutputHead
from opasd.losses.likelihood import negative_log_likelihood
from tests.training import PROBLEMS, TOKENIZER, make_trainer, rows

ALONE = {"token_weight": 0.0, "attention_weight": 0.0}
SFT = {"objective": {**ALONE, "terms": {"likelihood": 1.0}}, "rollout": {"max_new_tokens": 64, "source": "solution"}}


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_it_is_cross_entropy_in_chunks(chunk):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((7, 5), (11, 5)))
    tokens = torch.randint(11, (7,), generator=generator)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    actual = negative_log_likelihood(hidden, OutputHead(weight, scale=0.5), tokens, chunk_tokens=chunk)
    expected = -(0.5 * hidden @ weight.T).log_softmax(-1)[range(7), tokens]
    torch.testing.assert_close(actual, expected)
    weights = torch.arange(7, dtype=torch.float64)
    both = (torch.autograd.grad((values * weights).sum(), leaves) for values in (actual, expected))
    for gradient, wanted in zip(*both, strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_fine_tuning_reads_the_solutions_after_the_students_prompt(tmp_path):
    """The loss is the model's own cross-entropy of `solution` and the end token, a mean over tokens, then problems."""
    trainer = make_trainer(tmp_path, method={**SFT, "save_samples_every": 0}, max_steps=4, learning_rate=3e-2)
    model, expected = trainer.student, []
    order = {problem.id: problem for problem in PROBLEMS}
    rollouts = trainer.roll_out(list(trainer.data.pairs))
    for rollout in rollouts:
        assert TOKENIZER.decode(rollout.completion_ids[:-1]) == order[rollout.pair.problem.id].solution
        assert rollout.completion_ids[-1] == TOKENIZER.eos_token_id
    own = trainer.training_step(model, {"pairs": list(trainer.data.pairs)}).item()
    for rollout in rollouts:
        start = len(rollout.pair.student_ids)
        with torch.no_grad():
            logits = model(torch.tensor([rollout.student_ids])).logits[0, start - 1 : -1].log_softmax(-1)
        expected.append(-logits[range(rollout.num_tokens), list(rollout.completion_ids)].mean().item())
    assert own == pytest.approx(sum(expected) / len(expected), rel=1e-4)
    trainer.zero_gradients()
    trainer.train()
    losses = [row["loss"] for row in rows(tmp_path)]
    assert losses[-1] < losses[0] - 0.1
    assert (tmp_path / "final/adapter_model.safetensors").exists()


def test_rejection_sampling_learns_from_right_rollouts_alone(tmp_path):
    method = {"objective": {**ALONE, "terms": {"rejection": 1.0}}, "rollout": {"max_new_tokens": 6, "temperature": 1.0}}
    trainer = make_trainer(tmp_path, method=method)
    trainer.step_metrics.grader = lambda attempts: [number % 4 == 0 for number, _ in enumerate(attempts)]
    pairs = list(trainer.data.pairs)[:8]
    rollouts = trainer.roll_out(pairs)
    assert [rollout.correct for rollout in rollouts] == [True, False, False, False] * 2
    loss = trainer.training_step(trainer.student, {"pairs": pairs}).item()
    expected = 0.0
    for rollout in rollouts[::4]:
        start = len(rollout.pair.student_ids)
        with torch.no_grad():
            logits = trainer.student(torch.tensor([rollout.student_ids])).logits[0, start - 1 : -1].log_softmax(-1)
        expected -= logits[range(rollout.num_tokens), list(rollout.completion_ids)].mean().item() / 8
    assert loss == pytest.approx(expected, rel=1e-4)
    assert trainer.step_metrics.sums["term/rejection/kept"] == pytest.approx(0.25)
