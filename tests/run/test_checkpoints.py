"""Whether a checkpoint is whole: files that are missing, or cut anywhere."""

import json
from contextlib import nullcontext, suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from opasd.errors import ConfigError
from opasd.run.checkpoints import check_checkpoint, check_way

NEEDED = ("model.safetensors*", "optimizer.pt")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "checkpoint-3"
    folder.mkdir()
    for part in (1, 2):
        save_file({f"w{part}": torch.ones(7)}, folder / f"model-{part}.safetensors")
    index = {"weight_map": {"w1": "model-1.safetensors", "w2": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save({"state": torch.ones(5)}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 3}))
    return folder


@given(data=st.data())
def test_a_file_that_is_missing_or_cut_anywhere(checkpoint, data):
    check_checkpoint(checkpoint, NEEDED)
    file = data.draw(st.sampled_from(sorted(checkpoint.iterdir())))
    whole = file.read_bytes()
    length = data.draw(st.none() | st.integers(0, len(whole) - 1))
    try:
        if length is None:
            file.unlink()
        else:
            file.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"checkpoint-3 is damaged: .*delete it, and --resume continues"):
            check_checkpoint(checkpoint, NEEDED)
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize("text", ["[]", "{}", '{"global_step": 2}', '{"absent": 1}', "3", "\\xff"])
def test_a_state_of_another_step_or_of_none(checkpoint, text):
    state = checkpoint / "trainer_state.json"
    whole = state.read_bytes()
    state.write_bytes(text.encode("latin-1"))
    try:
        with pytest.raises(ConfigError, match="trainer_state.json"):
            check_checkpoint(checkpoint, NEEDED)
    finally:
        state.write_bytes(whole)


def test_a_flipped_byte_at_the_end_of_an_archive(checkpoint):
    """Python's own reader raises for some of them."""
    state = checkpoint / "optimizer.pt"
    whole = state.read_bytes()
    try:
        for place in range(1, 60):
            changed = bytearray(whole)
            changed[-place] ^= 0xFF
            state.write_bytes(changed)
            with suppress(ConfigError):
                check_checkpoint(checkpoint, NEEDED)
    finally:
        state.write_bytes(whole)


@pytest.mark.parametrize(
    ("file", "way", "processes", "message"),
    [
        (
            "optimizer_0/__0_0.distcp",
            "whole",
            1,
            r"was saved in parts \(FSDP2 .* reads one whole; resume it as it began",
        ),
        ("optimizer.pt", "parts", 2, "was saved whole, and this run reads one in parts"),
        ("global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt", "whole", 1, "was saved by DeepSpeed, and this run"),
        (
            "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "deepspeed",
            2,
            "with 1 processes, got 2; give --num",
        ),
        ("global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt", "deepspeed", 1, None),
        ("optimizer_0/__0_0.distcp", "parts", 4, None),
    ],
)
def test_a_checkpoint_is_resumed_as_it_was_saved(tmp_path, file, way, processes, message):
    """A message that it is damaged would advise to delete it."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        check_way(tmp_path, way, processes)
