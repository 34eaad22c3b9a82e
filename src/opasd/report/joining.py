"""Which evaluations stand in one row of a page: those of the same model, asked in the same way."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opasd.report.folders import Run


def joined(rows: Sequence["Run"], answered: "Run") -> bool:
    """Whether the evaluation became part of a row: of the first that was evaluated as it was, or not at all."""
    row = next((row for row in rows if _agree(row.how, answered.how)), None)
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
    row.how = row.how | answered.how
    return True


def how_asked(record: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for a target's results to stand in one row; what is not on record is left out.

    The budget may differ, and from one benchmark to another what belongs to the benchmark.
    """
    settings = _dict(record.get("settings", record))
    profile = _dict(settings.get("profile"))
    sampling = {name: value for name, value in _dict(profile.get("sampling")).items() if name != "max_new_tokens"}
    found = {name: about.get(name) for name in ("model", "dtype", "fingerprint")}
    found |= {name: profile.get(name) for name in ("seed", "thinking")} | {"sampling": sampling or None}
    found |= {"engine": settings.get("engine"), "template": settings.get("template_options", {} if profile else None)}
    for name, benchmark in _dict(record.get("benchmarks")).items():
        asked = [_dict(benchmark).get(part) for part in ("fingerprint", "prompt", "instruction", "kind")]
        found[f"benchmark {name}"] = [*asked, profile.get("samples"), settings.get("group")]
    return {name: value for name, value in found.items() if value is not None}


def _agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
