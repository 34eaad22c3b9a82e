"""Which evaluations stand in one row of a page: those of the same model, made in the same way."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opasd.report.folders import Run


def joined(rows: Sequence["Run"], answered: "Run") -> bool:
    """Whether the evaluation became part of a row: of the first that was evaluated as it was, or not at all."""
    row = next((row for row in rows if row.conditions.agree_with(answered.conditions)), None)
    if row is None:
        return False
    known = {(result.benchmark, result.budget) for result in answered.results}
    row.results = [one for one in row.results if (one.benchmark, one.budget) not in known] + answered.results
    # With the same seeds, an answer within a smaller budget is the beginning of the longer one.
    new = {one.key: one.tokens for one in (*answered.samples, *answered.without_text)}
    row.samples = [one for one in row.samples if one.tokens > new.get(one.key, -1)]
    row.without_text = [one for one in row.without_text if one.tokens > new.get(one.key, -1)]
    kept = {one.key for one in (*row.samples, *row.without_text)}
    row.samples += [one for one in answered.samples if one.key not in kept]
    row.without_text += [one for one in answered.without_text if one.key not in kept]
    row.notes += answered.notes
    if answered.evaluation and (row.evaluation is None or answered.evaluation.is_dir() > row.evaluation.is_dir()):
        row.evaluation = answered.evaluation
    row.conditions = row.conditions.joined_with(answered.conditions)
    return True
