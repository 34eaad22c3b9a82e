"""Measure every layer's attention divergence on right and wrong answers.

    python results/arithmetic/layers.py MODEL OUT.json.gz

The model answers 200 held-out problems of arithmetic four times. Problems with a right and a wrong answer among the
finished ones are used. Both roles read these answers; the teacher sees the solution, the final answer alone or another
problem's solution. `python results/tables.py arithmetic` prints the result.
"""

import dataclasses
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import torch

from opasd.config import DataConfig, ModelConfig, PromptConfig, SamplingConfig
from opasd.data.problems import Problem
from opasd.data.sets import load_set
from opasd.grading.verdict import is_correct
from opasd.losses.attention import attention_losses
from opasd.model.loading import load_model, load_tokenizer
from opasd.model.scoring import Scorer, choose_layout, microbatches
from opasd.prompts.alignment import align
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.rollout.stops import stop_ids
from opasd.rollout.transformers.engine import TransformersEngine

PROBLEMS, SAMPLES = 200, 4
REFERENCES = {
    "solution": PromptConfig().reference,
    "answer": "The final answer to this problem is {answer}. Work the problem out by reasoning of your own, up to that "
    "answer.\n",
    "other": PromptConfig().reference,
}
SUPPORTS = ("context", "problem")

Answer = tuple[Problem, tuple[int, ...], bool]
"""A problem, the tokens of an answer to it, and whether the answer is right."""
ByLayer = list[list[float]]
"""A value for each layer and each rollout."""


def prompt_builder(tokenizer: Any, reference: str) -> PromptBuilder:
    return PromptBuilder(tokenizer, PromptConfig(reference=reference, max_student_tokens=512, max_teacher_tokens=1024))


def sample_answers(model: Any, tokenizer: Any, held_out: list[Problem]) -> list[Answer]:
    """Return the finished answers to the problems that have a right and a wrong one."""
    prompts = prompt_builder(tokenizer, REFERENCES["solution"])
    engine = TransformersEngine(model, stop_ids(model, tokenizer), 512)
    sampling = SamplingConfig(temperature=0.7, max_new_tokens=256)
    repeated = [problem for problem in held_out for _ in range(SAMPLES)]
    completions = engine.generate(
        [prompts.student_ids(problem.question) for problem in repeated], sampling, list(range(len(repeated)))
    )
    answers = []
    for problem, completion in zip(repeated, completions, strict=True):
        if completion.finish_reason == "stop":
            text = tokenizer.decode(list(completion.ids), skip_special_tokens=True)
            answers.append((problem, tuple(completion.ids), is_correct(text, problem.answer)))
    kinds = {(problem.id, right) for problem, _, right in answers}
    return [answer for answer in answers if {(answer[0].id, True), (answer[0].id, False)} <= kinds]


@torch.no_grad()
def read_layers(model: Any, rollouts: list[Rollout]) -> dict[str, tuple[ByLayer, ByLayer]]:
    """Return, for each support, the divergence and the teacher's mass on the reference, as means over tokens."""
    layers = model.config.num_hidden_layers
    scorer = Scorer(model, layers)
    cuda = model.device.type == "cuda"
    layout = choose_layout(scorer, "auto", device=model.device, half=cuda)
    divergence, mass = (
        {support: [[0.0] * len(rollouts) for _ in range(layers)] for support in SUPPORTS} for _ in range(2)
    )
    for batch in microbatches(rollouts, 32768 if cuda else 4096, packed=layout == "packed"):
        student, teacher = (scorer(batch, role, layout=layout) for role in ("student", "teacher"))
        counts = [rollout.num_tokens for rollout in batch]
        for support in SUPPORTS:
            alignments = [
                align(rollout.pair, rollout.num_tokens, support=support, query="predicting") for rollout in batch
            ]
            for layer in range(layers):
                output = attention_losses(student.layers[layer], teacher.layers[layer], alignments)
                for means, values_T in ((divergence, output.divergence_T), (mass, output.solution_mass_T)):
                    for rollout, rollout_values_T in zip(batch, values_T.split(counts), strict=True):
                        means[support][layer][int(rollout.id)] = float(rollout_values_T.mean())
    return {support: (divergence[support], mass[support]) for support in SUPPORTS}


def main() -> None:
    model_path, out = sys.argv[1], Path(sys.argv[2])
    cuda = torch.cuda.is_available()
    config = ModelConfig(name_or_path=model_path, dtype="bfloat16" if cuda else "float32")
    tokenizer, model = load_tokenizer(config), load_model(config).eval()
    if cuda:
        model = model.cuda()
    held_out = list(load_set(DataConfig(source="arithmetic"), "validation"))[:PROBLEMS]
    next_problem = {problem.id: held_out[(index + 1) % len(held_out)] for index, problem in enumerate(held_out)}
    answers = sample_answers(model, tokenizer, held_out)
    record: dict[str, Any] = {
        "answers": [{"problem": problem.id, "right": right} for problem, _, right in answers],
        "divergence": {},
        "solution_mass": {},
    }
    for name, reference in REFERENCES.items():
        prompts = prompt_builder(tokenizer, reference)
        rollouts = []
        for index, (problem, ids, _) in enumerate(answers):
            if name == "other":
                other = next_problem[problem.id]
                problem = dataclasses.replace(problem, solution=other.solution, answer=other.answer)
            rollouts.append(Rollout(prompts.pair(problem), ids, str(index)))
        for support, (divergence, mass) in read_layers(model, rollouts).items():
            setting = f"{name}, {support}"
            record["divergence"][setting] = [[float(f"{value:.4g}") for value in layer] for layer in divergence]
            record["solution_mass"][setting] = [float(f"{sum(layer) / len(layer):.3g}") for layer in mass]
    out.write_bytes(gzip.compress(json.dumps(record, separators=(",", ":")).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
