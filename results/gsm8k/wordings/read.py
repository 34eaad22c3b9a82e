"""How the teacher, worded in several ways, reads the base's own answers to GSM8K problems.

    python results/gsm8k/wordings/read.py MODEL PROBLEMS.jsonl OUT.jsonl.gz [COUNT] [SAMPLES]

PROBLEMS has problem, solution and answer in each line. The base answers each problem SAMPLES times (temperature 0.7, at
most 400 tokens). Of problems with right and wrong answers among the finished ones, every finished answer is read by
both roles under each wording; kept are the sums over each tenth of its tokens.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opasd.config import ModelConfig, OPASDConfig, PromptConfig, SamplingConfig
from opasd.data.problems import Problem
from opasd.grading.verdict import is_correct
from opasd.model.loading import load_model, load_tokenizer
from opasd.probe.measure import judge
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.rollout.transformers import TransformersEngine, stop_ids

BEFORE, AFTER = "Problem: {question}\n\n{reference}{instruction}", "Problem: {question}\n\n{instruction}{reference}"
FRAME = (
    "Here is a reference solution to this problem:\n=== Reference Solution Begin ===\n{solution}\n"
    "=== Reference Solution End ===\n\n"
)
OWN = FRAME + (
    "Read the reference solution until every step of it is clear to you, without copying its wording. Then work the "
    "problem out again by reasoning of your own, up to the same final answer.\n"
)
SAME = FRAME + (
    "The reference solution is correct. Solve the problem the same way, step by step, up to the same final answer.\n"
)
LAST = (
    "\n\nThe correct solution is:\n\n{solution}\n\nWrite this solution down again, with the same steps and the same "
    "numbers."
)
ANSWER = "The final answer to this problem is {solution}.\n\n"
WORDINGS: dict[str, tuple[str, str, str]] = {
    "package": (OWN, BEFORE, "solution"),
    "package, another problem's reference": (OWN, BEFORE, "other solution"),
    "package, boxed": (OWN, BEFORE, "boxed"),
    "write it down again, last": (LAST, AFTER, "boxed"),
    "write it down again, last, another problem's reference": (LAST, AFTER, "other boxed"),
    "solve it the same way": (SAME, BEFORE, "boxed"),
    "hint": ("Hint: {solution}\n\n", BEFORE, "boxed"),
    "package, final answer alone": (OWN, BEFORE, "boxed answer"),
    "final answer alone": (ANSWER, BEFORE, "answer"),
    "package, a right answer of its own": (OWN, BEFORE, "own"),
}
"""Reference, teacher's prompt, and what stands in the reference."""
MEASURES = ("log_ratio", "divergence", "attention_divergence")


def boxed(row: dict[str, Any]) -> str:
    return f"{row['solution'].rstrip()}\nThe final answer is \\boxed{{{row['answer']}}}."


def reference(kind: str, rows: list[dict[str, Any]], index: int, own: str) -> str:
    row = rows[(index + 1) % len(rows)] if kind.startswith("other ") else rows[index]
    found = {
        "solution": row["solution"],
        "boxed": boxed(row),
        "answer": str(row["answer"]),
        "boxed answer": f"The final answer is \\boxed{{{row['answer']}}}.",
        "own": own,
    }
    return found[kind.removeprefix("other ")]


def main() -> None:
    path, data, out, *numbers = sys.argv[1:]
    count, samples = int(numbers[0]) if numbers else 200, int(numbers[1]) if len(numbers) > 1 else 4
    rows = [json.loads(line) for line in Path(data).read_text(encoding="utf-8").splitlines()][:count]
    cuda = torch.cuda.is_available()
    chosen = ModelConfig(name_or_path=path, dtype="bfloat16" if cuda else "float32")
    tokenizer = load_tokenizer(chosen)
    model = load_model(chosen).eval()
    torch.nn.Module.to(model, "cuda" if cuda else "cpu")

    def builder(name: str) -> PromptBuilder:
        words, teacher, _ = WORDINGS[name]
        config = PromptConfig(reference=words, teacher=teacher, max_student_tokens=1024, max_teacher_tokens=4096)
        return PromptBuilder(tokenizer, config)

    asked = [(index, sample) for index in range(len(rows)) for sample in range(samples)]
    student = builder("package")
    done = TransformersEngine(model, stop_ids(model, tokenizer), 512).generate(
        [student.student_ids(rows[index]["problem"]) for index, _ in asked],
        SamplingConfig(temperature=0.7, max_new_tokens=400),
        [1000 * index + sample for index, sample in asked],
    )
    texts = [str(tokenizer.decode(list(one.ids), skip_special_tokens=True)) for one in done]
    whole = [one.finish_reason == "stop" for one in done]
    right = [
        ended and is_correct(text, str(rows[index]["answer"]))
        for (index, _), ended, text in zip(asked, whole, texts, strict=True)
    ]
    print(f"{len(done)} answers, {100 * np.mean(right):.1f} % right")
    places = {index: [place for place, (other, _) in enumerate(asked) if other == index] for index in range(len(rows))}
    mixed = [
        index
        for index, of in places.items()
        if any(right[place] for place in of) and any(whole[place] and not right[place] for place in of)
    ]
    config = OPASDConfig.model_validate({"tokens_per_microbatch": 16_384})
    kept: list[dict[str, Any]] = []
    for name, (_, _, kind) in WORDINGS.items():
        words, rollouts, read = builder(name), [], []
        for index in mixed:
            for place in (place for place in places[index] if whole[place]):
                others = [texts[other] for other in places[index] if right[other] and other != place]
                if kind == "own" and not others:
                    continue
                text = reference(kind, rows, index, others[0] if others else "")
                problem = Problem(rows[index]["problem"], text, str(rows[index]["answer"]), f"problem {index}")
                rollouts.append(Rollout(words.pair(problem), done[place].ids, f"{index}, {asked[place][1]}"))
                read.append(place)
        for place, reading in zip(read, judge(model, rollouts, config), strict=True):
            digit = [any(map(str.isdigit, tokenizer.decode([token]))) for token in done[place].ids]
            index, sample = asked[place]
            kept.append(
                {"wording": name, "problem": index, "sample": sample, "right": right[place], "tokens": len(digit),
                 "digits": sum(digit), "digits_log_ratio": float(np.asarray(reading["log_ratio"])[digit].sum())}
                | {measure: [float(part.sum()) for part in np.array_split(reading[measure], 10)]
                   for measure in MEASURES}
            )  # fmt: skip
        print(f"{name}: {len(read)} answers")
    Path(out).write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in kept).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
