"""The adapter's files: whole, new each time, in memory, and gone afterwards, also after a crash."""

import os
import signal
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file

from opasd.errors import ConfigError, EngineError
from opasd.rollout import adapters
from opasd.rollout.adapters import PREFIX, AdapterExport, check_folder, sweep
from tests.models import add_lora, make_model
from tests.nursery import Python


def export(folder, seed=3):
    return AdapterExport(add_lora(make_model("qwen3"), seed), folder)


def test_what_is_written_is_the_adapter(tmp_path):
    exported = export(tmp_path)
    path = exported.write()
    loaded = PeftModel.from_pretrained(make_model("qwen3"), str(path))
    ids = torch.arange(1, 20)[None]
    torch.testing.assert_close(loaded(ids).logits, exported.model(ids).logits, rtol=0, atol=0)
    assert {file.name for file in path.iterdir()} == {"adapter_model.safetensors", "adapter_config.json"}


def test_each_version_has_a_folder_of_its_own(tmp_path):
    exported = export(tmp_path)
    first = exported.write()
    before = load_file(first / "adapter_model.safetensors")
    with torch.no_grad():
        for parameter in exported.model.parameters():
            parameter.add_(1)
    second = exported.write()
    assert first != second
    after = load_file(second / "adapter_model.safetensors")
    assert before.keys() == after.keys()
    for name, old in load_file(first / "adapter_model.safetensors").items():
        torch.testing.assert_close(old, before[name], rtol=0, atol=0)
        assert not torch.equal(old, after[name])
    exported.forget(first)
    assert not first.exists()
    exported.forget(tmp_path / "elsewhere")
    assert second.exists()


def test_a_version_appears_whole(tmp_path):
    """Whoever finds a folder finds its files, at any moment."""
    exported, stop, torn = export(tmp_path), threading.Event(), []

    def look():
        while not stop.is_set():
            for path in exported.folder.glob("[0-9]*"):
                names = {file.name for file in path.iterdir()}
                if names != {"adapter_model.safetensors", "adapter_config.json"}:
                    torn.append(names)

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(20):
        exported.write()
    stop.set()
    watcher.join()
    assert torn == []


def test_files_go_with_the_export(tmp_path):
    exported = export(tmp_path)
    folder = exported.write().parent
    exported.close()
    assert not folder.exists()
    exported.close()
    folder = export(tmp_path).folder  # nobody keeps it
    assert not folder.exists()


@pytest.mark.skipif(not adapters.MEMORY.is_dir(), reason="no file system in memory here")
def test_files_lie_in_memory_where_there_is_room(monkeypatch, tmp_path):
    exported = export(None)
    assert exported.folder.parent == adapters.MEMORY
    exported.close()
    monkeypatch.setattr(adapters.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(adapters.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert export(None).folder.parent == tmp_path


CRASHING = """
import sys
from pathlib import Path
from types import SimpleNamespace
from opasd.rollout.adapters import AdapterExport
from tests.models import add_lora, make_model
model = add_lora(make_model("qwen3"))
export = AdapterExport(model, Path(sys.argv[1]))
export.write()
print(export.folder, flush=True)
sys.stdin.read()
"""


def test_files_go_after_a_crash(tmp_path):
    with Python("-c", CRASHING, str(tmp_path)) as process:
        folder = Path(process.stdout.readline().strip())
        sweep(tmp_path)
        assert folder.exists(), "a live process was swept away"
        process.send_signal(signal.SIGKILL)
    assert folder.exists()
    exported = export(tmp_path)
    assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == [exported.folder.name]


def test_sweeping_leaves_what_is_not_ours(tmp_path):
    for name in (f"{PREFIX}no-lock", "other"):
        (tmp_path / name).mkdir()
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rank_pattern": {"q_proj": 2}}, "differ between layers"),
        ({"alpha_pattern": {"q_proj": 2}}, "differ between layers"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "trained biases"),
        ({"modules_to_save": ["lm_head"]}, "whole weights"),
        ({"r": 513}, "rank 513"),
    ],
)
def test_what_vllm_would_get_wrong_is_refused(options, named, tmp_path):
    config = LoraConfig(**({"r": 4, "target_modules": ["q_proj", "v_proj"]} | options))
    with pytest.raises(ConfigError, match=f"{named}.*use rollout.engine: transformers"):
        AdapterExport(get_peft_model(make_model("qwen3"), config), tmp_path)


def test_a_folder_is_looked_at_too(tmp_path):
    check_folder(tmp_path / "not here")
    exported = export(tmp_path)
    check_folder(exported.write())
    config = exported.model.peft_config["default"]
    config.alpha_pattern = {"q_proj": 3}
    with pytest.raises(ConfigError, match="differ between layers"):
        check_folder(exported.write())
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        check_folder(tmp_path)


def test_another_kind_of_adapter_is_refused(tmp_path):
    model = get_peft_model(make_model("qwen3"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ConfigError, match="PROMPT_TUNING"):
        AdapterExport(model, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot keep adapters in"):
        export(tmp_path / "file" / "inside")
    exported = export(tmp_path)
    os.rename(exported.folder, tmp_path / "moved")
    with pytest.raises(EngineError, match="cannot write the adapter"):
        exported.write()


def test_who_can_read_an_adapter(tmp_path):
    """In memory its owner alone; in a folder that servers share, everybody whom the umask lets."""
    before = os.umask(0o022)
    try:
        model = add_lora(make_model("qwen3"))
        private, shared = AdapterExport(model), AdapterExport(model, tmp_path / "shared")
        assert stat.S_IMODE(private.folder.stat().st_mode) == 0o700
        private.write()
        modes = [stat.S_IMODE(path.stat().st_mode) for path in [shared.folder, *shared.write().iterdir()]]
        assert modes == [0o755, 0o644, 0o644]
        private.close()
        shared.close()
    finally:
        os.umask(before)
