"""An evaluation in several processes: each draws a share of the groups into a folder of its own, and one joins them.

    evaluations/NAME/part-0/samples.jsonl

The groups are those of one process, so the samples are as well. What a killed call has left in the parts is joined by
the next one.
"""

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from opasd.evaluation import folder as folders
from opasd.evaluation.costs import Costs
from opasd.evaluation.loop import Evaluation, OpenBase, draw_missing
from opasd.evaluation.samples import SampleFile, SampleKey
from opasd.files import JsonLines
from opasd.progress import SampleProgress

PREFIX = "part-"


def part(path: Path, rank: int) -> Path:
    """Return the folder of a process."""
    return path / f"{PREFIX}{rank}"


def draw_share(evaluation: Evaluation, path: Path, open_base: OpenBase, progress: SampleProgress) -> int:
    """Draw this process's share of the samples that the folder `path` lacks into its part; return the exit code."""
    rank, world = evaluation.share
    folder = part(path, rank)
    folder.mkdir(exist_ok=True)
    samples = SampleFile(folder / folders.SAMPLES)
    samples.keys |= SampleFile(path / folders.SAMPLES).keys
    missing = Counter(key.target for key in evaluation.all_keys() if key not in samples.keys)
    progress.begin(missing.total() // world, 0)
    costs = Costs(folder / folders.CALLS, evaluation.gpus)
    for _ in costs.follow(draw_missing(evaluation, samples, missing, open_base, progress)):
        pass
    progress.end()
    return 0


def join(path: Path, order: Iterable[SampleKey]) -> None:
    """Move all parts' samples into the evaluation's file, in this order, and their costs behind its own."""
    found = sorted(path.glob(f"{PREFIX}[0-9]*"), key=lambda folder: (len(folder.name), folder.name))
    if not found:
        return
    samples = SampleFile(path / folders.SAMPLES)
    for folder in found:
        samples.append(list(SampleFile(folder / folders.SAMPLES)))
    places = {key: place for place, key in enumerate(order)}
    samples.replace(sorted(samples, key=lambda sample: places.get(sample.key, -1)))
    costs = JsonLines(path / folders.CALLS)
    for folder in found:
        last = max((row["call"] for row in costs if isinstance(row.get("call"), int)), default=0)
        rows = [row for row in JsonLines(folder / folders.CALLS) if isinstance(row.get("call"), int)]
        costs.append(*(row | {"call": last + row["call"]} for row in rows))
        shutil.rmtree(folder)
