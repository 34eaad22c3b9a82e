"""Train the embedded model with OPSD and OPASD here, and show what they learn.

Base, OPSD and OPASD start from one model with one budget and answer held-out problems; they differ in the attention
loss alone. Its settings are chosen on the validation split. Everything is the product's own: the recipe `lab`, the
trainer, the sampler and the grader. The table's intervals are 95 %, for problems like these; differences are paired on
the same problems. It takes about six minutes on a CPU core, --quick 90 seconds: that takes fewer and smaller steps at
three times the rate, asks fewer problems and chooses nothing. It computes in one thread, so that the number of cores
changes no figure.
"""

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opasd.cli._flags import whole_number
from opasd.cli._parser import Parser
from opasd.config.method import PromptConfig
from opasd.errors import ConfigError
from opasd.progress import say

if TYPE_CHECKING:
    from opasd.config import RunConfig
    from opasd.data.made.counts import Puzzle
    from opasd.evaluation.answers import Answer
    from opasd.report.run import Run

OPSD = {"objective.attention_weight": 0.0}
ANSWER = PromptConfig().reference.format(solution="The answer is \\boxed{{{answer}}}.")
CHOICES: dict[str, dict[str, Any]] = {
    "λ 0.5": {"objective.attention_weight": 0.5},
    "λ 0.1": {"objective.attention_weight": 0.1},
    "λ balanced, attention sees the answer": {
        "objective.attention_weight": "balanced",
        "prompts.attention_reference": ANSWER,
    },
}
"""Settings of OPASD that the validation split chooses from: the paper's weight, one for this task's gradients, and a
reference that does not make the teacher look away."""
STEPS = {"max_steps": 15}
QUICK = {"max_steps": 10, "per_device_train_batch_size": 16, "learning_rate": 3e-3}
"""What --quick sets: a third of the demo's rollouts, at three times its rate."""
QUICK_CHOICE = "λ 0.1"
QUICK_PROBLEMS, PROBLEMS, VALIDATION = 300, 1200, 600
FIRST_LOOK = (
    "A first look: one seed, few steps at a high learning rate, few problems. It shows whether the methods learn, "
    "and not which is better: in the whole demo, without --quick, OPSD and OPASD are level."
)
HEADER = ("", "accuracy", "against base", "response length", "truncated", "markers / 1k tokens")


