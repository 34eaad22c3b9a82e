"""One optimizer step of 64 rollouts on a GPU: teacher, student, both losses, backward, AdamW.

    python benchmarks/update_step.py --models 1.7b,4b,8b --cases 1300x64,4096x64 --json results/update_step.json

Random weights in Qwen3's shapes, LoRA r = 64, the trainer's own step. Useful operations are those of one forward of
each role and the student's gradient to its activations and adapters; what checkpointing repeats is not counted. A speed
is printed only if the gradient after an optimizer step is no further from that in float32 than a plain one in bfloat16
is: one rollout at a time, padded, the chunked losses, PEFT's own layers and the model's own norms.
"""

import argparse
import dataclasses
import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from measure import gpu_heading, save
from peft import LoraConfig
from peft.tuners.lora.layer import Linear
from torch import nn
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, TrainingArguments
from transformers.models.qwen3 import modeling_qwen3

from opasd.config import OPASDConfig
from opasd.data.problems import Problem
from opasd.lab import model_path
from opasd.model.lora import FusedLinear
from opasd.model.unwrap import unwrap
from opasd.prompts.pairs import PromptPair
from opasd.prompts.rollout import Rollout
from opasd.rollout.transformers.fusing import is_ligers
from opasd.trainer.trainer import OPASDTrainer

PEAK = 790e12
"""Operations a second that the goal is a share of: what dense bf16 products reach on an H200."""
ROTARY = modeling_qwen3.apply_rotary_pos_emb
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
class Setup:
    """A trainer."""

    model: str
    budget: int
    layout: str
    checkpointing: bool
    liger: bool


@dataclasses.dataclass(frozen=True)
class Case:
    """What a trainer is given."""

    length: int
    rollouts: int
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


