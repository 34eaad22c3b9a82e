"""Say what a run needs: memory of a GPU, tokens and time of a step and of all.

Loads nothing and needs no GPU. Takes the flags of `opasd train`. The memory of 1.7B, 4B and 8B models was compared with
runs on an H200 (docs/planning.md); times are estimates from shares of a GPU's peak that were measured there.
"""

import json
import sys
from typing import Any

from opasd.cli._flags import whole_number
from opasd.cli._options import ConfigParser
from opasd.config import RunConfig
from opasd.errors import ConfigError
from opasd.plan.advice import Plan
from opasd.plan.memory import GIB, Lengths
from opasd.plan.models import find_shape
from opasd.plan.sharing import KINDS, Kind
from opasd.plan.speed import GPUS
from opasd.plan.table import table

PROMPT, SOLUTION = 256, 1024
"""Assumed mean lengths of a problem and of a solution, in tokens."""


def parser() -> ConfigParser:
    """Return the command's parser."""
    command = ConfigParser("plan", __doc__, groups=("what", "how", "on what"))
    command.option(
        "on what", "--gpus", metavar="N", type=whole_number(1), default=1,
        help="GPUs; problems per step grow with it, as in a run. (default: 1)",
    )  # fmt: skip
    command.option(
        "on what", "--sharding", metavar="WAY", default="ddp",
        help="How GPUs share the weights: whole on each (ddp), zero2 or fsdp2. (default: ddp)",
    )  # fmt: skip
    command.option(
        "on what", "--table", action="store_true",
        help="Print a table instead: 1.7B to 32B on 1 to 64 GPUs, 64 problems a step.",
    )  # fmt: skip
    command.option(
        "on what", "--gpu", metavar="KIND", default="h200", help=f"One of {', '.join(GPUS)}. (default: h200)"
    )
    command.option(
        "on what", "--prompt-tokens", metavar="N", type=whole_number(1), default=PROMPT,
        help="Assumed mean length of a problem in the student's context. (default: 256)",
    )  # fmt: skip
    command.option(
        "on what", "--solution-tokens", metavar="N", type=whole_number(0), default=SOLUTION,
        help="Assumed mean length of a solution with its markers. (default: 1024)",
    )  # fmt: skip
    command.option(
        "on what", "--response-tokens", metavar="N", type=whole_number(1),
        help="Assumed mean length of a rollout. (default: a quarter of --max-new-tokens)",
    )  # fmt: skip
    command.option("on what", "--json", action="store_true", help="Print one JSON object instead.")
    return command


def run(args: list[str]) -> int:
    """The command."""
    options, recipe, config = parser().parse(args)
    for flag, value, known in (("--gpu", options.gpu, GPUS), ("--sharding", options.sharding, KINDS)):
        if value not in known:
            raise ConfigError(f"{flag}: got {value!r}; give one of {', '.join(known)}")
    lengths = Lengths.of(config, options.prompt_tokens, options.solution_tokens, options.response_tokens)
    if options.table:
        sys.stdout.write(table(GPUS[options.gpu], lengths))
        return 0
    plan = estimate(config, options.gpus, lengths, options.gpu, options.sharding)
    if options.json:
        sys.stdout.write(json.dumps({"recipe": recipe.name} | as_json(plan), indent=2) + "\n")
    else:
        sys.stdout.write(page(plan))
    return 0


def estimate(
    config: RunConfig, gpus: int, lengths: Lengths | None = None, gpu: str = "h200", sharing: Kind = "ddp"
) -> Plan:
    """Return the plan of a configuration, with assumed mean lengths if none are known."""
    lengths = lengths or Lengths.of(config, PROMPT, SOLUTION)
    return Plan(config, find_shape(config.model.name_or_path), lengths, GPUS[gpu], gpus, sharing)


def short(plan: Plan) -> dict[str, str]:
    """Return the plan in a few lines: memory of a GPU, a step, the run, and what limits it."""
    memory, step, tokens = plan.memory, plan.seconds.step, plan.tokens
    read = tokens["read by the student"] + tokens["read by the teacher"]
    verdict = "fits" if plan.fits else "does not fit"
    return {
        "memory of a GPU": f"{memory.needed / GIB:.1f} GiB, {verdict} {plan.gpu.memory / GIB:.1f}; the {memory.phase} "
        "needs the most",
        "a step": f"{tokens['sampled']:,} tokens sampled, {read:,} read; about {step:,.{0 if step >= 10 else 1}f} s",
        "the run": f"{plan.config.train.max_steps} steps, about {duration(step * plan.config.train.max_steps)}",
        "limit": next(plan.advice(), "none"),
    }


def as_json(plan: Plan) -> dict[str, Any]:
    memory, seconds = plan.memory, plan.seconds
    return {
        "model": plan.config.model.name_or_path,
        "parameters": plan.shape.parameters,
        "gpu": plan.gpu.name,
        "gpus": plan.gpus,
        "sharding": plan.kind,
        "lengths": {
            "prompt": plan.lengths.prompt,
            "solution": plan.lengths.solution,
            "response": plan.lengths.response,
        },
        "memory": {"held": memory.held, "rollout": memory.rollout, "update": memory.update, "host": memory.host}
        | {"peak": memory.peak, "needed": memory.needed, "available": plan.gpu.memory, "fits": plan.fits},
        "tokens": plan.tokens,
        "seconds": {
            "rollout": seconds.rollout,
            "update": seconds.update,
            "exchange": seconds.exchange,
            "step": seconds.step,
        }
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
    way = f" ({plan.kind})" if plan.gpus > 1 else ""
    verdict = f"{'fits' if plan.fits else 'does not fit'} {plan.gpu.memory / GIB:.1f}"
    lines = [
        f"{config.model.name_or_path}: {plan.shape.parameters / 1e9:.2f} B parameters, {trained}",
        f"{plan.gpus} x {plan.gpu.name}{way}, {plan.rollouts} rollouts a GPU and step",
        assumed,
        "",
        "memory of a GPU, GiB",
    ]
    phases = {"": memory.held, "rollout: ": memory.rollout, "update: ": memory.update}
    for phase, parts in (phases | {"on the host: ": memory.host}).items():
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
