"""The memory of one GPU during a run, by part.

    held       weights, adapters with gradients and optimizer, a teacher's copy
    rollout    the cache of keys and values, and the reading of prompts; vLLM has a share of its own
    update     what a micro-batch keeps for its backward pass, and the work on one layer and on the losses

Rollouts and update take turns, so the peak is what is held plus the larger of the two. The constants were measured on
an H200 (`benchmarks/plan.py`; docs/planning.md compares all cases).
"""

from dataclasses import dataclass, field, replace

from opasd.choices import layer_numbers
from opasd.config import RunConfig
from opasd.config.method import shown_fields
from opasd.plan.shapes import Shape
from opasd.plan.sharing import ALONE, Sharing

GIB = 2**30
ADAM = 2
"""Numbers that AdamW keeps for each weight."""
QUANTISED = 0.56
"""Bytes of a weight in four bits, with its share of the scales."""
PREFILL_TOKENS = 8192
"""Prompt tokens that are read at a time, as far as they weigh."""
CACHE_SHARE = 0.8
"""Share of the free memory that the transformers engine gives to its cache."""
LOSS_WORKSPACE = 1.6e9
"""Bytes of the token loss's chunks of logits, when nothing is recomputed."""
ATTENTION_WORKSPACE = 0.75e9
"""The same while one layer is recomputed."""
PLANES = 2 * 40 * 2**20
"""Bytes of the averaged rows of both roles that the attention loss compares at a time (losses/fused)."""
LAYER_WORK = 1.38
"""Memory of one layer's backward pass, in units of what its forward pass keeps."""
LAYER_WORK_CAPTURED = 1.53
"""The same for a layer whose queries and keys are captured."""
RESERVED = 1.05
"""What PyTorch's allocator reserves, in units of what is in use at the peak."""
CONTEXT = 0.6e9
"""Bytes of the CUDA context and the libraries."""


