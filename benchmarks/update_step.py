"""One optimizer step of 64 rollouts on a GPU: teacher, student, both losses, backward, AdamW.

    python benchmarks/update_step.py --models 1.7b,4b,8b --lengths 1300,4096 --json results/update_step.json

Random weights in Qwen3's shapes, LoRA r = 64, the trainer's own step. Useful operations are those of one forward of
each role and the student's gradient to its activations and adapters; what checkpointing repeats is not counted. A speed
is printed only if the gradient after an optimizer step agrees with that of one rollout at a time, padded, with the
chunked losses and PEFT's own layers.
"""

import argparse
import dataclasses
import gc
import itertools
import statistics
import tempfile
import time
from typing import Any

import torch
from measure import gpu_heading, save
from peft import LoraConfig
from peft.tuners.lora.layer import Linear
from torch import nn
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, TrainingArguments

from opasd.config import OPASDConfig
from opasd.data import Problem
from opasd.lab.model import model_path
from opasd.lora import FusedLinear
from opasd.models import unwrap
from opasd.prompts import PromptPair
from opasd.rollout import Rollout
from opasd.trainer import OPASDTrainer

PEAK = 790e12
"""Operations a second that the goal is a share of: what dense bf16 products reach on an H200."""
PAPER = {"token loss only": 0.07, "with attention loss": 0.12}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
    "1.7b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
    "8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """What is run."""

    model: str
    length: int
    rollouts: int
    budget: int
    layout: str
    checkpointing: bool
    liger: bool
    attention: bool


def make_rollouts(count: int, length: int, vocabulary: int, seed: int, *, spread: float = 0.5) -> list[Rollout]:
    """Prompts of 256 tokens, solutions of 1,024, responses of log-normal lengths around `length`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(number: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, vocabulary, (number,), generator=generator).tolist())

    sizes = length * torch.exp(spread * torch.randn(count, generator=generator) - spread**2 / 2)
    found = []
    for number, size in enumerate(sizes.clamp(16, 8 * length).int().tolist()):
        head, question, solution, tail = draw(8), draw(240), draw(1024), draw(8)
        pair = PromptPair(
            problem=Problem("question", "solution", None, f"p{number}"),
            student_ids=head + question + tail,
            teacher_ids=head + question + solution + tail,
            student_question=range(8, 248),
            teacher_question=range(8, 248),
            reference=range(248, 248 + 1024),
        )
        found.append(Rollout(pair, draw(size), str(number)))
    return found


def make_trainer(case: Case, folder: str, device: str) -> OPASDTrainer:
    torch.manual_seed(0)
    vocabulary = 1024 if case.model == "tiny" else 151_936
    config = Qwen3Config(vocab_size=vocabulary, max_position_embeddings=40_960, **SHAPES[case.model])
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        torch.set_default_dtype(dtype)
        model = Qwen3ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    if case.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    method = OPASDConfig.model_validate(
        {
            "objective": {"attention_weight": 0.5 if case.attention else 0.0},
            "tokens_per_microbatch": case.budget,
            "layout": case.layout,
            "validation": {"every": 0},
        }
    )
    arguments = TrainingArguments(
        output_dir=folder, gradient_checkpointing=case.checkpointing, use_liger_kernel=case.liger, report_to=[],
        gradient_checkpointing_kwargs={"use_reentrant": False}, use_cpu=device == "cpu", max_steps=1,
        learning_rate=5e-3,
    )  # fmt: skip
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    trainer = OPASDTrainer(
        model=model, args=arguments, config=method, train_dataset=[Problem("1 + 1", "2", "2", "p")],
        processing_class=AutoTokenizer.from_pretrained(model_path()),
        peft_config=LoraConfig(r=64, lora_alpha=128, target_modules=targets),
    )  # fmt: skip
    trainer.create_optimizer()
    for name, parameter in trainer.student.named_parameters():
        if "lora_B" in name:  # as after some steps: at zero no gradient would reach the other factor
            nn.init.normal_(parameter, std=0.01)
    return trainer


def useful_operations(trainer: OPASDTrainer, rollouts: list[Rollout]) -> float:
    """Of one step, without what is computed twice."""
    model, config = trainer.student, unwrap(trainer.student).config
    adapters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    head = config.vocab_size * config.hidden_size
    body = sum(p.numel() for p in model.parameters()) - adapters - head * (1 if config.tie_word_embeddings else 2)
    pairs = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    total = 0.0
    for rollout in rollouts:
        mine, theirs = len(rollout.student_ids), len(rollout.teacher_ids)
        total += 2 * body * (2 * mine + theirs) + 6 * adapters * mine
        total += pairs * (3 * mine * (mine + 1) / 2 + theirs * (theirs + 1) / 2)
        total += 3 * 2 * head * rollout.num_tokens
    return total


def step(trainer: OPASDTrainer, rollouts: list[Rollout]) -> None:
    trainer.training_step(trainer.student, {"rollouts": rollouts, "num_rollouts": float(len(rollouts))})
    assert isinstance(trainer.optimizer, torch.optim.Optimizer)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)


def gradient(trainer: OPASDTrainer, rollouts: list[Rollout]) -> torch.Tensor:
    trainer.student.zero_grad(set_to_none=True)
    trainer.training_step(trainer.student, {"rollouts": rollouts, "num_rollouts": float(len(rollouts))})
    found = torch.cat([p.grad.float().flatten() for p in trainer.student.parameters() if p.grad is not None])
    trainer.student.zero_grad(set_to_none=True)
    return found


