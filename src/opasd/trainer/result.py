"""The end of a run: its weights are checked and saved in `final`, with a card."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from opasd.errors import ConfigError, NonFiniteError
from opasd.files import full_disk_errors, replace_folder
from opasd.lab import LAB
from opasd.model.sharding import local
from opasd.run.card import model_card
from opasd.run.manifest import FINAL, run_id, write_manifest

if TYPE_CHECKING:
    from opasd.trainer.trainer import OPASDTrainer


def finish(trainer: "OPASDTrainer") -> None:
    """Save the result of a run that has reached its last step, or that a callback has ended before.

    A run that a signal has stopped has no result yet: it continues from its checkpoint.
    """
    step, last = trainer.state.global_step, trainer.state.max_steps
    if trainer.stopped and step < last:
        return
    if step == 0 < last:
        raise ConfigError(
            f"training ended after {step} of {last} steps because the data gave no more: {len(trainer.data.pairs)} "
            "problems; give more, or leave out dataloader_drop_last"
        )
    # Each process looks at its own part of the trained weights.
    trained = (local(p) for p in trainer.student.parameters() if p.requires_grad)
    if trainer.total(not all(bool(weight.isfinite().all()) for weight in trained)) > 0:
        raise NonFiniteError(
            f"NaN or infinity in the weights after step {step}, so they are not saved; lower the learning rate"
        )
    final, staged = trainer.folder / FINAL, trainer.folder / ".final"
    first = trainer.is_world_process_zero()
    if first:
        shutil.rmtree(staged, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    try:
        with full_disk_errors(final):
            save(trainer, staged)
            trainer.accelerator.wait_for_everyone()
            if first:
                write_manifest(staged, run_id(trainer.folder))
                replace_folder(staged, final)
    finally:
        if first:
            shutil.rmtree(staged, ignore_errors=True)
    if trainer.args.push_to_hub:
        trainer.push_to_hub()


def save(trainer: "OPASDTrainer", output: Path) -> None:
    """Write the adapter or model, its tokenizer, and a card with the configuration and the measurements."""
    trainer.save_model(str(output), _internal_call=True)  # it would upload before the card is written
    if trainer.is_world_process_zero():
        path = output / "adapter_config.json"
        if trainer.run_config.model.name_or_path == LAB and path.exists():
            # The embedded model's folder has another path on another machine.
            values = json.loads(path.read_text(encoding="utf-8")) | {"base_model_name_or_path": LAB}
            path.write_text(json.dumps(values, indent=2), encoding="utf-8")
        card = model_card(trainer.run_config, list(trainer.metrics_file))
        (output / "README.md").write_text(card, encoding="utf-8")
