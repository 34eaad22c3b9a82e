"""The model card of a finished run."""

import json
import statistics
from typing import Any

from opasd.config import RunConfig


def model_card(config: RunConfig, rows: list[dict[str, Any]]) -> str:
    """Return the card as Markdown: model, data and method, the metrics of `rows`, and the whole configuration."""
    steps = [row for row in rows if "grad_norm" in row]
    method = "OPSD (token-level)" if config.objective.attention_weight == 0 else "OPASD (token- and attention-level)"
    if config.objective.token_weight == 0:
        method = "attention-level"
    lines = [
        "---",
        f"base_model: {json.dumps(config.model.name_or_path)}",
        "library_name: " + ("transformers" if config.model.adaptation == "full" else "peft"),
        "tags: [on-policy-distillation, self-distillation, opasd]",
        "---",
        "",
        f"# {config.name or 'A run of opasd'}",
        "",
        f"{config.model.name_or_path} after {len(steps)} steps of {method} self-distillation on {config.data.source}.",
        "",
        "## What was measured",
        "",
        "| | first steps | last steps |",
        "|---|---|---|",
    ]
    for label, name, form in _ROWS:
        values = [row[name] for row in steps if row.get(name) is not None]
        if values:
            window = max(1, min(20, len(values) // 4))
            first, last = statistics.fmean(values[:window]), statistics.fmean(values[-window:])
            lines.append(f"| {label} | {form.format(first)} | {form.format(last)} |")
    generated = sum(row["tokens/generated"] for row in steps)
    flops = sum(value for row in steps for name, value in row.items() if name.startswith("flops/"))
    lines += ["", f"Tokens generated: {generated:,}. Estimated operations: {flops:.2e}.", ""]
    validated = [row for row in rows if any(name.startswith("validation/") for name in row)]
    if validated:
        lines += ["## Validation", "", "| step | measure | value |", "|---|---|---|"]
        lines += [
            f"| {row['step']} | {name.removeprefix('validation/')} | {value:.4g} |"
            for row in validated
            for name, value in row.items()
            if name.startswith("validation/") and value is not None
        ]
        lines.append("")
    return "\n".join([*lines, "## Configuration", "", "```json", config.model_dump_json(indent=2), "```", ""])


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
