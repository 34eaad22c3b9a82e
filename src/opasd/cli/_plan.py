"""What a configuration comes to: batch arithmetic, what will be loaded, and what cannot work. Imports no torch."""

import ast
import difflib
import json
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opasd.config import DataConfig, RunConfig
from opasd.data.made import TASKS, count_problems, task_split
from opasd.errors import ConfigError
from opasd.prompts.wording import Wordings

LAB = "lab"
TRACKERS = ("wandb", "tensorboard", "mlflow", "trackio", "swanlab")
"""Trackers that are a package of the same name."""
_HUB_MODEL = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?", re.ASCII)
_HUB_DATA = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)
_DATA_FILE = re.compile(r"\.(jsonl|json|parquet|csv)(\.gz)?$", re.IGNORECASE)
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
}
"""Fields of TrainingArguments that would be ignored."""


def check(config: RunConfig, processes: int) -> list[str]:
    """Refuse what cannot work, before anything heavy is loaded; what may not be meant is returned."""
    found = plan(config, processes)
    if errors := found["errors"]:
        raise ConfigError("this cannot run:\n  " + "\n  ".join(errors))
    return found["warnings"]


def plan(config: RunConfig, processes: int) -> dict[str, Any]:
    """Arithmetic, sources, warnings and errors, as JSON types."""
    model = _model(config)
    data = _data("data.source", config.data)
    validation = {name: _data(f"validation_data.{name}.source", d) for name, d in config.validation_data.items()}
    batch = arithmetic(config, processes, data["problems"])
    errors = [
        *_wording(config),
        *_combinations(config),
        *(source.pop("error") for source in (model, data, *validation.values()) if source.get("error")),
    ]
    return {
        "batch": batch,
        "loads": {"model": model, "data": data, "validation_data": validation},
        "warnings": _warnings(config, batch, model, data),
        "errors": errors,
    }


def _wording(config: RunConfig) -> Iterator[str]:
    try:
        Wordings.of(config.prompts)
    except ConfigError as error:
        yield str(error)


