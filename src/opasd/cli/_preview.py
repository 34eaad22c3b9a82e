"""What a configuration would do: batch arithmetic, sources, warnings, and errors that forbid to start. No torch."""

import ast
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opasd.choices import ENGINES
from opasd.config import DataConfig, RunConfig
from opasd.data.made import TASKS, count_problems, task_split
from opasd.errors import ConfigError, closest
from opasd.files import read_object
from opasd.lab import LAB
from opasd.plan.models import hub_cache
from opasd.prompts.wording import Wordings

TRACKERS = ("wandb", "tensorboard", "mlflow", "trackio", "swanlab")
"""Trackers that are a package of the same name."""
_HUB_MODEL = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?", re.ASCII)
_HUB_DATA = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)
_DATA_FILE = re.compile(r"\.(jsonl|json|parquet|csv)(\.gz)?$", re.IGNORECASE)
PATIENCE = 1800
"""Seconds that processes wait for one another, transformers' default of `ddp_timeout`."""
_COUNTED_BYTES = 64 << 20
_VALIDATED = "validation.every says when a run is validated; set that"
_LOGGED = "every step is logged; leave it out"
_DECIDED = {
    "num_train_epochs": "train.max_steps says how long a run is; set that",
    "eval_strategy": _VALIDATED,
    "eval_steps": _VALIDATED,
    "eval_on_start": "validation.at_start says so; set that",
    "logging_strategy": _LOGGED,
    "logging_steps": _LOGGED,
    "logging_first_step": _LOGGED,
    "label_smoothing_factor": "the losses have no labels; leave it out",
    "resume_from_checkpoint": "a run is continued with --resume FOLDER; leave it out",
}
"""Fields of TrainingArguments that would be ignored."""
_MOST_WORKERS = 256
"""Processes that may read the data for one process of a run."""


def check(config: RunConfig, processes: int, name: str = "this") -> list[str]:
    """Refuse what cannot run, before anything heavy is loaded, and return the warnings."""
    result = preview(config, processes)
    if errors := result["errors"]:
        raise ConfigError(f"{name} cannot run:\n  " + "\n  ".join(errors))
    return result["warnings"]


def preview(config: RunConfig, processes: int) -> dict[str, Any]:
    """Return arithmetic, sources, warnings and errors as JSON types."""
    model = _model(config)
    data = _data("data.source", config.data)
    validation = {name: _data(f"validation_data.{name}.source", d) for name, d in config.validation_data.items()}
    batch = arithmetic(config, processes, data["problems"])
    errors = [
        *_combinations(config),
        *_together(config, processes),
        *(source.pop("error") for source in (model, data, *validation.values()) if source.get("error")),
    ]
    return {
        "batch": batch,
        "loads": {"model": model, "data": data, "validation_data": validation},
        "warnings": list(_warnings(config, batch, model, data)),
        "errors": errors,
    }