def parser() -> Parser:
    """Return the command's parser."""
    command = Parser("demo", __doc__, usage="opasd demo [--quick] [options]")
    command.add_argument(
        "--quick",
        action="store_true",
        help="A first look: 10 steps of 16 rollouts at a learning rate of 3e-3, 300 problems, one setting of OPASD.",
    )
    command.add_argument(
        "--steps",
        metavar="N",
        type=whole_number(1, 100_000),
        help="Optimizer steps of each training. (default: 15; --quick: 10)",
    )
    command.add_argument(
        "--problems",
        metavar="N",
        type=whole_number(1, 100_000),
        help="Held-out problems to answer. (default: 1200; --quick: 300)",
    )
    command.add_argument(
        "--seed", metavar="N", type=whole_number(0, 2**32 - 1), default=42, help="Seed of all trainings. (default: 42)"
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
    changes: dict[str, Any] = QUICK if options.quick else STEPS
    if options.steps is not None:
        changes = changes | {"max_steps": options.steps}
    problems = options.problems or (QUICK_PROBLEMS if options.quick else PROBLEMS)
    choices = {QUICK_CHOICE: CHOICES[QUICK_CHOICE]} if options.quick else CHOICES
    remark = FIRST_LOOK if options.quick else ""
    with one_thread():
        compare(folder, seed=options.seed, changes=changes, problems=problems, choices=choices, remark=remark)
    sys.stdout.flush()
    return 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block, torch computes in one thread: sums of another number of threads round otherwise."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Graded:
    """A model's answers to the held-out problems."""

    name: str
    answers: "list[Answer]"
    path: Path | None = None
    """The folder of its run; None for the base."""

    @property
    def correct(self) -> list[float]:
        return [float(bool(answer.correct)) for answer in self.answers]

    @property
    def accuracy(self) -> float:
        """In per cent."""
        return 100 * statistics.fmean(self.correct)

    def mistakes(self, puzzles: "Sequence[Puzzle]") -> dict[str, float]:
        """Return, by kind, how many of all answers are wrong by such a first mistake, in per cent."""
        from opasd.data.made.mistakes import MISTAKES, first_mistake

        pairs = zip(puzzles, self.answers, strict=True)
        counts = Counter(first_mistake(puzzle, one.text) or "other" for puzzle, one in pairs if not one.correct)
        return {text: 100 * counts[kind] / len(self.answers) for kind, text in MISTAKES.items()}

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
    recipe: str = "lab",
    seed: int = 42,
    changes: Mapping[str, Any] = STEPS,
    problems: int = PROBLEMS,
    validation: int = VALIDATION,
    choices: Mapping[str, Mapping[str, Any]] = CHOICES,
    remark: str = "",
) -> list[Graded]:
    """Evaluate the base, train and evaluate both methods, and write the tables, the page and the raw results.

    `changes` are fields of `train` in all trainings; with 1,200 problems the interval is at most ±3 points. OPASD is
    trained with each of `choices`, and the one with the most right answers on the validation split is kept. `remark`
    is what the page says before its numbers.
    """
    from opasd.data.made.counts import make_puzzles

    began = time.monotonic()
    puzzles, chosen_on = make_puzzles("test", problems, 0), make_puzzles("validation", validation, 0)
    plain = _config(recipe, folder, seed, changes, OPSD)
    say(f"base: answering {len(puzzles)} held-out problems, sampled and greedy")
    models = [Graded("base", _answers(plain, None, puzzles))]
    models.append(Graded("base, greedy", _answers(plain, None, puzzles, greedy=True)))
    opsd = _trained("OPSD", plain, folder / "opsd")
    models.append(Graded("OPSD", _answers(plain, opsd, puzzles), opsd))
    scores: dict[str, float] = {}
    runs: dict[str, tuple[RunConfig, Path]] = {}
    for number, (name, settings) in enumerate(choices.items(), 1):
        config = _config(recipe, folder, seed, changes, settings)
        path = _trained(f"OPASD, {name}", config, folder / (f"opasd-{number}" if len(choices) > 1 else "opasd"))
        runs[name] = config, path
        if len(choices) > 1:
            scores[name] = Graded(name, _answers(config, path, chosen_on)).accuracy
            say(f"OPASD, {name}: {scores[name]:.1f} % of {len(chosen_on)} validation problems")
    best = max(scores or choices, key=lambda name: scores.get(name, 0.0))
    config, path = runs[best]
    models.append(Graded("OPASD", _answers(config, path, puzzles), path))
    texts = [*([remark] if remark else []), *_findings(models, best, scores, len(chosen_on))]
    _write(folder, models, puzzles, seconds=time.monotonic() - began, texts=texts, scores=scores)
    return models


def _findings(models: Sequence[Graded], best: str, scores: Mapping[str, float], problems: int) -> list[str]:
    """Return what to know beside the table: the settings, and what sampling less at random does by itself."""
    base, greedy, opsd = models[:3]
    texts = [f"OPASD has {best}. λ is the weight of its attention loss."]
    if scores:
        shares = "; ".join(f"{name}: {score:.1f} %" for name, score in scores.items())
        texts = [f"OPASD has {best}, the best on {problems} validation problems ({shares})."]
    sharper, gain = greedy.accuracy - base.accuracy, opsd.accuracy - base.accuracy
    text = f"Greedy decoding of the untrained base gains {sharper:+.1f} points, OPSD {gain:+.1f}."
    texts.append(f"{text} So most of OPSD's gain is sharper sampling." if 2 * sharper > gain > 0 else text)
    return texts


def _config(
    recipe: str, folder: Path, seed: int, changes: Mapping[str, Any], settings: Mapping[str, Any]
) -> "RunConfig":
    from opasd.recipes import laid_over, load_recipe
    from opasd.recipes.checking import to_config
    from opasd.recipes.fields import nested

    parent = load_recipe(recipe)
    config = to_config(laid_over(parent.values, nested(settings)), parent.where)
    train = config.train.model_copy(update={"seed": seed, **changes})
    train = train.model_copy(update={"save_steps": train.max_steps})
    return config.model_copy(update={"train": train, "validation_data": {}, "output_dir": str(folder)})


def _trained(name: str, config: "RunConfig", target: Path) -> Path:
    """Train a run, and return its folder."""
    from opasd.cli._preview import arithmetic
    from opasd.run.folder import RunFolder
    from opasd.trainer.session import train

    say(f"{name}: {config.train.max_steps} steps of {arithmetic(config, 1)['rollouts_per_step']} rollouts")
    if train(RunFolder.create(config, target.name).config, target) == "stopped":
        raise KeyboardInterrupt
    return target


