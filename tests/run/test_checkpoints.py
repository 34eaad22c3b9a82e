"""Whether a checkpoint is whole: files that are missing, or cut anywhere."""

import json
import resource

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file

from opasd.errors import ConfigError
from opasd.run.checkpoints import check_checkpoint, told_if_full
from tests.training import TOKENIZER

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
        with pytest.raises(ConfigError, match=r"checkpoint-3 is damaged: .*delete it, and --resume goes on"):
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


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: no kernel"),
        ConnectionRefusedError("no"),
        PermissionError(13, "denied"),
        ValueError("x"),
    ],
)
def test_other_errors_stay_what_they_are(tmp_path, error):
    with pytest.raises(type(error)) as caught, told_if_full(tmp_path):
        raise error
    assert caught.value is error


def test_a_full_disk_is_told_once(tmp_path):
    outer, inner = told_if_full(tmp_path), told_if_full(tmp_path / "in", "merge again")
    with pytest.raises(ConfigError) as caught, outer, inner:
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    assert str(caught.value).count("could not be written") == 1
    assert str(caught.value).endswith("free some space, and merge again")


def test_a_full_disk_met_by_the_tokenizers_library(tmp_path):
    """It raises what no other exception is."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(ConfigError, match="could not be written: File too large"), told_if_full(tmp_path):
            TOKENIZER.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
