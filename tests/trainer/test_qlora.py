"""A base in four bits: two processes train what one trains, and FSDP2 is refused."""

from types import SimpleNamespace

import pytest
import torch

from opasd.errors import ConfigError
from opasd.trainer.setup import check_sharding
from tests import nursery
from tests.training import rows

WORDS = (
    "-m", "opasd.cli", "train", "lab", "--steps", "2", "--model.adaptation", "qlora", "--rollout.max-new-tokens", "24",
    "--train.per-device-train-batch-size", "1", "--validation.every", "0", "--output-dir",
)  # fmt: skip


@pytest.mark.scale
def test_two_processes_equal_one(tmp_path):
    pytest.importorskip("bitsandbytes")
    for count in (1, 2):
        words = [*WORDS, str(tmp_path), "--name", str(count), "--train.gradient-accumulation-steps", str(4 // count)]
        for done in nursery.run_together(count, *words):
            assert done.returncode == 0, done.stderr[-3000:]
    first, second = (rows(tmp_path / str(count)) for count in (1, 2))
    assert len(first) == len(second) == 2
    for one, two in zip(first, second, strict=True):
        for name in ("loss", "grad_norm", "token/loss", "attention/divergence", "tokens/processed"):
            assert two[name] == pytest.approx(one[name], rel=1e-2)  # the products are in bfloat16


def test_four_bits_are_not_divided():
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=2))
    args = SimpleNamespace(fsdp=True, deepspeed=None, device=torch.device("cpu"))
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(state=state), args=args, is_deepspeed_enabled=False,
        student=SimpleNamespace(is_quantized=True),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="fsdp: the base is quantized, .* leave fsdp out"):
        check_sharding(trainer)