def arithmetic(config: RunConfig, processes: int, problems: int | None = None) -> dict[str, Any]:
    """Return how much a run samples, reads and saves; `problems` is the size of its data, if known."""
    train, rollout, prompts = config.train, config.rollout, config.prompts
    per_step = train.per_device_train_batch_size * train.gradient_accumulation_steps * processes
    rollouts = per_step * rollout.rollouts_per_problem
    every = config.validation.every if config.validation_data else 0
    checkpoints = -(-train.max_steps // train.save_steps)
    return {
        "processes": processes,
        "problems_per_step": per_step,
        "rollouts_per_step": rollouts,
        "steps": train.max_steps,
        "total_rollouts": rollouts * train.max_steps,
        "problems_at_most": problems,
        "epochs_at_least": None if not problems else round(per_step * train.max_steps / problems, 2),
        "longest_student_sequence": prompts.max_student_tokens + rollout.max_new_tokens,
        "longest_teacher_sequence": prompts.max_teacher_tokens + rollout.max_new_tokens,
        "checkpoints": checkpoints,
        "checkpoints_kept": min(checkpoints, train.save_total_limit or checkpoints),
        "validations": (-(-train.max_steps // every) if every else 0) + config.validation.at_start,
    }


def _model(config: RunConfig) -> dict[str, Any]:
    name = config.model.name_or_path
    source: dict[str, Any] = {"source": name, "kind": "embedded", "revision": config.model.revision}
    if name == LAB:
        return source
    folder = Path(name).expanduser()
    if folder.is_dir():
        files = {path.name for path in folder.iterdir()}
        tokenizer = files & {"tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json"}
        missing = ["config.json"] * ("config.json" not in files) + ["a tokenizer (tokenizer.json)"] * (not tokenizer)
        missing += ["weights (model.safetensors)"] * (not any(n.endswith((".safetensors", ".bin")) for n in files))
        context = read_object(folder / "config.json").get("max_position_embeddings")
        context = context if isinstance(context, int) else None
        source |= {"kind": "folder", "complete": not missing, "longest_context": context}
        if missing:
            source["error"] = f"model.name_or_path: {name} lacks {', '.join(missing)}; give a whole model's folder"
    elif _HUB_MODEL.fullmatch(name) and not folder.exists():
        source |= {"kind": "hub", "cached": _cached("models", name, config.model.revision)}
    else:
        source["kind"] = "missing"
        source["error"] = (
            f"model.name_or_path: no folder {name!r}, and no hub name; give a folder, organisation/name or lab"
        )
    return source


def _data(key: str, config: DataConfig) -> dict[str, Any]:
    name = config.source
    source: dict[str, Any] = {"source": name, "kind": "embedded", "split": config.split}
    if name in TASKS:
        try:
            split = task_split(config, "validation" if key.startswith("validation_data") else "train")
        except ConfigError as error:
            return source | {"problems": 0, "error": f"{key}: {error}"}
        return source | {"problems": count_problems(name, split, config.sample)}
    path = Path(name).expanduser()
    source["problems"] = _usable(config, None)
    if name and path.is_dir():
        source["kind"] = "folder"
        if not any(_DATA_FILE.search(item.name) or item.suffix == ".arrow" for item in path.rglob("*")):
            source["error"] = f"{key}: the folder {name} has no jsonl, json, parquet or csv file; give one that has"
    elif name and path.exists() and not path.is_file():
        source["error"] = f"{key}: {name} is no file but a pipe, a socket or a device; give a file"
    elif name and path.exists():
        count = _count_rows(path)
        source |= {"kind": "file", "problems": _usable(config, count)}
        if count and source["problems"] == 0:
            source["error"] = f"{key}: {name} has {count} rows, and none of them is in rows {config.rows!r}"
        if not _DATA_FILE.search(path.name):
            source["error"] = f"{key}: {name} is no jsonl, json, parquet or csv file; give one of these"
    elif _HUB_DATA.fullmatch(name) and not _DATA_FILE.search(name):
        source |= {"kind": "hub", "revision": config.revision, "cached": _cached("datasets", name, config.revision)}
    else:
        source["kind"] = "missing"
        source["error"] = f"{key}: no file or folder {name!r}, and no hub data set; give a path or organisation/name"
    return source


def _usable(config: DataConfig, count: int | None) -> int | None:
    """Return how many problems of `count` rows can be used at most, None if unknown."""
    first, end = config.bounds
    ends = [edge for edge in (count, end) if edge is not None]
    limits = [max(0, min(ends) - first)] if ends else []
    return min([*limits, *([config.sample] if config.sample else [])], default=None)


def _combinations(config: RunConfig) -> Iterator[str]:
    train, model = config.train, config.model
    try:
        Wordings.of(config.prompts)
    except ConfigError as error:
        yield str(error)
    if train.bf16 and train.fp16:
        yield "train.bf16 and train.fp16 are both true; keep one"
    if train.fp16 and model.dtype == "float16":
        yield "train.fp16 scales gradients of float32 weights, but model.dtype is float16; use model.dtype: float32"
    yield from _engine(config)
    if model.adaptation == "qlora" and find_spec("bitsandbytes") is None:
        yield "model.adaptation: qlora needs bitsandbytes; pip install bitsandbytes, or use lora"
    if model.adaptation != "full" and not model.lora_target_modules:
        yield f"model.lora_target_modules is empty, but adaptation is {model.adaptation}; name some or use full"
    for tracker in train.report_to:
        # transformers writes TensorBoard's files with either package.
        packages = (tracker, "tensorboardX") if tracker == "tensorboard" else (tracker,)
        if tracker in TRACKERS and not any(map(find_spec, packages)):
            yield f"train.report_to: {tracker} is not installed; pip install {tracker}, or leave it out"
        elif (known := _trackers()) and tracker not in known:
            yield f"train.report_to: got {tracker!r}; transformers has {', '.join(sorted(known))}"
    if train.extra:
        yield from _extra(train.extra, set(type(train).model_fields) - {"extra"})


def _engine(config: RunConfig) -> Iterator[str]:
    name, adaptation = config.rollout.engine, config.model.adaptation
    engine = ENGINES[name]
    if engine.package and find_spec(engine.package) is None:
        others = " or ".join(other for other, entry in ENGINES.items() if entry.package != engine.package)
        yield f"rollout.engine: {name} needs {engine.package}; {engine.install}, or use {others}"
    if engine.texts:
        yield f"rollout.engine: {name} returns texts without token ids; use transformers, vllm or vllm_server to train"
    elif adaptation not in engine.adaptations:
        others = " or ".join(other for other, entry in ENGINES.items() if adaptation in entry.adaptations)
        yield (
            f"rollout.engine: {name} cannot sample from model.adaptation: {adaptation}; use model.adaptation: "
            f"{' or '.join(engine.adaptations)}, or rollout.engine: {others}"
        )


def _together(config: RunConfig, processes: int) -> Iterator[str]:
    """Yield what processes that train together cannot do."""
    rollout = config.rollout
    patience = config.train.extra.get("ddp_timeout", PATIENCE)
    servers = processes > 1 and ENGINES[rollout.engine].servers
    if servers and isinstance(patience, int | float) and rollout.servers.timeout >= patience:
        yield (
            f"rollout.servers.timeout: got {rollout.servers.timeout:g}, but processes wait {patience:g} s for one "
            "another; lower it, or raise train.extra.ddp_timeout"
        )
    if rollout.engine == "vllm" and (obstacle := rollout.vllm.obstacle(processes)):
        yield obstacle


def _extra(extra: dict[str, Any], typed: set[str]) -> Iterator[str]:
    known = _training_arguments()
    for key, value in extra.items():
        if key in typed:
            yield f"train.extra.{key}: this has a field of its own; set train.{key}"
        elif key in ("output_dir", "overwrite_output_dir"):
            yield f"train.extra.{key}: the run's folder is chosen with output_dir and name, and never overwritten"
        elif key in _DECIDED:
            yield f"train.extra.{key}: {_DECIDED[key]}"
        elif key == "dataloader_num_workers" and isinstance(value, int) and not 0 <= value <= _MOST_WORKERS:
            yield f"train.extra.{key}: got {value}; give 0 to {_MOST_WORKERS}"
        elif key == "deepspeed" and find_spec("deepspeed") is None:
            yield "train.extra.deepspeed: DeepSpeed is not installed; pip install 'opasd[deepspeed]', or use FSDP2"
        elif known and key not in known:
            hint = closest(key, known) or "see its documentation"
            yield f"train.extra.{key}: no field of transformers' TrainingArguments; {hint}"


def _trackers() -> set[str]:
    source = _transformers_source("integrations/integration_utils.py")
    table = re.search(r"^INTEGRATION_TO_CALLBACK = \{(.*?)\}", source, re.M | re.S)
    return {*re.findall(r'"(\w+)":', table[1]), "all", "none"} if table else set()


def _training_arguments() -> set[str]:
    """Return the names of the fields."""
    nodes = ast.parse(_transformers_source("training_args.py")).body
    fields = next((n.body for n in nodes if isinstance(n, ast.ClassDef) and n.name == "TrainingArguments"), [])
    return {n.target.id for n in fields if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}


def _transformers_source(name: str) -> str:
    """Return the text of a file of transformers, whose import takes seconds; empty if it is not installed."""
    spec = find_spec("transformers")
    path = Path(spec.origin).parent / name if spec and spec.origin else None
    return path.read_text(encoding="utf-8") if path and path.is_file() else ""


def _warnings(config: RunConfig, batch: dict[str, Any], model: dict[str, Any], data: dict[str, Any]) -> Iterator[str]:
    longest = max(batch["longest_student_sequence"], batch["longest_teacher_sequence"])
    context = model.get("longest_context")
    if context and longest > context:
        yield f"sequences of up to {longest} tokens, but the model's context is {context} tokens"
    if (problems := data["problems"]) and problems < batch["problems_per_step"]:
        yield f"a step takes {batch['problems_per_step']} problems, but the data has at most {problems}"
    if config.validation.every and not config.validation_data:
        yield "no validation_data: the run will not be validated"
    yield from config.objective.warnings()
    if config.model.attn_implementation == "flash_attention_2" and find_spec("flash_attn") is None:
        yield "model.attn_implementation: flash_attention_2, but flash-attn is not installed"
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0", "false"):
        for source in (model, data):
            if source["kind"] == "hub" and not source["cached"]:
                yield f"{source['source']} is not in the cache and HF_HUB_OFFLINE forbids to fetch it"


def _cached(kind: str, name: str, revision: str | None) -> bool:
    """Return whether the hub's cache has this version of a model or data set; any version if none is named."""
    folder = hub_cache(kind, name)
    parts = ["snapshots"] if revision is None else [f"snapshots/{revision}", f"refs/{revision}"]
    return any((folder / part).exists() for part in parts)


def _count_rows(path: Path) -> int | None:
    """Count the rows of a jsonl file of moderate size; to count any other kind would mean to decode it."""
    if path.suffix.lower() != ".jsonl" or path.stat().st_size > _COUNTED_BYTES:
        return None
    with path.open("rb") as file:
        return sum(not line.isspace() for line in file)
