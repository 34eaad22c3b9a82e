"""Memory that is planned, against what an H200 had in use (benchmarks/plan.py)."""

import json
from pathlib import Path

import pytest

from opasd.config import RunConfig
from opasd.errors import CaptureError
from opasd.plan.memory import PLANES, RESERVED, Lengths, memory, microbatch
from opasd.plan.shapes import KNOWN, Shape
from opasd.plan.sharing import LINK, NETWORK, Sharing
from opasd.plan.speed import GPUS
from opasd.plan.table import table

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
ROWS = json.loads((RESULTS / "plan-h200.json").read_text())["rows"]
LONG = json.loads((RESULTS / "long_sequences-1.7b-h200.json").read_text())["rows"]
H200 = 141e9
LENGTHS = Lengths(prompt=256, solution=1024, response=1024)


def config(**changes) -> RunConfig:
    return RunConfig.model_validate({"model": {"dtype": "bfloat16"}} | changes)


def shape(size: str) -> Shape:
    return Shape.of(KNOWN[f"Qwen/Qwen3-{size.upper()}"])


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_peak_is_planned_within_15_per_cent(row):
    settings = config(
        train={"gradient_checkpointing": row.get("checkpointing", True)},
        tokens_per_microbatch=row.get("budget", 32_768),
        objective={"attention_weight": 0.5 if row.get("attention", True) else 0.0},
        rollout={"max_new_tokens": row["length"], "max_batch": 32},
    )
    planned = memory(settings, shape(row["model"]), Lengths(256, 1024, row["length"]), row.get("rollouts", 32), H200)
    held = sum(planned.held.values())
    phase = planned.rollout if row["part"] == "rollout" else planned.update
    assert held == pytest.approx(row["before"], rel=0.15)
    assert held + sum(phase.values()) == pytest.approx(row["peak"], rel=0.15)
    assert (held + sum(phase.values())) * RESERVED == pytest.approx(row["reserved"], rel=0.15)


def test_the_record_has_every_case_that_the_documentation_claims():
    updates = {(row["model"], row["checkpointing"], row["length"]) for row in ROWS if row["part"] == "update"}
    assert updates == {(m, c, n) for m in ("1.7b", "4b", "8b") for c in (True, False) for n in (1024, 4096)}


def test_all_weights_need_gradients_states_and_a_teacher():
    parts = memory(config(model={"adaptation": "full", "dtype": "bfloat16"}), shape("4b"), LENGTHS, 64, H200).held
    weights = parts["weights"]
    assert parts == {"weights": weights, "gradients and AdamW": 3 * weights, "teacher's copy": weights}
    live = config(model={"adaptation": "full", "dtype": "bfloat16"}, teacher={"update": "live"})
    assert "teacher's copy" not in memory(live, shape("4b"), LENGTHS, 64, H200).held


def test_what_waits_on_the_host_is_not_on_the_gpu():
    full = {"model": {"adaptation": "full", "dtype": "bfloat16"}}
    plain = memory(config(**full), shape("8b"), LENGTHS, 64, H200)
    moved = config(**full, teacher={"offload": True}, offload_activations=True)
    offloaded = memory(moved, shape("8b"), LENGTHS, 64, H200)
    copy, inputs = plain.held["teacher's copy"], plain.update["layer inputs"]
    assert plain.host == {}
    # While the teacher judges, the student's weights are there too.
    assert [*offloaded.host.values()] == [copy, copy, inputs]
    assert sum(plain.held.values()) - sum(offloaded.held.values()) == pytest.approx(copy)
    head = offloaded.update["teacher's output head"]
    assert sum(plain.update.values()) - sum(offloaded.update.values()) == pytest.approx(inputs - head)
    alone = config(train={"gradient_checkpointing": False}, offload_activations=True)
    assert memory(alone, shape("8b"), LENGTHS, 64, H200).host.keys() == {"activations"}


def test_four_bits_need_less_than_a_half():
    lora = memory(config(), shape("8b"), LENGTHS, 64, H200).held["weights"]
    qlora = memory(config(model={"adaptation": "qlora"}), shape("8b"), LENGTHS, 64, H200).held["weights"]
    assert 0.25 * lora < qlora < 0.5 * lora


def test_vllm_has_its_share_and_servers_have_none():
    vllm = config(rollout={"engine": "vllm", "vllm": {"memory_share": 0.4}})
    assert memory(vllm, shape("4b"), LENGTHS, 64, H200).rollout == {"vLLM": 0.4 * H200}
    servers = config(rollout={"engine": "vllm_server", "servers": {"urls": ["http://localhost:8000"]}})
    assert memory(servers, shape("4b"), LENGTHS, 64, H200).rollout == {}


