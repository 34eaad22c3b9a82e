"""Run and evaluation folders made up for tests, as training and evaluation leave them."""

import json
import random
from pathlib import Path
from typing import Any

from opasd.recipes import load_recipe
from opasd.recipes.reading import write_yaml
from opasd.report.run import RecordedSample, Run

HOSTILE = (
    "</script><script>document.title='hacked'</script><!--<img src=x onerror=document.title=1>"
    "\u2028\u202eright to left\x00\x1b[31m\x07 עברית العربية 漢字 🙂 ${x} `y` \\u003c &lt; ]]> {{7*7}}"
)


def make_run(
    folder: Path,
    name: str,
    *,
    recipe: str = "lab",
    seed: int = 1,
    steps: int = 12,
    samples: int = 8,
    text: str = "Plan: Bob.\nWait, check: 4 + 3 = {n}.\nAnswer: \\boxed{{{n}}}",
    finished: bool = True,
) -> Path:
    """A run's folder; `{n}` in the text is a number."""
    path = folder / name
    path.mkdir(parents=True)
    config = load_recipe(recipe).config()
    config = config.model_copy(
        update={"name": name, "train": config.train.model_copy(update={"seed": seed, "max_steps": steps})}
    )
    (path / "config.yaml").write_text(write_yaml(config.model_dump()))
    (path / "environment.json").write_text(json.dumps({"python": "3.11", "versions": {"torch": "2.13"}, "gpus": []}))
    rng = random.Random(f"{name} {seed}")
    attention = recipe == "lab"
    rows: list[dict[str, Any]] = [validation(0, 0.3 + 0.01 * seed)]
    for step in range(1, steps + 1):
        rows.append(training(step, rng, attention=attention))
        if step % 6 == 0 or step == steps:
            rows.append(validation(step, 0.3 + 0.2 * step / steps + 0.01 * rng.random()))
    write_lines(path / "metrics.jsonl", rows)
    sampled = [sample(index % steps + 1, index, rng, text) for index in range(samples)]
    write_lines(path / "samples.jsonl", sampled)
    if finished:
        (path / "final").mkdir()
    return path


def training(step: int, rng: random.Random, *, attention: bool = True) -> dict[str, Any]:
    row = {
        "step": step, "loss": 0.1 / step, "token/divergence": 0.2 / step, "grad_norm": rng.random(),
        "rollout/accuracy": min(1, 0.3 + 0.01 * step + 0.1 * rng.random()),
        "rollout/length_mean": 60 + 5 * rng.random(), "rollout/truncated": 0.0,
        "rollout/markers_per_1000": 2 * rng.random(), "tokens/generated": 2000 + step,
        "tokens/processed": 9000, "seconds/step": 3.0, "seconds/rollout": 1.5, "seconds/teacher": 0.5,
        "seconds/student": 0.5, "seconds/update": 0.5, "flops/rollout": 2e10, "flops/teacher": 4e10,
        "flops/student": 2e10, "flops/update": 3e10, "memory/peak_bytes": 1.5e9, "ms_per_processed_token": 0.2,
    }  # fmt: skip
    if attention:
        row |= {"attention/divergence": 0.07 / step**0.5, "attention/solution_mass": 0.35,
                "attention/reference_text_mass": 0.2, "attention/student_entropy": 4.0,
                "attention/teacher_entropy": 3.8}  # fmt: skip
    return row


def validation(step: int, accuracy: float) -> dict[str, Any]:
    return {"step": step, "validation/lab/avg@4": accuracy, "validation/lab/pass@4": accuracy + 0.2,
            "validation/lab/length_mean": 61.0, "validation/lab/truncated": 0.0}  # fmt: skip


def sample(step: int, index: int, rng: random.Random, text: str) -> dict[str, Any]:
    right = rng.random() < 0.5
    completion = text.format(n=7 if right else rng.randrange(20, 99)) if "{n}" in text else text
    return {"step": step, "id": f"step {step}, problem-{index}, sample 0", "question": f"Question {index}: 4 + 3?",
            "answer": "7", "completion": completion, "completion_ids": list(range(20 + index % 9)),
            "finish_reason": "length" if index % 7 == 3 else "stop", "correct": right}  # fmt: skip


def make_evaluation(folder: Path, targets: dict[str, Path | None], *, problems: int = 6, samples: int = 3) -> Path:
    """An evaluation's folder, made with the product's own results."""
    from opasd.evaluation.results import build
    from opasd.evaluation.samples import GradedSample

    folder.mkdir(parents=True)
    rng = random.Random(0)
    about = {
        name: {"model": "lab", "adapter": str(run / "final") if run else None, "run": str(run) if run else None}
        for name, run in targets.items()
    }
    graded: dict[tuple[str, str, int], dict[str, list[GradedSample]]] = {}
    lines = []
    for index, name in enumerate(targets):
        for budget in (50, 100):
            graded[name, "set", budget] = {}
        for problem in (f"set/{n}" for n in range(problems)):
            outcomes = []
            for number in range(samples):
                right = rng.random() < 0.3 + 0.3 * index
                verdict = "correct" if right else "wrong"
                outcomes.append(GradedSample(40 + index, False, verdict, "7" if right else "8"))
                lines.append(
                    {"target": name, "benchmark": "set", "problem": problem, "sample": number, "seed": 1,
                     "ids": list(range(40 + index)), "text": f"Maybe {number}. Answer: \\boxed{{{7 if right else 8}}}",
                     "finish_reason": "stop", "verdict": verdict, "answer": "7" if right else "8", "cuts": {}}
                )  # fmt: skip
            graded[name, "set", 100][problem] = outcomes
            graded[name, "set", 50][problem] = [GradedSample(50, True, "truncated", None) for _ in outcomes]
    write_lines(folder / "samples.jsonl", lines)
    problem_rows = [
        {"benchmark": "set", "problem": f"set/{n}", "question": f"What is {n}?", "answer": "7"} for n in range(problems)
    ]
    write_lines(folder / "problems.jsonl", problem_rows)
    (folder / "settings.json").write_text(json.dumps({"targets": about}))
    whole = {"schema": 1, "name": folder.name, "targets": about, **build(graded)}
    (folder / "evaluation.json").write_text(json.dumps(whole))
    return folder


def run_with_answers(name: str, verdicts: list[bool], text: str = "maybe", tokens: int = 100) -> Run:
    """An evaluated model with one answer to each problem."""
    samples = [
        RecordedSample("set", None, f"p{n}", 0, "q", "7", text, tokens, verdict, False)
        for n, verdict in enumerate(verdicts)
    ]
    return Run(name, Path(), "evaluated", samples=samples)


def run_with_text(text: str, name: str = "run", other: str | None = None) -> Run:
    """An evaluated model with two answers; its questions, answers, notes and settings are the text."""
    samples = [
        RecordedSample("set", 1, "p", 0, text, text, text, 10, True, True),
        RecordedSample("set", 1, "q", 0, text, text, other or text, 9, None, False),
    ]
    config = {"model": {"name_or_path": text}}
    return Run(name, Path(), "evaluated", samples=samples, notes=[text], config=config)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_bytes(
        b"".join(f"{json.dumps(row, ensure_ascii=False)}\n".encode(errors="surrogatepass") for row in rows)
    )
