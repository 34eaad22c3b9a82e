"""The embedded model with adapters of its own, and short evaluations of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from opasd.config import ModelConfig, RolloutConfig, SamplingConfig
from opasd.evaluation import folder as folders
from opasd.evaluation.benchmarks import load, packaged
from opasd.evaluation.loop import Base, Evaluation, evaluate
from opasd.evaluation.profiles import Profile
from opasd.evaluation.targets import Target
from opasd.model.loading import load_model
from opasd.progress import SampleProgress

LAB = ModelConfig(name_or_path="lab")
EIGHT_ROWS = RolloutConfig(max_batch=8)
SAMPLING = SamplingConfig(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=48)


def make_adapter(folder: Path, seed: int, *, rank: int = 4, base: str = "lab") -> Path:
    """An adapter of the embedded model that changes what it says."""
    torch.manual_seed(seed)
    lora = LoraConfig(r=rank, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(load_model(LAB), lora)
    model.save_pretrained(str(folder))
    about = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(about | {"base_model_name_or_path": base}))
    return folder


class Quiet(SampleProgress):
    """Progress that is only remembered."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.skipped = 0
        self.started: tuple[int, int] = (0, 0)
        self.groups: list[tuple[str, int, int]] = []

    def begin(self, total: int, done: int) -> None:
        self.started = (total, done)

    def skip(self, samples: int) -> None:
        self.skipped += samples

    def advance(self, label: str, samples: int, tokens: int, seconds: float) -> None:
        assert seconds > 0
        self.groups.append((label, samples, tokens))

    def say(self, text: str) -> None:
        self.said.append(text)


def short_evaluation(*targets: Target, problems: int = 6, **changes: Any) -> Evaluation:
    """A short evaluation on the embedded task; `changes` of the profile."""
    group = changes.pop("group", 4)
    settings: dict[str, Any] = {"sampling": SAMPLING, "samples": 2, "thinking": False} | changes
    benchmark = load(packaged()["lab"], limit=problems)
    return Evaluation(targets or (Target("lab", LAB),), [benchmark], Profile(**settings), group=group)


def run(
    evaluation: Evaluation,
    path: Path,
    open_base: Callable[[ModelConfig], Base] | None = None,
    progress: Quiet | None = None,
) -> dict[str, Any]:
    """The evaluation, with the real engine by default."""
    folders.make(path)
    settings = folders.enter(path, evaluation.settings())
    opener = open_base or (lambda model: Base(model, EIGHT_ROWS))
    return evaluate(evaluation, path, settings, opener, progress or Quiet())
