"""Train the embedded model with OPSD and OPASD here, and show what they learn.

Base, OPSD and OPASD start from one model with one budget and answer held-out problems. Everything is the product's own:
the `lab` recipes, the trainer, the sampler and the grader. The table's intervals are 95 %, for problems like these;
differences are paired on the same problems. It takes about eight minutes on two CPU cores, --quick about one: that
takes fewer and smaller steps at three times the rate, and asks fewer problems.
"""

import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opasd.cli._flags import whole_number
from opasd.cli._parser import Parser
from opasd.errors import ConfigError
from opasd.progress import say

if TYPE_CHECKING:
    from opasd.config import RunConfig
    from opasd.data.problems import Problem
    from opasd.evaluation.answers import Answer
    from opasd.report.run import Run

METHODS = {"OPSD": "lab-opsd", "OPASD": "lab"}
QUICK = {"max_steps": 10, "per_device_train_batch_size": 16, "learning_rate": 3e-3}
"""What --quick sets in both recipes: an eighth of their rollouts, at three times their rate."""
QUICK_PROBLEMS, PROBLEMS = 300, 1200
NO_CHANGES: dict[str, Any] = {}
FIRST_LOOK = (
    "A first look: one seed, few steps at a high rate, few problems. It shows whether the methods learn; `opasd demo` "
    "compares them."
)
HEADER = ("", "accuracy", "against base", "response length", "truncated", "markers / 1k tokens")


def parser() -> Parser:
    """Return the command's parser."""
    command = Parser("demo", __doc__, usage="opasd demo [--quick] [options]")
    command.add_argument(
        "--quick", action="store_true", help="A first look: 10 steps of 16 rollouts at a rate of 3e-3, 300 problems."
    )
    command.add_argument(
        "--steps",
        metavar="N",
        type=whole_number(1),
        help="Optimizer steps of each training. (default: 40; --quick: 10)",
    )
    command.add_argument(
        "--problems",
        metavar="N",
        type=whole_number(1),
        help="Held-out problems to answer. (default: 1200; --quick: 300)",
    )
    command.add_argument(
        "--seed", metavar="N", type=whole_number(0, 2**32 - 1), default=42, help="Seed of both trainings. (default: 42)"
    )
    command.add_argument(
        "--output", metavar="DIR", type=Path,
        help="Folder to write; must be new. (default: runs/demo-SEED, or runs/demo-quick)",
    )  # fmt: skip
    return command


def run(args: list[str]) -> int:
    """The command."""
    options = parser().parse_args(args)
    folder = options.output or _new_name(Path("runs") / ("demo-quick" if options.quick else f"demo-{options.seed}"))
    if folder.exists():
        raise ConfigError(f"{folder} exists and is not overwritten; give another --output")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}; give another --output") from error
    changes: dict[str, Any] = QUICK if options.quick else {}
    if options.steps is not None:
        changes = changes | {"max_steps": options.steps}
    problems = options.problems or (QUICK_PROBLEMS if options.quick else PROBLEMS)
    remark = FIRST_LOOK if options.quick else ""
    compare(folder, seed=options.seed, changes=changes, problems=problems, remark=remark)
    if remark:
        sys.stdout.write(f"{remark}\n")
    sys.stdout.flush()
    return 0


@dataclass(frozen=True)
class Graded:
    """A model's answers to the held-out problems."""

    name: str
    answers: "list[Answer]"

    @property
    def correct(self) -> list[float]:
        return [float(bool(answer.correct)) for answer in self.answers]

    def row(self, base: "Graded") -> tuple[str, ...]:
        """Return the model's cells under HEADER."""
        from opasd.analysis.markers import count_markers
        from opasd.evaluation.statistics import estimate, paired_difference
        from opasd.rounding import fixed, per_cent, with_interval

        lengths = [len(answer.ids) for answer in self.answers]
        markers = sum(count_markers(answer.text).total() for answer in self.answers)
        truncated = statistics.fmean(answer.finish_reason == "length" for answer in self.answers)
        gain = map(per_cent, paired_difference(self.correct, base.correct))
        return (
            self.name,
            with_interval(map(per_cent, estimate(self.correct))),
            "" if self is base else with_interval(gain, sign=True),
            fixed(statistics.fmean(lengths), 1),
            f"{fixed(per_cent(truncated), 1)} %",
            fixed(1000 * markers / max(sum(lengths), 1), 2),
        )


