"""Say what a run needs before it is started: memory of a GPU by part, tokens and time of a step and of the run.

Loads nothing and needs no GPU. Takes the flags of `opasd train`. The memory of 1.7B, 4B and 8B models was compared with
runs on an H200 (docs/planning.md); times are estimates from shares of a GPU's peak that were measured there.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

from opasd.cli._options import ConfigOptions, parse
from opasd.errors import ConfigError
from opasd.plan.advice import Plan
from opasd.plan.memory import GIB, Lengths
from opasd.plan.models import find_shape
from opasd.plan.speed import GPUS


@dataclass(frozen=True)
class PlanOptions(ConfigOptions):
    """The command's own options."""

    gpus: int = 1
    """Number of GPUs, each with a whole copy of the model. Problems per step grow with it, as they do in a run."""
    gpu: str = "h200"
    """Kind of GPU: h200, h100, b200, a100, a100-40, l40s, rtx-4090 or rtx-5090."""
    prompt_tokens: int = 256
    """Assumed mean length of a problem in the student's context."""
    solution_tokens: int = 1024
    """Assumed mean length of a solution with its markers."""
    response_tokens: int | None = None
    """Assumed mean length of a rollout. Unset: a quarter of rollout.max_new_tokens."""
    json: bool = False
    """Print one JSON object instead."""


def run(args: list[str]) -> int:
    """The command."""
    options, recipe, config = parse(PlanOptions, args, prog="opasd plan", about=__doc__ or "")
    if options.gpu not in GPUS:
        raise ConfigError(f"--gpu: got {options.gpu!r}; give one of {', '.join(GPUS)}")
    response = options.response_tokens
    if response is None:
        response = max(1, config.rollout.max_new_tokens // 4)
    for flag, value, least in (
        ("--gpus", options.gpus, 1),
        ("--prompt-tokens", options.prompt_tokens, 1),
        ("--solution-tokens", options.solution_tokens, 0),
        ("--response-tokens", response, 1),
    ):
        if value < least:
            raise ConfigError(f"{flag}: got {value}; give {least} or more")
    response = min(response, config.rollout.max_new_tokens)
    lengths = Lengths(options.prompt_tokens, options.solution_tokens, response)
    plan = Plan(config, find_shape(config.model.name_or_path), lengths, GPUS[options.gpu], options.gpus)
    if options.json:
        sys.stdout.write(json.dumps({"recipe": recipe.name} | as_json(plan), indent=2) + "\n")
    else:
        sys.stdout.write(page(plan))
    return 0


def as_json(plan: Plan) -> dict[str, Any]:
    memory, seconds = plan.memory, plan.seconds
    return {
        "model": plan.config.model.name_or_path,
        "parameters": plan.shape.parameters,
        "gpu": plan.gpu.name,
        "gpus": plan.gpus,
        "lengths": {
            "prompt": plan.lengths.prompt,
            "solution": plan.lengths.solution,
            "response": plan.lengths.response,
        },
        "memory": {"held": memory.held, "rollout": memory.rollout, "update": memory.update}
        | {"peak": memory.peak, "needed": memory.needed, "available": plan.gpu.memory, "fits": plan.fits},
        "tokens": plan.tokens,
        "seconds": {"rollout": seconds.rollout, "update": seconds.update, "step": seconds.step}
        | {"run": seconds.step * plan.config.train.max_steps},
        "advice": list(plan.advice()),
    }


def page(plan: Plan) -> str:
    """Return the plan as text."""
    config, memory, seconds, lengths = plan.config, plan.memory, plan.seconds, plan.lengths
    trained = "all weights train"
    if config.model.adaptation != "full":
        count = plan.shape.adapters(config.model.lora_r, config.model.lora_target_modules)
        trained = f"{config.model.adaptation} adapters of {count / 1e6:,.0f} M train"
    assumed = (
        f"assumed means: prompt {lengths.prompt:,}, solution {lengths.solution:,}, rollout {lengths.response:,} of at "
        f"most {config.rollout.max_new_tokens:,} tokens"
    )
    verdict = f"{'fits' if plan.fits else 'does not fit'} {plan.gpu.memory / GIB:.1f}"
    lines = [
        f"{config.model.name_or_path}: {plan.shape.parameters / 1e9:.2f} B parameters, {trained}",
        f"{plan.gpus} x {plan.gpu.name}, {plan.rollouts} rollouts a GPU and step",
        assumed,
        "",
        "memory of a GPU, GiB",
    ]
    for phase, parts in (("", memory.held), ("rollout: ", memory.rollout), ("update: ", memory.update)):
        lines += [f"  {phase + name:<46} {size / GIB:8.1f}" for name, size in parts.items()]
    lines += [
        f"  {'peak, in the ' + memory.phase:<46} {memory.peak / GIB:8.1f}",
        f"  {'needed, with the allocator and CUDA':<46} {memory.needed / GIB:8.1f}   {verdict}",
        "",
        "a step",
        *(f"  {'tokens ' + name:<46} {count:10,}" for name, count in plan.tokens.items()),
        f"  {'seconds: rollout + update':<46} {seconds.rollout:,.0f} + {seconds.update:,.0f} = {seconds.step:,.0f}",
        f"the run: {config.train.max_steps} steps, {duration(seconds.step * config.train.max_steps)}",
    ]
    lines += [f"advice: {text}" for text in plan.advice()]
    return "\n".join(lines) + "\n"


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