def _answers(
    config: "RunConfig", run: Path | None, puzzles: "Sequence[Puzzle]", *, greedy: bool = False
) -> "list[Answer]":
    """Return the answers of the base, or of the base with a run's adapter."""
    from peft import PeftModel

    from opasd.data.made.counts import as_problem
    from opasd.evaluation.answers import answer
    from opasd.model.loading import load_model, load_tokenizer
    from opasd.prompts.pairs import PromptBuilder
    from opasd.rollout.stops import stop_ids
    from opasd.rollout.transformers.engine import TransformersEngine

    tokenizer, model = load_tokenizer(config.model), load_model(config.model)
    student = model if run is None else PeftModel.from_pretrained(model, str(run / "final"))
    engine = TransformersEngine(student, stop_ids(student, tokenizer), config.rollout.max_batch)
    builder, settings = PromptBuilder(tokenizer, config.prompts), config.validation
    sampling = settings.sampling.model_copy(update={"temperature": 0.0} if greedy else {})
    return answer(list(map(as_problem, puzzles)), engine, builder, tokenizer, sampling, seed=settings.seed)


def _write(
    folder: Path,
    models: list[Graded],
    puzzles: "Sequence[Puzzle]",
    *,
    seconds: float,
    texts: Sequence[str],
    scores: Mapping[str, float],
) -> None:
    """Write results.json and the page, and print the tables and the texts."""
    from opasd.evaluation.statistics import estimate, paired_difference
    from opasd.report.build import build_report, write_report
    from opasd.rounding import aligned

    mistakes = {model.name: model.mistakes(puzzles) for model in models}
    kinds = [("wrong answers by their first mistake, %", *mistakes[models[0].name])]
    kinds += [(name, *(f"{share:.1f}" for share in own.values())) for name, own in mistakes.items()]
    for rows in ([HEADER, *(model.row(models[0]) for model in models)], kinds):
        sys.stdout.writelines(f"{line}\n" for line in aligned(rows))
        sys.stdout.write("\n")
    sys.stdout.writelines(f"{text}\n" for text in texts)
    measured = {
        model.name: {
            "accuracy": estimate(model.correct)._asdict(),
            "against_base": paired_difference(model.correct, models[0].correct)._asdict(),
            "length": statistics.fmean(len(answer.ids) for answer in model.answers),
            "mistakes": mistakes[model.name],
            "correct": [int(value) for value in model.correct],
        }
        for model in models
    }
    found = {"problems": len(puzzles), "validation": dict(scores), "texts": list(texts), "models": measured}
    (folder / "results.json").write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    shares = [
        f"{name}: {', '.join(f'{kind} {share:.1f}' for kind, share in own.items())}" for name, own in mistakes.items()
    ]
    remark = "\n".join([*texts, "Wrong answers by their first mistake, in % of all answers:", *shares])
    runs = _report_runs(models, puzzles)
    page = write_report(build_report(runs, title="opasd demo", explain=True, remark=remark), folder)
    say(f"{len(puzzles)} held-out problems, one answer each; {seconds:.0f} s; the page: {page}")


def _report_runs(models: list[Graded], puzzles: "Sequence[Puzzle]") -> "list[Run]":
    """Return the base and the trained models as a report takes them, with one trajectory to look at."""
    from opasd.report.attend import attend
    from opasd.report.folders import read_run
    from opasd.report.run import RecordedSample, Run

    base, last = models[0], models[-1]
    gained = [index for index, (old, new) in enumerate(zip(base.correct, last.correct, strict=True)) if new > old]
    attend(str(last.path), [(gained or [0])[0] + 1], sampler="before")
    runs = [Run(model.name, Path(), "evaluated") if model.path is None else read_run(model.path) for model in models]
    for run, model in zip(runs, models, strict=True):
        run.name = model.name
        run.samples += [
            RecordedSample(
                dataset="lab test",
                step=None,
                problem=puzzle.id,
                number=answer.sample,
                question=puzzle.question,
                answer=puzzle.answer,
                text=answer.text,
                tokens=len(answer.ids),
                correct=answer.correct,
                truncated=answer.finish_reason == "length",
            )
            for puzzle, answer in zip(puzzles, model.answers, strict=True)
        ]
    return runs


def _new_name(folder: Path) -> Path:
    """Return the folder, or the first of folder-2, folder-3, … that does not exist."""
    candidates = (folder, *(folder.with_name(f"{folder.name}-{number}") for number in range(2, 1000)))
    return next(candidate for candidate in candidates if not candidate.exists())