def compare(
    folder: Path,
    *,
    seed: int = 42,
    changes: Mapping[str, Any] = NO_CHANGES,
    problems: int = PROBLEMS,
    remark: str = "",
) -> list[Graded]:
    """Evaluate the base, train and evaluate both methods, and write the table, the page and the raw results.

    `changes` are fields of `train` in both recipes; with 1,200 problems the interval is at most ±3 points. `remark` is
    what the page says before its numbers.
    """
    from opasd.cli._preview import arithmetic
    from opasd.data.made.counts import make_problems
    from opasd.run.folder import RunFolder
    from opasd.trainer.session import train

    began = time.monotonic()
    configs = {name: _config(recipe, folder, seed, changes) for name, recipe in METHODS.items()}
    held_out = make_problems("test", problems, 0)
    say(f"base: answering {len(held_out)} held-out problems")
    models = [Graded("base", _answers(configs["OPASD"], None, held_out))]
    for name, config in configs.items():
        target = folder / name.lower()
        say(f"{name}: {config.train.max_steps} steps of {arithmetic(config, 1)['rollouts_per_step']} rollouts")
        if train(RunFolder.create(config, target.name).config, target) == "stopped":
            raise KeyboardInterrupt
        models.append(Graded(name, _answers(config, target / "final", held_out)))
    _write(folder, models, held_out, seconds=time.monotonic() - began, remark=remark)
    return models


def _config(recipe: str, folder: Path, seed: int, changes: Mapping[str, Any]) -> "RunConfig":
    from opasd.recipes import load_recipe

    config = load_recipe(recipe).config()
    train = config.train.model_copy(update={"seed": seed, **changes})
    train = train.model_copy(update={"save_steps": train.max_steps})
    return config.model_copy(update={"train": train, "validation_data": {}, "output_dir": str(folder)})


def _answers(config: "RunConfig", adapter: Path | None, held_out: "Sequence[Problem]") -> "list[Answer]":
    """Return the answers of the base, or of the base with an adapter."""
    from peft import PeftModel

    from opasd.evaluation.answers import answer
    from opasd.model.loading import load_model, load_tokenizer
    from opasd.prompts.pairs import PromptBuilder
    from opasd.rollout.stops import stop_ids
    from opasd.rollout.transformers.engine import TransformersEngine

    tokenizer, model = load_tokenizer(config.model), load_model(config.model)
    student = model if adapter is None else PeftModel.from_pretrained(model, str(adapter))
    engine = TransformersEngine(student, stop_ids(student, tokenizer), config.rollout.max_batch)
    builder, settings = PromptBuilder(tokenizer, config.prompts), config.validation
    return answer(held_out, engine, builder, tokenizer, settings.sampling, seed=settings.seed)


def _write(folder: Path, models: list[Graded], held_out: "Sequence[Problem]", *, seconds: float, remark: str) -> None:
    """Write results.json and the page, and print the table."""
    from opasd.evaluation.statistics import estimate, paired_difference
    from opasd.report.build import build_report, write_report
    from opasd.rounding import aligned

    rows = [model.row(models[0]) for model in models]
    sys.stdout.writelines(f"{line}\n" for line in aligned([HEADER, *rows]))
    measured = {
        model.name: {
            "accuracy": estimate(model.correct)._asdict(),
            "against_base": paired_difference(model.correct, models[0].correct)._asdict(),
            "length": statistics.fmean(len(answer.ids) for answer in model.answers),
            "correct": [int(value) for value in model.correct],
        }
        for model in models
    }
    results = json.dumps({"problems": len(held_out), "models": measured}, indent=1)
    (folder / "results.json").write_text(results, encoding="utf-8")
    runs = _report_runs(folder, models, held_out)
    page = write_report(build_report(runs, title="opasd demo", explain=True, remark=remark), folder)
    say(f"{len(held_out)} held-out problems, one answer each; {seconds:.0f} s; the page: {page}")


def _report_runs(folder: Path, models: list[Graded], held_out: "Sequence[Problem]") -> "list[Run]":
    """Return the base and the trained models as a report takes them, with one trajectory to look at."""
    from opasd.report.attend import attend
    from opasd.report.folders import read_run
    from opasd.report.run import RecordedSample, Run

    base, last = models[0], models[-1]
    gained = [index for index, (old, new) in enumerate(zip(base.correct, last.correct, strict=True)) if new > old]
    attend(str(folder / last.name.lower()), [(gained or [0])[0] + 1], sampler="before")
    runs = [Run(base.name, folder, "evaluated"), *(read_run(folder / model.name.lower()) for model in models[1:])]
    for run, model in zip(runs, models, strict=True):
        run.name = model.name
        run.samples += [
            RecordedSample(
                dataset="lab test",
                step=None,
                problem=problem.id,
                number=answer.sample,
                question=problem.question,
                answer=problem.answer or "",
                text=answer.text,
                tokens=len(answer.ids),
                correct=answer.correct,
                truncated=answer.finish_reason == "length",
            )
            for problem, answer in zip(held_out, model.answers, strict=True)
        ]
    return runs


def _new_name(folder: Path) -> Path:
    """Return the folder, or the first of folder-2, folder-3, … that does not exist."""
    candidates = (folder, *(folder.with_name(f"{folder.name}-{number}") for number in range(2, 1000)))
    return next(candidate for candidate in candidates if not candidate.exists())
