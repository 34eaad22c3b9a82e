"""Which evaluations stand in one row of a page, those of the same model, asked in the same way; and which rows may be
compared, those that were asked the same way, whatever the model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opasd.report.folders import Run

_BUDGET = "budget of "
_OF_BENCHMARK = ("fingerprint", "prompt", "instruction", "kind")


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
    longest = {name: max(row.how.get(name, 0), most) for name, most in answered.how.items() if name.startswith(_BUDGET)}
    row.how = row.how | answered.how | longest
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
        asked = [_dict(benchmark).get(part) for part in _OF_BENCHMARK]
        found[f"benchmark {name}"] = [*asked, profile.get("samples"), settings.get("group")]
        most = _dict(profile.get("sampling")).get("max_new_tokens")
        found[_BUDGET + name] = most if isinstance(most, int) else None
    return {name: value for name, value in found.items() if value is not None}


def asked_otherwise(one: dict[str, Any], first: dict[str, Any], benchmark: str, *, counts: bool = True) -> list[str]:
    """What of a benchmark was asked of `one` otherwise than of the first, in words; empty: they can be compared.

    Both are `how_asked`; what is not on record does not count. `counts`: samples and budget do."""
    mine, theirs = ([*_list(how.get(f"benchmark {benchmark}")), *[None] * 5][:5] for how in (one, first))
    differ = [None not in pair and pair[0] != pair[1] for pair in zip(mine, theirs, strict=True)]
    of = f" ({str(mine[0])[:6]})" if differ[0] else ""
    found = [f"other {name}{of}" for name, other in zip(_OF_BENCHMARK[1:], differ[1:4], strict=True) if other]
    if differ[0] and not found:
        found.append(f"other problems{of}")
    sampling, before = _dict(one.get("sampling")), _dict(first.get("sampling"))
    shared = [name for name in sampling if name in before and sampling[name] != before[name]]
    found += [f"{name.replace('_', '-')} {sampling[name]}" for name in shared]
    if "thinking" in one and one["thinking"] != first.get("thinking", one["thinking"]):
        found.append("with thinking" if one["thinking"] else "without thinking")
    if "template" in one and one["template"] != first.get("template", one["template"]):
        found.append("other template options")
    if differ[4] and counts:
        found.append(f"{mine[4]} samples a problem")
    budget = one.get(_BUDGET + benchmark) if counts else None
    if budget is not None and budget != first.get(_BUDGET + benchmark, budget):
        found.append(f"up to {budget:,} tokens")
    return found


def _agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """But for the budgets."""
    return all(one[name] == other[name] for name in one.keys() & other.keys() if not name.startswith(_BUDGET))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
