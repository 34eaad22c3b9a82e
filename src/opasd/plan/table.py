"""Memory, step time and what limits it, for Qwen3 models on one to 64 GPUs: the table of docs/planning.md."""

from collections.abc import Iterator
from dataclasses import replace

from opasd.config import RunConfig
from opasd.plan.advice import Plan
from opasd.plan.memory import GIB, Lengths
from opasd.plan.shapes import KNOWN, Shape
from opasd.plan.sharing import Kind
from opasd.plan.speed import Gpu

MODELS = ("1.7B", "4B", "8B", "32B")
COUNTS = (1, 8, 16, 64)
PROBLEMS = 64
"""Problems of a step, on all GPUs together."""
WAYS: dict[str, tuple[Kind, ...]] = {"lora": ("ddp", "fsdp2"), "full": ("ddp", "fsdp2")}
"""Ways to share the weights, the first that fits is taken."""
HEADING = (
    "model", "trained", "GPUs", "way", "GPU memory, GiB", "rollout, s", "update, s", "step, s", "step ahead, s",
    "limited by",
)  # fmt: skip


def table(gpu: Gpu, lengths: Lengths) -> str:
    """Return the table in Markdown."""
    rows = [HEADING, ["---"] * len(HEADING), *_rows(gpu, lengths)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def plan_of(model: str, adaptation: str, gpus: int, gpu: Gpu, lengths: Lengths) -> Plan:
    """Return the plan of a step of 64 problems, shared in the first way that fits."""
    config = RunConfig.model_validate(
        {
            "model": {"name_or_path": f"Qwen/Qwen3-{model}", "adaptation": adaptation, "dtype": "bfloat16"},
            "train": {"gradient_accumulation_steps": PROBLEMS // gpus},
        }
    )
    shape = Shape.of(KNOWN[config.model.name_or_path])
    plans = [Plan(config, shape, lengths, gpu, gpus, kind) for kind in WAYS[adaptation] if gpus > 1 or kind == "ddp"]
    return next((plan for plan in plans if plan.fits), plans[-1])


def ahead(plan: Plan) -> float:
    """Return the time of a step if half of the GPUs sample the next step's rollouts while the others update."""
    train = plan.config.train.model_copy(
        update={"gradient_accumulation_steps": 2 * plan.config.train.gradient_accumulation_steps}
    )
    servers = {"engine": "vllm_server", "servers": {"urls": ["http://localhost:8000"]}}
    rollout = type(plan.config.rollout).model_validate(plan.config.rollout.model_dump() | servers)
    half = replace(
        plan, config=plan.config.model_copy(update={"train": train, "rollout": rollout}), gpus=plan.gpus // 2
    )
    return max(half.seconds.rollout, half.seconds.update)


def _rows(gpu: Gpu, lengths: Lengths) -> Iterator[list[str]]:
    for adaptation in WAYS:
        for model in MODELS:
            for gpus in COUNTS:
                plan = plan_of(model, adaptation, gpus, gpu, lengths)
                yield [model, adaptation, str(gpus), plan.kind if gpus > 1 else "one GPU", *_figures(plan)]


def _figures(plan: Plan) -> list[str]:
    memory, seconds = plan.memory, plan.seconds
    needed = f"{memory.needed / GIB:.0f}"
    if not plan.fits:
        return [needed, "", "", "", "", f"memory: {plan.gpu.memory / GIB:.0f} GiB are there"]
    limit = f"sampling, {seconds.rollout / seconds.step:.0%} of a step"
    if seconds.update > seconds.rollout:
        limit = "exchange" if seconds.exchange >= seconds.update else "update"
    sooner = f"{ahead(plan):,.0f}" if plan.gpus > 1 else ""
    return [needed, *(f"{value:,.0f}" for value in (seconds.rollout, seconds.update, seconds.step)), sooner, limit]
