"""Show what a configuration would do, in under a second and without loading anything.

Prints the resolved configuration, the batch arithmetic, what is loaded from where, and what forbids to start (exit
code 2). Takes the flags of `opasd train`.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

from opasd.cli import USER_MISTAKE
from opasd.cli._options import ConfigOptions, parse
from opasd.cli._preview import preview
from opasd.cli._processes import Processes
from opasd.config import RunConfig
from opasd.errors import ConfigError, OpasdError
from opasd.recipes.reading import write_yaml
from opasd.run.folder import check_name


@dataclass(frozen=True)
class ValidateOptions(ConfigOptions):
    """The command's own options."""

    num_processes: int | None = None
    """Count with this many processes. Unset: one."""
    json: bool = False
    """Print one JSON object instead."""


def run(args: list[str]) -> int:
    """The command."""
    try:
        options, recipe, config = parse(ValidateOptions, args, prog="opasd validate", about=__doc__ or "")
        count = Processes.current().world if options.num_processes is None else options.num_processes
        if count < 1:
            raise ConfigError(f"--num-processes: got {count}; give 1 or more")
        if config.name is not None:
            check_name(config.name)
    except OpasdError as error:
        if "--json" not in args:
            raise
        sys.stdout.write(json.dumps({"errors": [str(error)]}) + "\n")
        return USER_MISTAKE
    result = preview(config, count)
    if options.json:
        keys = ("description", "expects", "evaluate", "evaluate_only")
        about = {"recipe": recipe.name} | {key: getattr(recipe, key) for key in keys}
        sys.stdout.write(json.dumps(about | {"config": config.model_dump(mode="json")} | result, indent=2) + "\n")
        return USER_MISTAKE if result["errors"] else 0
    sys.stdout.write(_page(config, result))
    if recipe.evaluate_only:
        sys.stdout.write("# nothing is trained: the model is evaluated as it is\n")
    if result["errors"]:
        raise ConfigError("this cannot run:\n  " + "\n  ".join(result["errors"]))
    return 0


def _page(config: RunConfig, result: dict[str, Any]) -> str:
    """Return the configuration as YAML, with the rest in comments."""
    batch = result["batch"]
    train, rollout = config.train, config.rollout
    epochs = "unknown: only jsonl files and samples are counted here"
    if batch["epochs_at_least"] is not None:
        epochs = f"{batch['epochs_at_least']:g} over at most {batch['problems_at_most']:,} problems"
    rows = {
        "problems per step": f"{batch['problems_per_step']} = {train.per_device_train_batch_size} a device x "
        f"{train.gradient_accumulation_steps} accumulation x {batch['processes']} processes",
        "rollouts per step": f"{batch['rollouts_per_step']} = problems x {rollout.rollouts_per_problem} each",
        "steps": f"{batch['steps']:,}",
        "rollouts in all": f"{batch['total_rollouts']:,}",
        "epochs": epochs,
        "longest sequence": f"{batch['longest_student_sequence']:,} tokens for the student, "
        f"{batch['longest_teacher_sequence']:,} for the teacher",
        "checkpoints": f"{batch['checkpoints']}, of which {batch['checkpoints_kept']} kept",
        "validations": str(batch["validations"]),
    }
    loads = {"model": result["loads"]["model"], "data": result["loads"]["data"]}
    loads |= {f"validation {name}": data for name, data in result["loads"]["validation_data"].items()}
    text = write_yaml(config.model_dump())
    text += "\n# batch arithmetic\n" + "".join(f"#   {name:<18} {value}\n" for name, value in rows.items())
    text += "# what is loaded\n" + "".join(f"#   {name:<18} {_source(load)}\n" for name, load in loads.items())
    return text + "".join(f"# warning: {warning}\n" for warning in result["warnings"])


def _source(load: dict[str, Any]) -> str:
    if load["kind"] == "hub":
        where = "in the cache" if load["cached"] else "to be fetched"
        return f"{load['source']} on the hub, revision {load['revision'] or 'newest'}, {where}"
    texts = {"embedded": ", embedded", "missing": ": not found"}
    return load["source"] + texts.get(load["kind"], f" ({load['kind']} here)")
