"""The main job on what is embedded: base, OPSD and OPASD from one start with one budget, on held-out problems.

    opasd demo            about eight minutes on two CPU cores
    opasd demo --quick    a first look in about a minute

Everything is the product's own: the `lab` recipe, `train`, the sampler and the grader. The table's intervals are 95 %,
by bootstrap over problems; differences are paired on the same problems.
"""

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel

from opasd.analysis.markers import count_markers
from opasd.config import RunConfig
from opasd.data.problems import Problem
from opasd.evaluation.answers import Answer, answer
from opasd.evaluation.statistics import Estimate, estimate, paired_difference
from opasd.model.loading import load_model, load_tokenizer
from opasd.prompts.pairs import PromptBuilder
from opasd.recipes import load_recipe
from opasd.report.attend import attend
from opasd.report.folders import Run, Sample, read_run
from opasd.report.write import make
from opasd.report.write import write as write_report
from opasd.rollout.transformers.engine import TransformersEngine, stop_ids
from opasd.rounding import fixed, per_cent
from opasd.run.folder import RunFolder
from opasd.trainer.session import train

METHODS = {"OPSD": "lab-opsd", "OPASD": "lab"}
HEADER = ("", "accuracy", "against base", "response length", "truncated", "markers / 1k tokens")


@dataclass(frozen=True)
class Scored:
    """A model's answers to the held-out problems."""

    name: str
    answers: list[Answer]

    @property
    def correct(self) -> list[float]:
        return [float(bool(found.correct)) for found in self.answers]

    def row(self, base: "Scored") -> tuple[str, ...]:
        accuracy = estimate(self.correct)
        lengths = [len(found.ids) for found in self.answers]
        markers = sum((count_markers(found.text) for found in self.answers), Counter()).total()
        truncated = statistics.fmean(found.finish_reason == "length" for found in self.answers)
        gain = "" if self is base else _points(paired_difference(self.correct, base.correct), sign=True)
        return (
            self.name,
            _points(accuracy),
            gain,
            fixed(statistics.fmean(lengths), 1),
            f"{fixed(per_cent(truncated), 1)} %",
            fixed(1000 * markers / max(sum(lengths), 1), 2),
        )


def run(folder: Path, *, seed: int = 42, steps: int | None = None, problems: int = 1200) -> list[Scored]:
    """Evaluate the base, train and evaluate both methods, write the table, the page and the raw results.

    `steps` defaults to the recipe's; 1,200 problems make an interval of at most ±3 points."""
    began = time.monotonic()
    configs = {name: _config(recipe, folder, seed, steps) for name, recipe in METHODS.items()}
    held_out = test_problems(problems)
    base_config = configs["OPASD"]
    say(f"base: answering {len(held_out)} held-out problems")
    scored = [Scored("base", answers_of(base_config, None, held_out))]
    for name, config in configs.items():
        target = folder / name.lower()
        say(f"{name}: {config.train.max_steps} steps of {_batch(config)} rollouts")
        if train(RunFolder.create(config, target.name).config, target) == "stopped":
            raise KeyboardInterrupt
        scored.append(Scored(name, answers_of(config, target / "final", held_out)))
    write(folder, scored, held_out, seconds=time.monotonic() - began)
    return scored


def test_problems(count: int) -> list[Problem]:
    """Held-out problems of the embedded task."""
    from opasd.data.made.counts import make_problems

    return make_problems("test", count, 0)


def answers_of(config: RunConfig, adapter: Path | None, held_out: Sequence[Problem]) -> list[Answer]:
    """The answers of the base, or of the base with an adapter."""
    tokenizer, model = load_tokenizer(config.model), load_model(config.model)
    student = model if adapter is None else PeftModel.from_pretrained(model, str(adapter))
    engine = TransformersEngine(student, stop_ids(student, tokenizer), config.rollout.max_batch)
    builder, settings = PromptBuilder(tokenizer, config.prompts), config.validation
    return answer(held_out, engine, builder, tokenizer, settings.sampling, seed=settings.seed)


def write(folder: Path, scored: list[Scored], held_out: Sequence[Problem], *, seconds: float) -> None:
    """results.json, the page, and the table on standard output."""
    rows = [one.row(scored[0]) for one in scored]
    widths = [max(len(row[column]) for row in (HEADER, *rows)) for column in range(len(HEADER))]
    for row in (HEADER, *rows):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(f"{cells.rstrip()}\n")
    (folder / "results.json").write_text(json.dumps(_results(scored, held_out), indent=1), encoding="utf-8")
    report = write_report(make(_runs(folder, scored, held_out), title="opasd demo"), folder)
    say(f"{len(held_out)} held-out problems, one answer each; {seconds:.0f} s; the page: {report}")


def _runs(folder: Path, scored: list[Scored], held_out: Sequence[Problem]) -> list[Run]:
    """The base and the trained models as a report takes them, with one trajectory to look at."""
    base, last = scored[0], scored[-1]
    gained = [place for place, (old, new) in enumerate(zip(base.correct, last.correct, strict=True)) if new > old]
    attend(str(folder / last.name.lower()), [(gained or [0])[0] + 1], sampler="before")
    runs = [Run(base.name, folder, "evaluated"), *(read_run(folder / one.name.lower()) for one in scored[1:])]
    for run, one in zip(runs, scored, strict=True):
        run.name = one.name
        run.samples += [
            Sample(
                dataset="lab test",
                step=None,
                problem=problem.id,
                number=found.sample,
                question=problem.question,
                answer=problem.answer or "",
                text=found.text,
                tokens=len(found.ids),
                correct=found.correct,
                truncated=found.finish_reason == "length",
            )
            for problem, found in zip(held_out, one.answers, strict=True)
        ]
    return runs


def _results(scored: list[Scored], held_out: Sequence[Problem]) -> dict[str, Any]:
    base = scored[0]
    return {
        "problems": len(held_out),
        "models": {
            one.name: {
                "accuracy": estimate(one.correct)._asdict(),
                "against_base": paired_difference(one.correct, base.correct)._asdict(),
                "length": statistics.fmean(len(found.ids) for found in one.answers),
                "correct": [int(value) for value in one.correct],
            }
            for one in scored
        },
    }


def _config(recipe: str, folder: Path, seed: int, steps: int | None) -> RunConfig:
    config = load_recipe(recipe).config()
    steps = steps or config.train.max_steps
    optimisation = config.train.model_copy(update={"seed": seed, "max_steps": steps, "save_steps": steps})
    return config.model_copy(update={"train": optimisation, "validation_data": {}, "output_dir": str(folder)})


def _batch(config: RunConfig) -> int:
    settings = config.train
    problems_per_step = settings.per_device_train_batch_size * settings.gradient_accumulation_steps
    return problems_per_step * config.rollout.rollouts_per_problem


def _points(value: Estimate, *, sign: bool = False) -> str:
    """Percentage points: mean [low, high]."""
    mean, low, high = (fixed(per_cent(part), 1, sign=sign) for part in value)
    return f"{mean} [{low}, {high}]"


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