POINTERS = 64
"""Tokens of a reference without a solution, with the words around it."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of a typical problem and rollout."""

    prompt: int
    solution: int
    response: int

    @classmethod
    def of(cls, config: RunConfig, prompt: int, solution: int, response: int | None = None) -> "Lengths":
        """Return these lengths; a rollout is assumed to take a quarter of its limit, and never takes more than it."""
        limit = config.rollout.max_new_tokens
        return cls(prompt, solution, max(1, limit // 4) if response is None else min(response, limit))

    @property
    def student(self) -> int:
        return self.prompt + self.response

    @property
    def teacher(self) -> int:
        return self.prompt + self.solution + self.response


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU, by part."""

    held: dict[str, float]
    rollout: dict[str, float]
    update: dict[str, float]
    host: dict[str, float] = field(default_factory=dict)
    """What waits in the host's memory instead, for each GPU."""

    @property
    def phase(self) -> str:
        """The phase that needs the most."""
        return "rollout" if sum(self.rollout.values()) > sum(self.update.values()) else "update"

    @property
    def peak(self) -> float:
        """Bytes in use at the peak, as PyTorch's allocator counts them."""
        return sum(self.held.values()) + max(sum(self.rollout.values()), sum(self.update.values()))

    @property
    def needed(self) -> float:
        """Bytes that the GPU must have free."""
        return self.peak * RESERVED + CONTEXT


def bytes_per_weight(config: RunConfig) -> float:
    if config.model.adaptation == "qlora":
        return QUANTISED
    return 4 if config.model.dtype == "float32" else 2


def held(config: RunConfig, shape: Shape) -> dict[str, float]:
    """Return what stays in memory between the phases."""
    size, model = bytes_per_weight(config), config.model
    parts = {"weights": shape.parameters * size}
    if model.adaptation == "full":
        parts["gradients and AdamW"] = shape.parameters * size * (1 + ADAM)
    else:
        if model.adaptation == "qlora":  # embeddings and output head are not quantised
            parts["weights"] += shape.table * (1 if shape.tied else 2) * (2 - QUANTISED)
        parts["adapters, gradients and AdamW"] = _trained(config, shape) * (2 + ADAM)
    return parts if config.teacher.offload else parts | teachers_copy(config, shape)


def _trained(config: RunConfig, shape: Shape) -> float:
    """Return the bytes of the trained weights."""
    if config.model.adaptation == "full":
        return shape.parameters * bytes_per_weight(config)
    return shape.adapters(config.model.lora_r, config.model.lora_target_modules) * 4


def teachers_copy(config: RunConfig, shape: Shape) -> dict[str, float]:
    """Return the teacher's own weights, if it has any; an average is kept in float32."""
    moving = config.teacher.update in ("ema", "snapshot")
    if not moving and (config.teacher.update != "frozen" or config.model.adaptation != "full"):
        return {}
    trained = _trained(config, shape)
    wide = 4 / bytes_per_weight(config) if config.model.adaptation == "full" and config.teacher.update == "ema" else 1
    return {"teacher's copy": trained * wide}


def rows(
    config: RunConfig, shape: Shape, lengths: Lengths, rollouts: int, gpu_bytes: float, sharing: Sharing = ALONE
) -> int:
    """Return how many sequences are sampled at a time; 0 if not one fits.

    The transformers engine takes fewer than `rollout.max_batch` if its cache would not fit.
    """
    wanted = min(config.rollout.max_batch, rollouts)
    if config.rollout.engine != "transformers":
        return wanted
    row = (lengths.prompt + config.rollout.max_new_tokens) * shape.cache()
    parts = held(config, shape)
    taken = sum(sharing.held(parts).values()) + sum(sharing.rollout(config, parts).values())
    free = (gpu_bytes - CONTEXT) / RESERVED - taken
    return max(0, min(wanted, int((free - _prefill(shape, lengths, wanted)) * CACHE_SHARE / row)))


def rollout(
    config: RunConfig, shape: Shape, lengths: Lengths, rollouts: int, gpu_bytes: float, sharing: Sharing = ALONE
) -> dict[str, float]:
    """Return what sampling needs; a process samples `rollouts` in a step."""
    settings = config.rollout
    if settings.engine == "vllm":
        return {"vLLM": settings.vllm.memory_share * gpu_bytes}
    if settings.engine != "transformers":
        return {}
    count = max(1, rows(config, shape, lengths, rollouts, gpu_bytes, sharing))
    length = lengths.prompt + settings.max_new_tokens
    return sharing.rollout(config, held(config, shape)) | {
        f"cache of keys and values, {count} rollouts": count * length * shape.cache(),
        "reading prompts": _prefill(shape, lengths, count),
    }


def _prefill(shape: Shape, lengths: Lengths, count: int) -> float:
    tokens = min(PREFILL_TOKENS, count * lengths.prompt)
    return tokens * 2 * (3 * shape.wide + shape.queries + 2 * shape.keys + 2 * shape.hidden)


def kept_by_layer(shape: Shape) -> int:
    """Return the bytes that one layer keeps of a token for its backward pass: its inputs, norms, products, adapters."""
    numbers = 4 * shape.hidden + 3 * shape.queries + 3 * shape.keys + shape.matrices * shape.wide + 512
    return 2 * numbers


def longest_of(config: RunConfig, lengths: Lengths) -> Lengths:
    """Return the lengths of a rollout that reaches the limit."""
    return replace(lengths, response=max(lengths.response, config.rollout.max_new_tokens))


def microbatch(config: RunConfig, lengths: Lengths, rollouts: int) -> int:
    """Return the student's tokens of the largest micro-batch.

    Rollouts that all reach the limit fill it in whole numbers. Else some micro-batch is full, of long rollouts, and one
    rollout that reaches the limit may be longer than that.
    """
    longest, budget = longest_of(config, lengths), config.tokens_per_microbatch
    if lengths.response >= longest.response:
        return max(1, min(rollouts, budget // lengths.teacher)) * lengths.student
    full = min(budget, rollouts * lengths.teacher) * longest.student // longest.teacher
    return max(full, longest.student)


def captured(config: RunConfig, shape: Shape) -> list[int]:
    """Return the layers whose attention is compared; every layer counts as one of attention."""
    attention = config.objective.attention
    return layer_numbers(attention.layers, shape.layers) if config.objective.attends else []


def teacher_reads(config: RunConfig, lengths: Lengths) -> list[int]:
    """Return the tokens of each sequence in which the teacher reads a rollout: one, or one for each loss."""
    own = config.prompts.attention_reference
    if own is None or not config.objective.attends:
        return [lengths.teacher]
    reference = lengths.solution if "solution" in shown_fields(own) else POINTERS
    reads = [lengths.student + reference]
    return reads if config.objective.token_weight == 0 else [lengths.teacher, *reads]


def attention_pairs(lengths: Lengths) -> float:
    """Return the pairs of a step and a key it sees, of one rollout."""
    return lengths.response * (lengths.prompt + lengths.response / 2)


def _attention_rows(config: RunConfig, shape: Shape, lengths: Lengths, tokens: int) -> float:
    """Return what the attention loss keeps from forward to backward: a number for each pair of a step and a key it
    sees, of each layer and, with `heads: each`, of each head. It grows with the square of the length."""
    layers, heads = len(captured(config, shape)), shape.heads if config.objective.attention.heads == "each" else 1
    if not layers:
        return 0.0
    train, dtype = config.train, config.model.dtype
    number = 4 if train.fp16 or dtype == "float16" or (dtype == "float32" and not train.bf16) else 2
    return number * layers * heads * tokens / lengths.student * attention_pairs(lengths) + PLANES


def _more_layers(config: RunConfig, shape: Shape, lengths: Lengths, tokens: int) -> dict[str, float]:
    """Return the teacher's queries and keys of the compared layers but one, whose are part of a layer's work."""
    more = len(captured(config, shape)) - 1
    teacher = tokens / lengths.student * lengths.teacher * (shape.queries + shape.keys)
    return {"teacher's queries and keys": 2 * more * teacher} if more > 0 else {}


def update(config: RunConfig, shape: Shape, lengths: Lengths, rollouts: int) -> dict[str, float]:
    """Return what one micro-batch needs in its forward and backward passes.

    The losses take turns: the token loss has given its chunks back when the rows of attention are made.
    """
    tokens, longest = microbatch(config, lengths, rollouts), longest_of(config, lengths)
    layer = kept_by_layer(shape) * tokens
    logits = 8 * tokens * shape.vocabulary  # a small vocabulary needs less than the losses' fixed workspace
    attention = captured(config, shape)
    wide = 2 if config.model.dtype == "float32" and not (config.train.bf16 or config.train.fp16) else 1
    more = {name: wide * size for name, size in _more_layers(config, shape, longest, tokens).items()}
    kept_rows = _attention_rows(config, shape, longest, tokens)
    if not config.train.gradient_checkpointing:
        losses = max(min(wide * LOSS_WORKSPACE, logits), kept_rows)
        return {"activations": wide * shape.layers * layer, "losses": losses} | more
    work = {"one layer's work": wide * layer * (LAYER_WORK_CAPTURED if attention else LAYER_WORK)}
    if attention:
        work["losses"] = max(min(wide * ATTENTION_WORKSPACE, logits), kept_rows)
        # A captured layer is not recomputed. What the last one keeps is free again before other layers need memory.
        kept = len(attention) - (shape.layers - 1 in attention)
        work |= ({"captured layers": wide * kept * layer} if kept else {}) | more
    return {"layer inputs": wide * shape.layers * tokens * shape.hidden * 2} | work


def memory(
    config: RunConfig, shape: Shape, lengths: Lengths, rollouts: int, gpu_bytes: float, sharing: Sharing = ALONE
) -> Memory:
    """Return the memory of one process that samples `rollouts` in a step."""
    work, host = update(config, shape, lengths, rollouts), dict[str, float]()
    if config.teacher.offload and (host := teachers_copy(config, shape)):
        host["student's weights meanwhile"] = _trained(config, shape)
        if config.model.adaptation == "full":
            work["teacher's output head"] = shape.table * bytes_per_weight(config)
    if config.offload_activations:
        host |= {name: work.pop(name) for name in ("layer inputs", "activations") if name in work}
        work.setdefault("one layer's work", LAYER_WORK * host.get("activations", 0) / shape.layers)
    return Memory(
        sharing.held(held(config, shape)),
        rollout(config, shape, lengths, rollouts, gpu_bytes, sharing),
        work | sharing.update(shape, bytes_per_weight(config)),
        host,
    )
