"""Let the teacher, under ten wordings of its prompt, read the base's own answers to GSM8K problems.

    python results/gsm8k/wordings.py MODEL PROBLEMS.jsonl OUT.jsonl [COUNT] [SAMPLES]

Each line of PROBLEMS has a problem, its solution and its answer. The base answers each problem SAMPLES times
(temperature 0.7, at most 400 tokens). Problems with a right and a wrong answer among the finished ones are used. Both
roles read each of their finished answers under each wording, and OUT gets the sums over each tenth of its tokens.
`python results/pack.py pack` packs a folder of such files as `wordings.tar.xz`.
"""

import json
import sys
from dataclasses import dataclass
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
from opasd.rollout.stops import stop_ids
from opasd.rollout.transformers.engine import TransformersEngine

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
"""The text of the reference, the teacher's prompt, and what is shown as the solution."""
MEASURES = ("log_ratio", "divergence", "attention_divergence")


@dataclass(frozen=True)
class Answer:
    """An answer of the base to one of the problems."""

    problem: int
    sample: int
    ids: tuple[int, ...]
    text: str
    finished: bool
    right: bool


def boxed(row: dict[str, Any]) -> str:
    return f"{row['solution'].rstrip()}\nThe final answer is \\boxed{{{row['answer']}}}."


def reference_text(kind: str, rows: list[dict[str, Any]], index: int, own: str) -> str:
    """Return what a wording shows as the solution of a problem."""
    row = rows[(index + 1) % len(rows)] if kind.startswith("other ") else rows[index]
    texts = {
        "solution": row["solution"],
        "boxed": boxed(row),
        "answer": str(row["answer"]),
        "boxed answer": f"The final answer is \\boxed{{{row['answer']}}}.",
        "own": own,
    }
    return texts[kind.removeprefix("other ")]


def prompt_builder(tokenizer: Any, wording: str) -> PromptBuilder:
    reference, teacher, _ = WORDINGS[wording]
    config = PromptConfig(reference=reference, teacher=teacher, max_student_tokens=1024, max_teacher_tokens=4096)
    return PromptBuilder(tokenizer, config)


def sample_answers(model: Any, tokenizer: Any, rows: list[dict[str, Any]], samples: int) -> list[list[Answer]]:
    """Return the base's answers to each problem."""
    prompts = prompt_builder(tokenizer, "package")
    pairs = [(index, sample) for index in range(len(rows)) for sample in range(samples)]
    completions = TransformersEngine(model, stop_ids(model, tokenizer), 512).generate(
        [prompts.student_ids(rows[index]["problem"]) for index, _ in pairs],
        SamplingConfig(temperature=0.7, max_new_tokens=400),
        [1000 * index + sample for index, sample in pairs],
    )
    answers: list[list[Answer]] = [[] for _ in rows]
    for (index, sample), completion in zip(pairs, completions, strict=True):
        text = str(tokenizer.decode(list(completion.ids), skip_special_tokens=True))
        finished = completion.finish_reason == "stop"
        right = finished and is_correct(text, str(rows[index]["answer"]))
        answers[index].append(Answer(index, sample, tuple(completion.ids), text, finished, right))
    return answers


def answers_to_read(kind: str, answers: list[list[Answer]]) -> list[tuple[Answer, str]]:
    """Return the finished answers to problems that have right and wrong ones, each with another right answer's text.

    The text is empty if there is no other right answer. Such answers are left out where the text is the reference.
    """
    pairs = []
    for group in answers:
        finished = [answer for answer in group if answer.finished]
        if {answer.right for answer in finished} == {True, False}:
            for answer in finished:
                own = next((other.text for other in group if other.right and other is not answer), "")
                if own or kind != "own":
                    pairs.append((answer, own))
    return pairs


def main() -> None:
    path, data, out, *numbers = sys.argv[1:]
    count, samples = int(numbers[0]) if numbers else 200, int(numbers[1]) if len(numbers) > 1 else 4
    rows = [json.loads(line) for line in Path(data).read_text(encoding="utf-8").splitlines()][:count]
    cuda = torch.cuda.is_available()
    model_config = ModelConfig(name_or_path=path, dtype="bfloat16" if cuda else "float32")
    tokenizer = load_tokenizer(model_config)
    model = load_model(model_config).eval()
    torch.nn.Module.to(model, "cuda" if cuda else "cpu")
    answers = sample_answers(model, tokenizer, rows, samples)
    right = [answer.right for group in answers for answer in group]
    print(f"{len(right)} answers, {100 * np.mean(right):.1f} % right")
    config = OPASDConfig.model_validate({"tokens_per_microbatch": 16_384})
    records: list[dict[str, Any]] = []
    for wording, (_, _, kind) in WORDINGS.items():
        prompts, rollouts = prompt_builder(tokenizer, wording), []
        pairs = answers_to_read(kind, answers)
        for answer, own in pairs:
            row, index = rows[answer.problem], answer.problem
            shown = reference_text(kind, rows, index, own)
            problem = Problem(row["problem"], shown, str(row["answer"]), f"problem {index}")
            rollouts.append(Rollout(prompts.pair(problem), answer.ids, f"{index}, {answer.sample}"))
        for (answer, _), reading in zip(pairs, judge(model, rollouts, config), strict=True):
            has_digit = [any(map(str.isdigit, tokenizer.decode([token]))) for token in answer.ids]
            record = {
                "wording": wording,
                "problem": answer.problem,
                "sample": answer.sample,
                "right": answer.right,
                "tokens": len(has_digit),
                "digits": sum(has_digit),
                "digits_log_ratio": float(np.asarray(reading["log_ratio"])[has_digit].sum()),
            }
            for measure in MEASURES:
                record[measure] = [float(part.sum()) for part in np.array_split(reading[measure], 10)]
            records.append(record)
        print(f"{wording}: {len(pairs)} answers")
    Path(out).write_text("".join(f"{json.dumps(row)}\n" for row in records), encoding="utf-8")


if __name__ == "__main__":
    main()
