"""Ablations: tables of methods that differ in one setting alone, keyed by its value, as the paper's are."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opasd.analysis.curves import number
from opasd.report.headline import score_cell, without_empty
from opasd.report.methods import Method, settings_of
from opasd.report.scores import Scores
from opasd.report.summary import shown
from opasd.report.tables import Cell, Table
from opasd.report.text import slug

Setting = tuple[str, ...]
_OBJECTIVE = "objective"
_WEIGHTS = {"token": (_OBJECTIVE, "token_weight"), "attention": (_OBJECTIVE, "attention_weight")}
_NAMES: dict[Setting, tuple[str, str]] = {
    (_OBJECTIVE, "attention_weight"): ("Strength of attention supervision", "λ_attn"),
    (_OBJECTIVE, "token_weight"): ("Strength of token supervision", "λ_token"),
    (_OBJECTIVE, "attention", "layers"): ("Depth of attention distillation", "layers"),
    (_OBJECTIVE, "attention", "divergence"): ("Attention divergence", "divergence"),
    (_OBJECTIVE, "attention", "handling"): ("Handling of the attention on the solution", "handling"),
    (_OBJECTIVE, "attention", "support"): ("Positions that are compared", "support"),
    (_OBJECTIVE, "token", "divergence"): ("Token divergence", "divergence"),
    (_OBJECTIVE, "token", "clip"): ("Clipping of the token loss", "clipping"),
    (_OBJECTIVE, "token", "clip_threshold"): ("Threshold of clipping", "threshold"),
    ("teacher", "update"): ("Teacher", "update"),
    ("train", "learning_rate"): ("Learning rate", "rate"),
    ("train", "max_steps"): ("Length of training", "steps"),
    ("model", "name_or_path"): ("Model", "model"),
}
"""Setting ─► title of its table, and heading of the first column; others are called by their path."""
_CLIP = {(_OBJECTIVE, "token", "clip"), (_OBJECTIVE, "token", "clip_threshold")}


def ablations(scores: Scores) -> list[Table]:
    """Return a table for each setting that alone tells methods apart, and one for the parts of the objective."""
    known = [m for m in scores.methods if m.config and any(scores.score(m, one) for one in scores.benchmarks)]
    settings = {method.slot: _that_matter(method) for method in known}
    tables = _objectives(scores, known, settings)
    paths = sorted({path for own in settings.values() for path in own})
    for path in paths:
        groups: defaultdict[str, list[Method]] = defaultdict(list)
        for method in known:
            rest = {key: value for key, value in settings[method.slot].items() if key != path}
            groups[repr(sorted(rest.items(), key=repr))].append(method)
        for members in groups.values():
            values = {method.slot: settings[method.slot].get(path) for method in members}
            if len(members) > 1:
                title, first = _NAMES.get(path, (".".join(path), path[-1]))
                ordered = sorted(members, key=lambda method: _order(values[method.slot]))
                names = [f"{shown(values[method.slot])}" for method in ordered]
                tables.append(_table(scores, slug(".".join(path)), title, first, ordered, names))
    return tables


def _objectives(scores: Scores, known: Sequence[Method], settings: dict[int, dict[Setting, Any]]) -> list[Table]:
    """Return the table of token loss, attention loss and both, with other clippings of the token loss beside."""
    main = scores.comparable().best_of("OPASD")
    if main is None or main not in known:
        return []
    own = settings[main.slot]
    members = []
    for method in known:
        theirs = settings[method.slot]
        same = all(
            theirs.get(path) == own.get(path)
            for path in {*own, *theirs} - _CLIP - set(_WEIGHTS.values())
            if not any(path[:2] == (_OBJECTIVE, part) and not _on(theirs, part) for part in _WEIGHTS)
        )
        weights = all(not _on(theirs, part) or theirs[path] == own.get(path) for part, path in _WEIGHTS.items())
        if same and weights:
            members.append(method)
    kinds = {"OPSD": "Token only (OPSD)", "attention only": "Attention only", "OPASD": "Token + Attention (OPASD)"}
    members = sorted((m for m in members if m.kind in kinds), key=lambda method: [*kinds].index(method.kind))
    if len({method.kind for method in members}) < 2:
        return []
    clips = {settings[method.slot].get((_OBJECTIVE, "token", "clip")) for method in members} - {None}
    names = []
    for method in members:
        clip = settings[method.slot].get((_OBJECTIVE, "token", "clip"))
        names.append(kinds[method.kind] + (f", {shown(clip)} clipping" if clip and len(clips) > 1 else ""))
    return [_table(scores, "objectives", "Distillation objectives", "objective", members, names)]


def _that_matter(method: Method) -> dict[Setting, Any]:
    """Return the settings without those of a loss that is off."""
    settings = settings_of(method)
    off = [part for part in _WEIGHTS if not _on(settings, part)]
    return {path: value for path, value in settings.items() if not any(path[:2] == (_OBJECTIVE, part) for part in off)}


def _on(settings: dict[Setting, Any], part: str) -> bool:
    return number(settings.get(_WEIGHTS[part])) != 0


def _order(value: Any) -> tuple[bool, float, str]:
    as_number = number(value)
    return as_number is None, as_number or 0.0, str(value)


def _table(
    scores: Scores, table_id: str, title: str, first: str, methods: Sequence[Method], names: Sequence[str]
) -> Table:
    several = len(scores.benchmarks) > 1
    rows = []
    for method, name in zip(methods, names, strict=True):
        cells = [score_cell(scores.score(method, benchmark)) for benchmark in scores.benchmarks]
        cells += [score_cell(scores.average(method))] if several else []
        rows.append([Cell(name), *cells, Cell(str(len(method.runs)), len(method.runs))])
    for column in range(1, len(rows[0]) - 1):
        values = [row[column].value for row in rows]
        best = max((value for value in values if value is not None), default=None)
        for row in rows:
            row[column] = replace(row[column], best=best is not None and row[column].value == best)
    header = [first, *(f"{one.name}, %" for one in scores.benchmarks), *(["average, %"] if several else []), "runs"]
    slots = [method.slot for method in methods]
    return without_empty(Table(f"ablation-{table_id}", title, header, rows, slots=slots))