def test_a_micro_batch_holds_whole_rollouts_or_is_full():
    settings = config(rollout={"max_new_tokens": 1024}, tokens_per_microbatch=8192)
    assert microbatch(settings, LENGTHS, 64) == 3 * LENGTHS.student
    uneven = config(rollout={"max_new_tokens": 4096}, tokens_per_microbatch=8192)
    assert microbatch(uneven, LENGTHS, 64) == 8192 * (256 + 4096) // (256 + 1024 + 4096)
    long = config(rollout={"max_new_tokens": 30_000}, tokens_per_microbatch=8192)
    assert microbatch(long, LENGTHS, 64) == 256 + 30_000


def attention(**options) -> dict[str, float]:
    settings = config(objective={"attention": options}, train={"gradient_checkpointing": True})
    return memory(settings, shape("4b"), LENGTHS, 64, H200).update


def test_captured_layers_are_kept_whole():
    """Each keeps its activations under checkpointing; those of the last are free before other layers need any."""
    one = attention(layers=1)
    assert one.keys() == {"layer inputs", "one layer's work", "losses"}
    kept = attention(layers=[3])["captured layers"]
    assert attention(layers=2)["captured layers"] == kept
    assert attention(layers="all")["captured layers"] == 35 * kept
    assert kept == pytest.approx(one["one layer's work"] / 1.53)
    with pytest.raises(CaptureError, match="but the model has 36 attention layers"):
        attention(layers=[36])


def test_each_head_has_rows_of_its_own():
    """Two bytes for each pair of a step and a key, once the tokens' chunks of logits are given back."""
    tokens, longest = microbatch(config(), LENGTHS, 64), LENGTHS.prompt + config().rollout.max_new_tokens
    pairs = tokens / longest * config().rollout.max_new_tokens * (256 + config().rollout.max_new_tokens / 2)
    assert attention(heads="each")["losses"] == pytest.approx(32 * 2 * pairs + PLANES)
    assert attention(layers=9, heads="each")["losses"] == pytest.approx(9 * 32 * 2 * pairs + PLANES)


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float16", 4), ("float32", 4)])
def test_rows_of_attention_grow_with_the_square_of_the_length(dtype, size):
    """The kernels keep them in bfloat16 or float32."""

    def losses(length: int) -> float:
        settings = config(model={"dtype": dtype}, rollout={"max_new_tokens": length})
        return memory(settings, shape("1.7b"), Lengths(256, 1024, length), 1, H200).update["losses"]

    assert losses(8192) == losses(4096)  # the token loss needs more
    assert losses(131_072) == pytest.approx(size * 131_072 * (256 + 65_536) + PLANES)


@pytest.mark.parametrize("row", LONG, ids=str)
def test_long_rollouts_are_planned_within_5_per_cent(row):
    settings = config(rollout={"max_new_tokens": row["length"]}, offload_activations=row["offload"])
    planned = memory(settings, shape("1.7b"), Lengths(256, 1024, row["length"]), 1, H200)
    assert sum(planned.held.values()) + sum(planned.update.values()) == pytest.approx(row["peak"], rel=0.05)


def test_fsdp2_divides_what_is_held_and_gathers_what_computes():
    full = config(model={"adaptation": "full", "dtype": "bfloat16"})
    alone, shared = (memory(full, shape("4b"), LENGTHS, 8, H200, Sharing("fsdp2", gpus)) for gpus in (1, 8))
    assert sum(shared.held.values()) == pytest.approx(sum(alone.held.values()) / 8)
    assert shared.rollout["weights of the others"] == pytest.approx(alone.held["weights"] * 7 / 8)
    assert shared.update["gathered weights"] == 2 * 2 * (shape("4b").layer + shape("4b").table)
    servers = full.model_copy(update={"rollout": full.rollout.model_copy(update={"engine": "vllm_server"})})
    assert memory(servers, shape("4b"), LENGTHS, 8, H200, Sharing("fsdp2", 8)).rollout == {}


def test_zero2_divides_gradients_and_optimizer_alone():
    full = config(model={"adaptation": "full", "dtype": "bfloat16"})
    alone, shared = (memory(full, shape("4b"), LENGTHS, 8, H200, Sharing(kind, 8)).held for kind in ("ddp", "zero2"))
    assert shared == alone | {"gradients and AdamW": alone["gradients and AdamW"] / 8}


def test_the_exchange_of_several_gpus_is_counted():
    """Full weights with DDP: gradients there and back. FSDP2: all weights three times a micro-batch and to sample."""
    full, weights = config(model={"adaptation": "full", "dtype": "bfloat16"}), shape("4b").parameters * 2
    arguments = full, shape("4b"), shape("4b").parameters, 2, 5
    assert Sharing("ddp", 1).seconds(*arguments) == 0
    assert Sharing("ddp", 8).seconds(*arguments) == pytest.approx(2 * weights * 7 / 8 / LINK)
    assert Sharing("fsdp2", 16).seconds(*arguments) == pytest.approx((2 + 16) * weights * 15 / 16 / NETWORK)


def test_the_documentation_has_the_table_of_many_gpus():
    docs = (Path(__file__).parents[2] / "docs/planning.md").read_text()
    assert table(GPUS["h200"], Lengths(256, 1024, 2048)) in docs