def make_trainer(setup: Setup, folder: str, device: str, positions: int = 40_960) -> OPASDTrainer:
    torch.manual_seed(0)
    vocabulary = 1024 if setup.model == "tiny" else 151_936
    config = Qwen3Config(vocab_size=vocabulary, max_position_embeddings=positions, **SHAPES[setup.model])
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        torch.set_default_dtype(dtype)
        model = Qwen3ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    if setup.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    method = OPASDConfig.model_validate(
        {
            "tokens_per_microbatch": setup.budget,
            "layout": setup.layout,
            "validation": {"every": 0},
        }
    )
    arguments = TrainingArguments(
        output_dir=folder, gradient_checkpointing=setup.checkpointing, use_liger_kernel=setup.liger, report_to=[],
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
    backward(trainer, rollouts)
    assert isinstance(trainer.optimizer, torch.optim.Optimizer)
    trainer.optimizer.step()
    for layer in trainer.lora_layers:
        layer.forget_rounded()
    trainer.optimizer.zero_grad(set_to_none=True)


def backward(trainer: OPASDTrainer, rollouts: list[Rollout]) -> None:
    """A training step on ready-made rollouts."""
    trainer.roll_out = lambda pairs: rollouts
    trainer.training_step(trainer.student, {"pairs": [rollout.pair for rollout in rollouts]})


def gradient(trainer: OPASDTrainer, rollouts: list[Rollout]) -> torch.Tensor:
    trainer.student.zero_grad(set_to_none=True)
    backward(trainer, rollouts)
    found = torch.cat([p.grad.float().flatten() for p in trainer.student.parameters() if p.grad is not None])
    trainer.student.zero_grad(set_to_none=True)
    return found


def change(trainer: OPASDTrainer, settings: dict[str, Any]) -> None:
    """Give a trainer another configuration."""

    def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        return old | {k: merge(old[k], v) if isinstance(v, dict) else v for k, v in new.items()}

    trainer.config = OPASDConfig.model_validate(merge(trainer.config.model_dump(), settings))
    trainer._scoring = None


def errors(trainer: OPASDTrainer, seed: int) -> tuple[float, float]:
    """How far this trainer's gradient and a plain one's are from the plain one's in float32, relative to its size.

    After a step, whose change of the weights must have reached everything that was made of them."""
    model = trainer.student
    rollouts = make_rollouts(5, 200, unwrap(model).config.vocab_size, seed + 1)
    step(trainer, rollouts[:2])
    fast = gradient(trainer, rollouts)
    before = trainer.config
    plain = {"impl": "chunked"}
    change(trainer, {"layout": "padded", "tokens_per_microbatch": 1, "objective": {"token": plain, "attention": plain}})
    layers: list[Any] = [module for module in model.modules() if type(module) is FusedLinear]
    for layer in layers:
        layer.__class__ = Linear
    ligers = [(m, m.__dict__.pop("forward")) for m in model.modules() if is_ligers(m.forward)]
    rotary, modeling_qwen3.apply_rotary_pos_emb = modeling_qwen3.apply_rotary_pos_emb, ROTARY
    slow = gradient(trainer, rollouts)
    frozen = [(parameter, parameter.dtype) for parameter in model.parameters() if not parameter.requires_grad]
    for parameter, _ in frozen:
        parameter.data = parameter.data.float()
    trainer._scoring = None
    exact = gradient(trainer, rollouts)
    for parameter, dtype in frozen:
        parameter.data = parameter.data.to(dtype)
    for layer in layers:
        layer.__class__ = FusedLinear
    for module, forward in ligers:
        module.forward = forward
    modeling_qwen3.apply_rotary_pos_emb = rotary
    trainer.config, trainer._scoring = before, None
    return float((fast - exact).norm() / exact.norm()), float((slow - exact).norm() / exact.norm())


def run(setup: Setup, cases: list[Case], device: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One trainer, all cases; those that differ in the attention loss alone take turns."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(setup, folder, device)
        error, plain_error = errors(trainer, options.seed)
        if not error <= max(1.1 * plain_error, 1e-3):
            yield {"error": error, "plain_error": plain_error}
            return
        weights = sum(p.numel() * p.element_size() for p in trainer.student.parameters())
        vocabulary = unwrap(trainer.student).config.vocab_size
        for (length, count), group in itertools.groupby(cases, lambda case: (case.length, case.rollouts)):
            rollouts = make_rollouts(count, length, vocabulary, options.seed)
            pair = list(group)
            seconds: dict[Case, list[float]] = {case: [] for case in pair}
            peaks = dict.fromkeys(pair, 0)
            states = {}
            for case in pair:  # warm
                attend(trainer, case)
                step(trainer, rollouts[: max(2, count // 16)])
                states[case] = trainer.config, trainer._scoring
            begin = _now(device)
            for turn in range(options.repeats):
                if turn and _now(device) - begin > options.seconds * len(pair):
                    break
                for case in pair:
                    trainer.config, trainer._scoring = states[case]
                    spent, peak = timed_step(trainer, rollouts, device)
                    seconds[case].append(spent)
                    peaks[case] = max(peak, peaks[case])
            if options.profile and pair[0] == cases[0]:
                trace(trainer, rollouts[:16], f"{setup} {pair[-1]}", device, options.profile)
            processed = sum(len(rollout.student_ids) + len(rollout.teacher_ids) for rollout in rollouts)
            operations = useful_operations(trainer, rollouts)
            for case in pair:
                yield (
                    dataclasses.asdict(setup)
                    | dataclasses.asdict(case)
                    | {
                        "error": error,
                        "seconds": statistics.median(seconds[case]),
                        "repeats": seconds[case],
                        "operations": operations,
                        "processed": processed,
                        "peak_bytes": peaks[case],
                        "weight_bytes": weights,
                    }
                )


def attend(trainer: OPASDTrainer, case: Case) -> None:
    change(trainer, {"objective": {"attention_weight": 0.5 if case.attention else 0.0}})
    trainer.check()


def timed_step(trainer: OPASDTrainer, rollouts: list[Rollout], device: str) -> tuple[float, int]:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = _now(device)
    step(trainer, rollouts)
    return _now(device) - begin, torch.cuda.max_memory_allocated() if device == "cuda" else 0


def trace(trainer: OPASDTrainer, rollouts: list[Rollout], title: str, device: str, path: str) -> None:
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=activities) as found:
        step(trainer, rollouts)
        _now(device)
    key = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    with open(path, "a") as file:
        file.write(f"{title}\n{found.key_averages().table(sort_by=key, row_limit=45, max_name_column_width=90)}\n")


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def sizes(text: str) -> list[tuple[int, int]]:
    """Lengths and rollouts of `--cases`; argparse makes a message of a ValueError."""
    found = [(int(length), int(rollouts)) for length, rollouts in (case.split("x") for case in text.split(","))]
    if min(map(min, found)) < 1:
        raise ValueError
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="1.7b,4b,8b")
    parser.add_argument(
        "--cases", type=sizes, default="1300x64,4096x64", help="response length x rollouts of a step, such as 1300x64"
    )
    parser.add_argument("--budgets", default="32768", help="tokens of a micro-batch")
    parser.add_argument("--layouts", default="auto")
    parser.add_argument("--checkpointing", default="on", choices=["on", "off", "both"])
    parser.add_argument("--liger", default="off", choices=["on", "off", "both"])
    parser.add_argument("--attention", default="both", choices=["on", "off", "both"])
    parser.add_argument("--repeats", type=int, default=5, help="at most")
    parser.add_argument("--seconds", type=float, default=15, help="of measuring a case, after which none is repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", help="append the profile of a step of 16 rollouts of the first case to this file")
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
    cases = [
        Case(length, rollouts, attention)
        for length, rollouts in options.cases
        for attention in switches[options.attention]
    ]
    rows: list[dict[str, Any]] = []
    own = dict(modeling_qwen3.__dict__)
    for setting in itertools.product(
        options.models.split(","),
        map(int, options.budgets.split(",")),
        options.layouts.split(","),
        switches[options.checkpointing],
        switches[options.liger],
    ):
        without = None
        for row in run(Setup(*setting), cases, device, options):
            rows.append(row)
            without = _print(row, without)
            save(options.json, found, rows)
        gc.collect()  # a trainer and its callbacks know one another
        if device == "cuda":
            torch.cuda.empty_cache()
        modeling_qwen3.__dict__.update(own)  # liger-kernel changes what later models are made of
    paper = ", ".join(f"{value} {name}" for name, value in PAPER.items())
    print(f"\nms/token: of wall time for each token either role read. The paper, Qwen3-4B on 4 H100: {paper}.")


def _print(row: dict[str, Any], without: float | None) -> float | None:
    if "seconds" not in row:
        print(
            f"no speed: the gradient is off by {row['error']:.1e}, a plain one by {row['plain_error']:.1e}", flush=True
        )
        return without
    speed, gib = row["operations"] / row["seconds"], 2**30
    ratio = f"{row['seconds'] / without:7.3f}" if without and row["attention"] else f"{'':7s}"
    print(
        f"{row['model']:6s}{row['length']:7d}{row['rollouts']:9d}{row['budget']:8d} {row['layout']:7s}"
        f"{row['checkpointing']!s:>8s}{row['liger']!s:>6s}{row['attention']!s:>10s}"
        f"{row['seconds']:9.3f}{ratio}{speed / 1e12:9.1f}{speed / PEAK:7.1%}"
        f"{1e3 * row['seconds'] / row['processed']:10.4f}{row['peak_bytes'] / gib:10.1f}"
        f"{(row['peak_bytes'] - row['weight_bytes']) / gib:10.1f}",
        flush=True,
    )
    return without if row["attention"] else row["seconds"]


if __name__ == "__main__":
    main()
