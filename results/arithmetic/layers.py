"""Every layer's attention divergence on right and wrong answers: python results/arithmetic/layers.py MODEL OUT.json.gz

The model answers 200 held-out problems of arithmetic four times; of problems with a right and a wrong answer, cut off
ones aside, both roles read the answers, the teacher with the solution, with the final answer alone and with another
problem's solution in view. `python results/tables.py` prints what came out.
"""

import dataclasses
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import torch

from opasd.config import AttentionLossConfig, DataConfig, ModelConfig, PromptConfig, SamplingConfig
from opasd.data.problems import Problem
from opasd.data.sets import load_set
from opasd.grading.verdict import is_correct
from opasd.losses import objective
from opasd.model.loading import load_model, load_tokenizer
from opasd.model.scoring import Scorer, choose_layout
from opasd.prompts.alignment import align
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.rollout.transformers import TransformersEngine, stop_ids
from opasd.trainer.trainer import microbatches

PROBLEMS, SAMPLES = 200, 4
REFERENCES = {
    "solution": PromptConfig().reference,
    "answer": "The final answer to this problem is {answer}. Work the problem out by reasoning of your own, up to that "
    "answer.\n",
    "other": PromptConfig().reference,
}
SUPPORTS = ("context", "problem")


def builder(tokenizer: Any, reference: str) -> PromptBuilder:
    return PromptBuilder(tokenizer, PromptConfig(reference=reference, max_student_tokens=512, max_teacher_tokens=1024))


def answered(model: Any, tokenizer: Any, asked: list[Problem]) -> list[tuple[Problem, list[int], bool]]:
    """Answers that ended by themselves to problems that have a right and a wrong one."""
    prompts = builder(tokenizer, REFERENCES["solution"])
    engine = TransformersEngine(model, stop_ids(model, tokenizer), 512)
    sampling = SamplingConfig(temperature=0.7, max_new_tokens=256)
    several = [problem for problem in asked for _ in range(SAMPLES)]
    done = engine.generate([prompts.student_ids(one.question) for one in several], sampling, list(range(len(several))))
    found = [
        (problem, list(one.ids), is_correct(tokenizer.decode(list(one.ids), skip_special_tokens=True), problem.answer))
        for problem, one in zip(several, done, strict=True)
        if one.finish_reason == "stop"
    ]
    kinds = {(problem.id, right) for problem, _, right in found}
    return [row for row in found if {(row[0].id, True), (row[0].id, False)} <= kinds]


@torch.no_grad()
def read(model: Any, rollouts: list[Rollout]) -> dict[str, list[list[dict[str, float]]]]:
    """By support, layer and rollout: the divergence and the teacher's mass on what only it sees, means over tokens."""
    scorer = Scorer(model, model.config.num_hidden_layers)
    cuda = model.device.type == "cuda"
    layout = choose_layout(scorer, "auto", device=model.device, half=cuda)
    found: dict[str, list[list[dict[str, float]]]] = {
        support: [[{} for _ in rollouts] for _ in range(model.config.num_hidden_layers)] for support in SUPPORTS
    }
    for part in microbatches(rollouts, 32768 if cuda else 4096, packed=layout == "packed"):
        student, teacher = (scorer(part, role, layout=layout) for role in ("student", "teacher"))
        counts = [rollout.num_tokens for rollout in part]
        weights = torch.cat([torch.full((count,), 1 / count, device=model.device) for count in counts])
        for support in SUPPORTS:
            aligned = [align(rollout.pair, rollout.num_tokens, support=support, query="predicting") for rollout in part]
            for layer, rows in enumerate(found[support]):
                one, other = (
                    dataclasses.replace(scores, layers=(scores.layers[layer],)) for scores in (student, teacher)
                )
                _, reading = objective._attention_part(
                    part, one, other, aligned, AttentionLossConfig(support=support), weights
                )
                for key in ("divergence", "solution_mass"):
                    for rollout, values in zip(part, reading[key].split(counts), strict=True):
                        rows[int(rollout.id)][key] = float(values.mean())
    return found


def main() -> None:
    model_path, out = sys.argv[1], Path(sys.argv[2])
    cuda = torch.cuda.is_available()
    config = ModelConfig(name_or_path=model_path, dtype="bfloat16" if cuda else "float32")
    tokenizer, model = load_tokenizer(config), load_model(config).eval()
    if cuda:
        model = model.cuda()
    asked = list(load_set(DataConfig(source="arithmetic"), "validation"))[:PROBLEMS]
    others = {problem.id: asked[(place + 1) % len(asked)] for place, problem in enumerate(asked)}
    rows = answered(model, tokenizer, asked)
    record: dict[str, Any] = {
        "answers": [{"problem": problem.id, "right": right} for problem, _, right in rows],
        "divergence": {},
        "solution_mass": {},
    }
    for name, reference in REFERENCES.items():
        prompts = builder(tokenizer, reference)
        rollouts = []
        for place, (problem, ids, _) in enumerate(rows):
            shown = problem
            if name == "other":
                other = others[problem.id]
                shown = dataclasses.replace(problem, solution=other.solution, answer=other.answer)
            rollouts.append(Rollout(prompts.pair(shown), ids, str(place)))
        for support, layers in read(model, rollouts).items():
            what = f"{name}, {support}"
            record["divergence"][what] = [[float(f"{row['divergence']:.4g}") for row in layer] for layer in layers]
            means = [sum(row["solution_mass"] for row in layer) / len(layer) for layer in layers]
            record["solution_mass"][what] = [float(f"{mean:.3g}") for mean in means]
    out.write_bytes(gzip.compress(json.dumps(record, separators=(",", ":")).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
