"""Many steps of the embedded model: memory, descriptors and step time, with the slopes of their courses."""

import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

BLOCKS = 20
T_18 = 2.101
"""97.5 % point of Student's t with BLOCKS - 2 degrees of freedom."""


def slope(values: list[float]) -> tuple[float, float]:
    """Return the slope for 100 steps and half the width of its 95 % interval, by a line through the means of blocks."""
    size = len(values) // BLOCKS
    means = [statistics.fmean(values[block * size : (block + 1) * size]) for block in range(BLOCKS)]
    places = [block - (BLOCKS - 1) / 2 for block in range(BLOCKS)]
    spread = sum(place**2 for place in places)
    centre = statistics.fmean(means)
    rate = sum(place * value for place, value in zip(places, means, strict=True)) / spread
    rest = sum((value - centre - rate * place) ** 2 for place, value in zip(places, means, strict=True))
    error = (rest / (BLOCKS - 2) / spread) ** 0.5
    return rate / size * 100, T_18 * error / size * 100


def soak(folder: Path, output: Path, steps: int) -> None:
    """Train for so many steps and write what was measured."""
    from transformers import TrainerCallback

    from opasd.recipes import load_recipe
    from opasd.trainer import session

    config = load_recipe("lab").config()
    train = config.train.model_copy(
        update={"max_steps": steps, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1,
                "save_steps": 50, "save_total_limit": 2, "learning_rate": 1e-5}
    )  # fmt: skip
    rollout = config.rollout.model_copy(update={"max_new_tokens": 8})
    data = config.data.model_copy(update={"sample": 128})
    config = config.model_copy(update={"train": train, "rollout": rollout, "data": data, "validation_data": {}})
    memory: list[float] = []
    descriptors: list[float] = []
    clock: list[float] = [time.process_time()]

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            resident = Path("/proc/self/statm").read_text().split()[1]
            memory.append(int(resident) * os.sysconf("SC_PAGE_SIZE") / 2**20)
            descriptors.append(len(os.listdir("/proc/self/fd")))
            clock.append(time.process_time())

    with session.opened(config, folder) as trainer:
        trainer.add_callback(Watch())
        trainer.train()
    # The processor's time on one thread: the clock's time would measure what else the machine does.
    seconds = [after - before for before, after in itertools.pairwise(clock)]
    measured = {
        "memory": (memory, "MiB", 5.0),
        "descriptors": (descriptors, "", 0.2),
        "step time": (seconds, "s", 0.002),
    }
    report = {}
    for name, (values, unit, allowed) in measured.items():
        settled = values[len(values) // 5 :]  # the first fifth fills caches
        rate, half = slope(settled)
        text = f"{name} {statistics.fmean(settled):.4g} {unit}, {rate:+.2g} ± {half:.2g} {unit} in 100 steps"
        # Flat: zero lies in the interval, or the slope is too small to matter in a week.
        report[name] = {
            "text": " ".join(text.split()).replace(" ,", ","),
            "flat": abs(rate) <= half or abs(rate) < allowed,
        }
    output.write_text(json.dumps(report))