def disagreement(trainer: OPASDTrainer, seed: int) -> float:
    """How far the gradient is from that of padded rollouts, chunked losses and PEFT's layers, relative to its size.

    After a step, whose change of the weights must have reached everything that was made of them."""
    vocabulary = unwrap(trainer.student).config.vocab_size
    rollouts = make_rollouts(5, 200, vocabulary, seed + 1)
    step(trainer, rollouts[:2])
    fast = gradient(trainer, rollouts)
    before = trainer.config, trainer._scoring
    plain = trainer.config.model_dump()
    plain |= {"layout": "padded", "tokens_per_microbatch": 1}
    plain["objective"]["token"]["impl"] = plain["objective"]["attention"]["impl"] = "chunked"
    trainer.config, trainer._scoring = OPASDConfig.model_validate(plain), None
    layers: list[Any] = [module for module in trainer.student.modules() if type(module) is FusedLinear]
    for layer in layers:
        layer.__class__ = Linear
    slow = gradient(trainer, rollouts)
    for layer in layers:
        layer.__class__ = FusedLinear
    trainer.config, trainer._scoring = before
    return float((fast - slow).norm() / slow.norm())


def run(case: Case, device: str, repeats: int, seed: int, traced: str | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(case, folder, device)
        error = disagreement(trainer, seed)
        if not error <= (0.1 if device == "cuda" else 1e-3):  # both are in bfloat16 there, through all layers
            return {"error": error}
        rollouts = make_rollouts(case.rollouts, case.length, unwrap(trainer.student).config.vocab_size, seed)
        weights = sum(p.numel() * p.element_size() for p in trainer.student.parameters())
        step(trainer, rollouts[: max(2, case.rollouts // 8)])
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = []
        for _ in range(repeats):
            begin = _now(device)
            step(trainer, rollouts)
            seconds.append(_now(device) - begin)
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        if traced:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
            with profile(activities=activities) as found:
                step(trainer, rollouts[:8])
            key = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
            with open(traced, "a") as file:
                file.write(f"{case}\n{found.key_averages().table(sort_by=key, row_limit=40)}\n")
        spent = statistics.median(seconds)
        processed = sum(len(rollout.student_ids) + len(rollout.teacher_ids) for rollout in rollouts)
        return {
            "error": error,
            "seconds": spent,
            "operations": useful_operations(trainer, rollouts),
            "processed": processed,
            "ms_per_processed_token": 1e3 * spent / processed,
            "peak_bytes": peak,
            "weight_bytes": weights,
        }


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="1.7b,4b,8b")
    parser.add_argument("--lengths", default="1300,4096")
    parser.add_argument("--rollouts", default="64", help="rollouts of a step; several to see the growth")
    parser.add_argument("--budgets", default="16384", help="tokens of a micro-batch")
    parser.add_argument("--layouts", default="auto")
    parser.add_argument("--checkpointing", default="on", choices=["on", "off", "both"])
    parser.add_argument("--liger", default="off", choices=["on", "off", "both"])
    parser.add_argument("--attention", default="both", choices=["on", "off", "both"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", help="append the profile of a step of eight rollouts to this file")
    parser.add_argument("--json", help="write the raw figures here")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = gpu_heading("One optimizer step", options.seed)
    switches = {"on": [True], "off": [False], "both": [False, True]}
    print(
        f"{'model':6s}{'length':>7s}{'rollouts':>9s}{'budget':>8s} {'layout':7s}{'checkp.':>8s}{'liger':>6s}"
        f"{'attention':>10s}"
        f"{'seconds':>9s}{'ratio':>7s}{'TFLOP/s':>9s}{'share':>7s}{'ms/token':>10s}{'peak GiB':>10s}{'- weights':>10s}"
    )
    rows = []
    without = None
    for setting in itertools.product(
        options.models.split(","),
        map(int, options.lengths.split(",")),
        map(int, options.rollouts.split(",")),
        map(int, options.budgets.split(",")),
        options.layouts.split(","),
        switches[options.checkpointing],
        switches[options.liger],
        switches[options.attention],
    ):
        case = Case(*setting)
        result = run(case, device, options.repeats, options.seed, options.profile)
        rows.append(dataclasses.asdict(case) | result)
        without = _print(case, result, without)
        save(options.json, found, rows)
        gc.collect()  # a trainer and its callbacks know one another
        if device == "cuda":
            torch.cuda.empty_cache()
    paper = ", ".join(f"{value} {name}" for name, value in PAPER.items())
    print(f"\nms/token: of wall time for each token either role read. The paper, Qwen3-4B on 4 H100: {paper}.")


def _print(case: Case, result: dict[str, Any], without: float | None) -> float | None:
    left = (
        f"{case.model:6s}{case.length:7d}{case.rollouts:9d}{case.budget:8d} {case.layout:7s}"
        f"{case.checkpointing!s:>8s}{case.liger!s:>6s}{case.attention!s:>10s}"
    )
    if "seconds" not in result:
        print(f"{left}  no speed: the gradient is off by {result['error']:.1e}", flush=True)
        return without
    speed = result["operations"] / result["seconds"]
    ratio = f"{result['seconds'] / without:7.3f}" if without and case.attention else f"{'':7s}"
    print(
        f"{left}{result['seconds']:9.3f}{ratio}{speed / 1e12:9.1f}{speed / PEAK:7.1%}"
        f"{result['ms_per_processed_token']:10.4f}{result['peak_bytes'] / 2**30:10.1f}"
        f"{(result['peak_bytes'] - result['weight_bytes']) / 2**30:10.1f}",
        flush=True,
    )
    return without if case.attention else result["seconds"]


if __name__ == "__main__":
    main()
