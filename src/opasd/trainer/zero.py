"""DeepSpeed's settings: what a run decides itself, and what it refuses."""

from typing import Any

from transformers import Trainer, TrainingArguments

from opasd.choices import StopOrSkip
from opasd.errors import ConfigError


def settle(args: TrainingArguments) -> None:
    """Tell DeepSpeed the batch of a step, which it was told before `args` had it, and that results hold the weights."""
    plugin: Any = args.deepspeed_plugin
    if plugin is None:
        return
    plugin.deepspeed_config |= {
        "train_micro_batch_size_per_gpu": args.per_device_train_batch_size,
        "gradient_accumulation_steps": 1,
        "train_batch_size": args.per_device_train_batch_size * args.world_size,
    }
    if plugin.zero_stage == 3:
        plugin.deepspeed_config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True


def check(trainer: Trainer, on_non_finite: StopOrSkip, *, quantized: bool, offload: bool) -> None:
    """Refuse what DeepSpeed would ignore or do wrongly; clip gradients as the arguments say where its file does not."""
    if trainer.args.deepspeed and not trainer.is_deepspeed_enabled:
        raise ConfigError(
            f"deepspeed: it works on GPUs with several processes, and this run is on {trainer.args.device.type}; leave "
            "deepspeed out"
        )
    if not trainer.is_deepspeed_enabled:
        return
    if on_non_finite == "skip":
        raise ConfigError(
            "on_non_finite: skip, but DeepSpeed has made the step before its gradients can be looked at; use stop"
        )
    plugin: Any = trainer.accelerator.state.deepspeed_plugin
    settings = plugin.deepspeed_config
    settings.setdefault("gradient_clipping", trainer.args.max_grad_norm)
    if different := getattr(plugin.hf_ds_config, "mismatches", None):
        named = "; ".join(line.removeprefix("- ds ").replace(" vs hf ", ", but the run's ") for line in different)
        raise ConfigError(f'deepspeed: {named}; give both the same value, or write "auto" in its file')
    if plugin.zero_stage != 3:
        return
    if quantized:
        raise ConfigError("deepspeed: the base is quantized, and ZeRO-3 would divide its packed weights; use ZeRO-2")
    if offload:
        raise ConfigError("teacher.offload: ZeRO-3 divides the teacher's weights as the student's; leave it out")
    if (settings["zero_optimization"].get("offload_param") or {}).get("device") == "nvme":
        raise ConfigError("deepspeed: offload_param to nvme keeps weights in files, which no teacher can read; use cpu")
