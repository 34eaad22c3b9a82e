"""Show what a configuration would do, without starting it.

Prints the resolved configuration, the batch arithmetic, what is loaded from where, what local data holds, the plan in
short, and what forbids to start (exit code 2). Takes the flags of `opasd train`. Loads no weights and no torch.
"""

import json
import sys
from typing import Any

from opasd.cli import USER_MISTAKE
from opasd.cli._flags import process_count
from opasd.cli._look import Look, look, mean_lengths
from opasd.cli._options import ConfigParser
from opasd.cli._preview import preview
from opasd.cli._processes import Processes
from opasd.cli.plan import as_json, estimate, short
from opasd.config import RunConfig
from opasd.errors import ConfigError, OpasdError, without_secrets
from opasd.plan.advice import Plan
from opasd.recipes.reading import write_yaml
from opasd.run.folder import check_name


def parser() -> ConfigParser:
    """Return the command's parser."""
    command = ConfigParser("validate", __doc__)
    command.option(
        "the run",
        "--num-processes",
        metavar="N",
        type=process_count,
        help="Count with this many processes. (default: 1)",
    )
    command.option("the run", "--json", action="store_true", help="Print one JSON object instead.")
    return command


def run(args: list[str]) -> int:
    """The command."""
    try:
        options, recipe, config = parser().parse(args)
        count = options.num_processes or Processes.current().world
        if config.name is not None:
            check_name(config.name)
    except OpasdError as error:
        if "--json" not in args:
            raise
        sys.stdout.write(json.dumps({"errors": [without_secrets(str(error))]}) + "\n")
        return USER_MISTAKE
    result = preview(config, count)
    looks, errors, warnings = look(config)
    result["errors"] += [error for error in errors if error not in result["errors"]]
    result["warnings"] += warnings
    result["looks"] = {key: found.to_dict() for key, found in looks.items()}
    if found := looks.get("data"):
        per_step = result["batch"]["problems_per_step"]
        epochs = round(per_step * config.train.max_steps / found.problems, 2)
        result["batch"] |= {"problems_at_most": found.problems, "epochs_at_least": epochs}
        if found.problems < per_step:
            result["warnings"] = [text for text in result["warnings"] if not text.startswith("a step takes")]
            result["warnings"].append(f"a step takes {per_step} problems, but the data has {found.problems}")
    try:
        plan = estimate(config, count, mean_lengths(config, looks.get("data")))
    except ConfigError as error:
        plan, result["plan"] = None, {"unknown": str(error)}
    else:
        result["plan"] = as_json(plan)
    if options.json:
        keys = ("description", "expects", "evaluate", "evaluate_only")
        about = {"recipe": recipe.name} | {key: getattr(recipe, key) for key in keys}
        sys.stdout.write(json.dumps(about | {"config": config.model_dump(mode="json")} | result, indent=2) + "\n")
        return USER_MISTAKE if result["errors"] else 0
    sys.stdout.write(_page(config, result, looks, plan))
    if recipe.evaluate_only:
        sys.stdout.write("# nothing is trained: the model is evaluated as it is\n")
    if result["errors"]:
        raise ConfigError("this cannot run:\n  " + "\n  ".join(result["errors"]))
    return 0


def _page(config: RunConfig, result: dict[str, Any], looks: dict[str, Look], plan: Plan | None) -> str:
    """Return the configuration as YAML, with the rest in comments."""
    batch = result["batch"]
    train, rollout = config.train, config.rollout
    epochs = "unknown: the data is not on this machine"
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
    for key, found in looks.items():
        text += f"# {key}\n" + "".join(f"#   {name:<18} {value}\n" for name, value in _contents(found).items())
    if plan is None:
        text += f"# plan: {result['plan']['unknown']}\n"
    else:
        text += f"# plan on {plan.gpus} x {plan.gpu.name}; `opasd plan` says more, and plans for other GPUs\n"
        text += "".join(f"#   {name:<18} {value}\n" for name, value in short(plan).items())
    return text + "".join(f"# warning: {warning}\n" for warning in result["warnings"])


def _contents(found: Look) -> dict[str, str]:
    """Return the rows that describe a set of problems."""
    left = "".join(f", {count:,} left out by {setting}" for setting, count in found.left_out.items())
    bad = f", {found.bad:,} bad" if found.bad else ""
    rows = {"problems": f"{found.problems:,} of {found.rows:,} rows{left}{bad}; {found.answers:,} with an answer"}
    for name in ("question", "solution"):
        length = getattr(found, name)
        rows[name] = f"{length.mean:,.0f} {found.unit} on average, the longest {length.longest:,}"
    return rows


def _source(load: dict[str, Any]) -> str:
    if load["kind"] == "hub":
        where = "in the cache" if load["cached"] else "to be fetched"
        return f"{load['source']} on the hub, revision {(load['revision'] or 'newest')[:12]}, {where}"
    texts = {"embedded": ", embedded", "missing": ": not found"}
    return load["source"] + texts.get(load["kind"], f" ({load['kind']} here)")
