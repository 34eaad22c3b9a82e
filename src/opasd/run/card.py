"""The model card of a finished run."""

import json
import re
import statistics
from pathlib import Path, PureWindowsPath
from typing import Any

from opasd.config import RunConfig


def model_card(config: RunConfig, rows: list[dict[str, Any]]) -> str:
    """Return the card as Markdown: model, data and method, the metrics of `rows`, and the whole configuration."""
    rows = [{name: value for name, value in row.items() if _is_number(value)} for row in rows]
    steps = [row for row in rows if "grad_norm" in row]
    base, source = _public(config.model.name_or_path), _public(config.data.source)
    on_hub = [f"base_model: {json.dumps(base)}"] if base == config.model.name_or_path else []
    method = "OPSD (token-level)" if not config.objective.attends else "OPASD (token- and attention-level)"
    if config.objective.token_weight == 0:
        method = "attention-level"
    method += " self-distillation"
    if config.objective.token_weight == 0 and not config.objective.attends:
        method = " and ".join(config.objective.terms)
    lines = [
        "---",
        *on_hub,
        "library_name: " + ("transformers" if config.model.adaptation == "full" else "peft"),
        "pipeline_tag: text-generation",
        *([f"datasets: [{json.dumps(source)}]"] if _on_hub(config.data.source) else []),
        "tags: [on-policy-distillation, self-distillation, opasd]",
        "---",
        "",
        f"# {config.name or 'A run of opasd'}",
        "",
        f"{base} after {len(steps)} steps of {method} on {source}.",
        "",
        "## What was measured",
        "",
        "| | first steps | last steps |",
        "|---|---|---|",
    ]
    for label, name, form in _ROWS:
        values = [row[name] for row in steps if name in row]
        if values:
            window = max(1, min(20, len(values) // 4))
            first, last = statistics.fmean(values[:window]), statistics.fmean(values[-window:])
            lines.append(f"| {label} | {form.format(first)} | {form.format(last)} |")
    generated = sum(row.get("tokens/generated", 0) for row in steps)
    flops = sum(value for row in steps for name, value in row.items() if name.startswith("flops/"))
    lines += ["", f"Tokens generated: {generated:,}. Estimated operations: {flops:.2e}.", ""]
    validated = [row for row in rows if any(name.startswith("validation/") for name in row)]
    if validated:
        lines += ["## Validation", "", "| step | measure | value |", "|---|---|---|"]
        lines += [
            f"| {row['step']} | {name.removeprefix('validation/')} | {value:.4g} |"
            for row in validated
            for name, value in row.items()
            if name.startswith("validation/")
        ]
        lines.append("")
    settings = json.dumps(_without_paths(config.model_dump(mode="json")), indent=2, ensure_ascii=False)
    return "\n".join([*lines, "## Configuration", "", "```json", settings, "```", ""])


def _is_number(value: object) -> bool:
    """Tell whether a value of a row is one that a run writes; a file that was damaged may hold any."""
    return isinstance(value, int | float) and abs(value) < 1e300


def _on_hub(source: str) -> bool:
    """Tell whether a source is the name of a data set on the hub, and no file or folder here."""
    return _HUB_SET.fullmatch(source) is not None and not Path(source).exists()


def _public(name: str) -> str:
    """Return a name as a card may show it: of a path on this machine, only the last part."""
    windows = PureWindowsPath(name)
    if name.startswith(("/", "~", "./", "../", ".\\", "..\\")) or windows.drive:
        return windows.name or name
    return name


def _without_paths(settings: Any, key: str = "") -> Any:
    """Return settings without the folders of this machine in which their files lie."""
    if isinstance(settings, dict):
        inside = "extra" if key == "extra" else ""
        return {name: _without_paths(value, inside or name) for name, value in settings.items()}
    return _public(settings) if isinstance(settings, str) and key in _PATHS else settings


_HUB_SET = re.compile(r"[\w-][\w.-]*/(?!.*\.(?:jsonl|json|csv|parquet)(?:\.gz)?$)[\w-][\w.-]*", re.IGNORECASE)
"""Names that may be data sets of the hub: `organisation/name`, and no file."""
_PATHS = frozenset({"name_or_path", "source", "output_dir", "adapter_dir", "extra"})
"""Settings that may hold a path; any of `train.extra` may."""


_ROWS = (
    ("loss", "loss", "{:.4f}"),
    ("token loss", "token/loss", "{:.4f}"),
    ("attention divergence", "attention/divergence", "{:.4f}"),
    ("attention on the solution (ρ)", "attention/solution_mass", "{:.3f}"),
    ("rollout accuracy", "rollout/accuracy", "{:.3f}"),
    ("response length", "rollout/length_mean", "{:.0f}"),
    ("truncated responses", "rollout/truncated", "{:.3f}"),
    ("epistemic markers per 1,000 tokens", "rollout/markers_per_1000", "{:.2f}"),
    ("responses that speak of the teacher's context", "rollout/leaks", "{:.3f}"),
)
