"""Verdicts anew from kept samples, when the grader has changed or a comparison had failed.

    changed = regraded(path, settings, samples)        every sample whose verdict or answer is another one now
    settings = bring_up_to_date(path, settings, …)     before a folder is resumed: never two graders in one folder

A sample keeps all that its verdict needs: its text, how long the text is at each budget, and its marks of reasoning.
The known answers are those of problems.jsonl, graded as settings.json describes their benchmark.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from opasd.config import ModelConfig
from opasd.errors import ConfigError, OpasdError
from opasd.evaluation.answers import readable
from opasd.evaluation.comparability import GRADING
from opasd.evaluation.folder import PROBLEMS, SETTINGS, known_problems
from opasd.evaluation.samples import Sample, SampleFile, SampleKey
from opasd.files import JsonLines, write_json
from opasd.grading.outside import seconds_of
from opasd.grading.pool import Grader, Job
from opasd.grading.reading import KNOWN_MARKS, THINK, Mark, Reading, boxed_answer
from opasd.grading.versions import in_words, versions
from opasd.model.loading import load_tokenizer

CHANGES = "regraded.jsonl"
"""Verdicts that changed, old beside new."""
BESIDE, CHANGES_BESIDE = "evaluation.regraded.json", "regraded.new.jsonl"
"""The same and the results, of new verdicts that are not in place."""


class Change(NamedTuple):
    """A sample before and after."""

    old: Sample
    new: Sample
    gold: str

    def rows(self) -> list[dict[str, Any]]:
        """Return a line for each verdict that changed: of the sample, and of the sample cut at a budget."""
        key, rows = SampleKey(*self.new.key)._asdict(), []
        for budget in (None, *self.new.cuts):
            before, after = (_verdict(sample, budget) for sample in (self.old, self.new))
            if before != after:
                rows.append(
                    key
                    | {"budget": budget and int(budget), "gold": self.gold}
                    | {"old_verdict": before[0], "verdict": after[0], "old_answer": before[1], "answer": after[1]}
                )
        return rows


def _verdict(sample: Sample, budget: str | None) -> tuple[str, str | None]:
    about = vars(sample) if budget is None else sample.cuts[budget]
    return about["verdict"], about["answer"]


def regraded(path: Path, settings: Mapping[str, Any], samples: Iterable[Sample]) -> list[Change]:
    """Return the samples whose verdict or answer is another one now; `settings` and problems are the folder's."""
    golds = known_problems(path)
    function = settings.get("grader", "")
    jobs: dict[tuple[SampleKey, str | None], Job] = {}
    samples = list(samples)
    if lost := {sample.problem for sample in samples if (sample.benchmark, sample.problem) not in golds}:
        raise ConfigError(
            f"{path / PROBLEMS} lacks {min(lost)} ({len(lost)} in all), of which there are samples; put the whole file "
            "back, or give the evaluation's own command again, which writes what is missing"
        )
    for sample in samples:
        problem, about = golds[sample.benchmark, sample.problem], settings["benchmarks"].get(sample.benchmark, {})
        marks = (*map(Mark._make, (*sample.marks, *settings.get("think_marks", ()))), *KNOWN_MARKS)
        reading = Reading(tuple(dict.fromkeys(marks)), settings.get("boxes", "joined"))
        for budget in (None, *sample.cuts):
            text = _opened(sample) + _text(sample, budget, settings)
            reason = sample.finish_reason if budget is None else "length"
            kind, tolerance = about.get("kind", "expression"), about.get("tolerance", 0.0)
            jobs[sample.key, budget] = Job(text, str(problem.answer), kind, reason, problem, reading, tolerance)
    with closing(Grader(seconds=seconds_of(function), function=function)) as grader:
        graded = dict(zip(jobs, grader.grade_all(jobs.values()), strict=True))
    changes = []
    for sample in samples:
        cuts = {budget: cut | graded[sample.key, budget]._asdict() for budget, cut in sample.cuts.items()}
        new = replace(sample, cuts=cuts, **graded[sample.key, None]._asdict())
        if new != sample:
            changes.append(Change(sample, new, str(golds[sample.benchmark, sample.problem].answer)))
    return changes


def _opened(sample: Sample) -> str:
    """Return the mark that the prompt opened. A line of before it was kept shows it by a box that was not read."""
    unread = sample.verdict in ("no_answer", "truncated") and boxed_answer(sample.text)
    return sample.opened or (THINK.opens if unread else "")


def _text(sample: Sample, budget: str | None, settings: Mapping[str, Any]) -> str:
    if budget is None or len(sample.ids) <= int(budget):
        return sample.text
    if (chars := sample.cuts[budget].get("chars")) is not None:
        return sample.text[:chars]
    about = settings["targets"][sample.target]
    return readable(_tokenizer(about["model"], about["revision"]), sample.ids[: int(budget)])


@cache
def _tokenizer(model: str, revision: str | None) -> Any:
    try:
        return load_tokenizer(ModelConfig(name_or_path=model, revision=revision))
    except OpasdError as error:
        raise ConfigError(
            f"the samples do not say where budgets cut their text, and the tokenizer of {model} cannot be read "
            f"({error}); make the model available, or evaluate anew with another --output"
        ) from error


def write_changes(path: Path, changes: Iterable[Change], before: object, now: object) -> None:
    """Add the changed verdicts, old beside new, to the file with the versions that gave them."""
    about = {"old_grading": before, GRADING: now}
    JsonLines(path).append(*(row | about for change in changes for row in change.rows()))


def apply(samples: SampleFile, changes: Collection[Change]) -> None:
    """Put the new verdicts into samples.jsonl."""
    new = {change.new.key: change.new for change in changes}
    samples.replace([new.get(sample.key, sample) for sample in samples])


def _has_failed(sample: Sample) -> bool:
    return "grader_failed" in (sample.verdict, *(cut["verdict"] for cut in sample.cuts.values()))


def bring_up_to_date(
    path: Path, settings: dict[str, Any], samples: SampleFile, say: Callable[[str], None]
) -> dict[str, Any]:
    """Grade kept samples anew before others join them; return the settings with today's grader.

    After an upgrade these are all samples, else those whose comparison had failed.
    """
    before, now = settings.get(GRADING), versions(settings.get("grader", ""))
    kept = [sample for sample in samples if before != now or _has_failed(sample)]
    changes = regraded(path, settings, kept) if kept else []
    if kept and before != now:
        say(
            f"the verdicts in {path} were by {in_words(before)}; all {len(kept)} samples are graded anew by "
            f"{in_words(now)}: {len(changes)} changed" + (f", see {path / CHANGES}" if changes else "")
        )
    elif kept:
        say(f"tried again where a comparison had failed: {len(kept)} samples, {len(changes)} with another verdict now")
    if changes:
        write_changes(path / CHANGES, changes, before, now)
        apply(samples, changes)
    if before != now:
        settings = settings | {GRADING: now}
        write_json(path / SETTINGS, settings)
    return settings