def arithmetic(config: RunConfig, processes: int, problems: int | None = None) -> dict[str, Any]:
    """How much a run samples, reads and saves."""
    train, rollout, prompts = config.train, config.rollout, config.prompts
    per_step = train.per_device_train_batch_size * train.gradient_accumulation_steps * processes
    rollouts = per_step * rollout.rollouts_per_problem
    every = config.validation.every if config.validation_data else 0
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
        "checkpoints": -(-train.max_steps // train.save_steps),
        "checkpoints_kept": min(-(-train.max_steps // train.save_steps), train.save_total_limit or 10**9),
        "validations": (-(-train.max_steps // every) if every else 0) + config.validation.at_start,
    }


def _model(config: RunConfig) -> dict[str, Any]:
    name = config.model.name_or_path
    found: dict[str, Any] = {"source": name, "kind": "embedded", "revision": config.model.revision}
    if name == LAB:
        return found
    folder = Path(name).expanduser()
    if folder.is_dir():
        have = {path.name for path in folder.iterdir()}
        tokenizer = have & {"tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json"}
        missing = ["config.json"] * ("config.json" not in have) + ["a tokenizer (tokenizer.json)"] * (not tokenizer)
        missing += ["weights (model.safetensors)"] * (not any(n.endswith((".safetensors", ".bin")) for n in have))
        found |= {"kind": "folder", "complete": not missing, "longest_context": _longest_context(folder)}
        if missing:
            found["error"] = f"model.name_or_path: {name} lacks {', '.join(missing)}; give a whole model's folder"
    elif _HUB_MODEL.fullmatch(name) and not folder.exists():
        found |= {"kind": "hub", "cached": _cached("models", name)}
    else:
        found["kind"] = "missing"
        found["error"] = (
            f"model.name_or_path: no folder {name!r}, and no hub name; give a folder, organisation/name or lab"
        )
    return found


def _data(key: str, config: DataConfig) -> dict[str, Any]:
    source = config.source
    found: dict[str, Any] = {"source": source, "kind": "embedded", "split": config.split}
    if source in TASKS:
        try:
            split = task_split(config, "validation" if key.startswith("validation_data") else "train")
        except ConfigError as error:
            return found | {"problems": 0, "error": f"{key}: {error}"}
        return found | {"problems": count_problems(source, split, config.sample)}
    path = Path(source).expanduser()
    found["problems"] = _at_most(config, None)
    if source and path.is_dir():
        found["kind"] = "folder"
        if not any(_DATA_FILE.search(item.name) or item.suffix == ".arrow" for item in path.rglob("*")):
            found["error"] = f"{key}: the folder {source} has no jsonl, json, parquet or csv file; give one that has"
    elif source and path.exists():
        count = _count_rows(path)
        found |= {"kind": "file", "problems": _at_most(config, count)}
        if count and found["problems"] == 0:
            found["error"] = f"{key}: {source} has {count} rows, and none of them is in rows {config.rows!r}"
        if not _DATA_FILE.search(path.name):
            found["error"] = f"{key}: {source} is no jsonl, json, parquet or csv file; give one of these"
    elif _HUB_DATA.fullmatch(source) and not _DATA_FILE.search(source):
        found |= {"kind": "hub", "revision": config.revision, "cached": _cached("datasets", source)}
    else:
        found["kind"] = "missing"
        found["error"] = f"{key}: no file or folder {source!r}, and no hub data set; give a path or organisation/name"
    return found


def _at_most(config: DataConfig, count: int | None) -> int | None:
    """How many problems of `count` rows can be used at most, None where nothing says."""
    first, end = config.bounds
    ends = [edge for edge in (count, end) if edge is not None]
    limits = [max(0, min(ends) - first)] if ends else []
    return min([*limits, *([config.sample] if config.sample else [])], default=None)


def _combinations(config: RunConfig) -> Iterator[str]:
    train, model = config.train, config.model
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
        if tracker in TRACKERS and find_spec(tracker) is None:
            yield f"train.report_to: {tracker} is not installed; pip install {tracker}, or leave it out"
        elif (known := _trackers()) and tracker not in known:
            yield f"train.report_to: got {tracker!r}; transformers has {', '.join(sorted(known))}"
    if train.extra:
        yield from _extra(train.extra, set(type(train).model_fields) - {"extra"})


def _engine(config: RunConfig) -> Iterator[str]:
    engine, adaptation = config.rollout.engine, config.model.adaptation
    if engine == "vllm" and find_spec("vllm") is None:
        yield "rollout.engine: vllm is not installed; pip install 'opasd[vllm]', or use transformers or vllm_server"
    if engine != "transformers" and adaptation == "qlora":
        yield f"rollout.engine: {engine} samples from the whole base, but qlora trains on a 4-bit one; use lora"
    if engine == "vllm_server" and adaptation == "full":
        yield "rollout.engine: vllm_server takes adapters only; use model.adaptation: lora, or rollout.engine: vllm"


def _extra(extra: dict[str, Any], typed: set[str]) -> Iterator[str]:
    known = _training_arguments()
    for key in extra:
        if key in typed:
            yield f"train.extra.{key}: this has a field of its own; set train.{key}"
        elif key in ("output_dir", "overwrite_output_dir"):
            yield f"train.extra.{key}: the run's folder is chosen with output_dir and name, and never overwritten"
        elif key in _DECIDED:
            yield f"train.extra.{key}: {_DECIDED[key]}"
        elif key.endswith("_token"):
            yield f"train.extra.{key}: a secret would be kept in the run's folder and card; set HF_TOKEN instead"
        elif known and key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else "see its documentation"
            yield f"train.extra.{key}: no field of transformers' TrainingArguments; {hint}"


def _trackers() -> set[str]:
    found = re.search(
        r"^INTEGRATION_TO_CALLBACK = \{(.*?)\}", _source("integrations/integration_utils.py"), re.M | re.S
    )
    return {*re.findall(r'"(\w+)":', found[1]), "all", "none"} if found else set()


def _source(name: str) -> str:
    """A file of the installed transformers, whose import takes seconds; empty where there is none."""
    spec = find_spec("transformers")
    path = Path(spec.origin).parent / name if spec and spec.origin else None
    return path.read_text(encoding="utf-8") if path and path.is_file() else ""


def _training_arguments() -> set[str]:
    """The fields' names."""
    tree = ast.parse(_source("training_args.py"))
    found = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "TrainingArguments"), None)
    fields = found.body if found else []
    return {n.target.id for n in fields if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}


def _warnings(config: RunConfig, batch: dict[str, Any], model: dict[str, Any], data: dict[str, Any]) -> list[str]:
    found: list[str] = []
    longest = max(batch["longest_student_sequence"], batch["longest_teacher_sequence"])
    context = model.get("longest_context")
    if context and longest > context:
        found.append(f"sequences of up to {longest} tokens, but the model's context is {context} tokens")
    if (problems := data["problems"]) and problems < batch["problems_per_step"]:
        found.append(f"a step takes {batch['problems_per_step']} problems, but the data has at most {problems}")
    if config.validation.every and not config.validation_data:
        found.append("no validation_data: the run will not be validated")
    if config.model.attn_implementation == "flash_attention_2" and find_spec("flash_attn") is None:
        found.append("model.attn_implementation: flash_attention_2, but flash-attn is not installed")
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0", "false"):
        missing = [s["source"] for s in (model, data) if s["kind"] == "hub" and not s["cached"]]
        found += [f"{source} is not in the cache and HF_HUB_OFFLINE forbids to fetch it" for source in missing]
    return found


def _longest_context(folder: Path) -> int | None:
    try:
        value = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, int) else None


def _cached(kind: str, name: str) -> bool:
    """Whether the hub's cache has some version of it."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()
    return (cache / f"{kind}--{name.replace('/', '--')}" / "snapshots").is_dir()


def _count_rows(path: Path) -> int | None:
    """Rows of a jsonl file of moderate size; counting any other kind would mean to decode it."""
    if path.suffix.lower() != ".jsonl" or path.stat().st_size > _COUNTED_BYTES:
        return None
    with path.open("rb") as file:
        return sum(not line.isspace() for line in file)
