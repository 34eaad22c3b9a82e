"""A plugin as a user writes it: one of everything that can be registered."""

import torch

import opasd


def hellinger(teacher_V, student_V, beta):
    return (teacher_V.clamp_min(1e-30).sqrt() - student_V.clamp_min(1e-30).sqrt()) ** 2 / 2


def halfway(teacher, student, step):
    for name, weight in teacher.items():
        weight.lerp_(student[name].to(weight.dtype), 0.5)


def contains(problem, completion):
    return problem.answer in completion


def brevity(batch):
    """The hidden states' size, so that there is a gradient, and the mean length."""
    values = [batch.student[i].hidden_TE.float().square().mean() for i in range(len(batch.rollouts))]
    lengths = [rollout.num_tokens for rollout in batch.rollouts]
    return torch.stack(values), {"tokens": sum(lengths) / len(lengths)}


class EchoEngine:
    """Answers every prompt with its own last tokens."""

    @classmethod
    def for_training(cls, config, model, tokenizer, *, longest):
        from opasd.rollout.engine import as_engine

        return as_engine(cls())

    def generate(self, prompts, sampling, seeds):
        from opasd.rollout.engine import Completion

        return [Completion(tuple(prompt[-4:]), "length") for prompt in prompts]


opasd.register_divergence("hellinger", hellinger)
opasd.register_teacher("halfway", halfway)
opasd.register_engine("echo", "own_plugin:EchoEngine")
opasd.register_benchmark("own_sums", "sums.csv", question="frage", answer="antwort", kind="integer")
opasd.register_grader("contains", contains)
opasd.register_loss_term("brevity", brevity)
