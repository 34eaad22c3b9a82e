"""Samples that are there already: taken over where the same model was asked the very same thing.

    asked = question(model, prompts, sampling, seeds)    a digest that names one call of the engine
    shelf.take(asked, keys)                              its samples, if the folders of the shelf have them

`asked` is made of all that decides a group's completions: the bytes of the model's files (on the hub its commit) and of
the adapter's, number format, engine and batch, sampling, token ids of the prompts, seeds, and `VERSION`. Every sample
carries it, so one that differs in any of these is never found. Completions are taken over; verdicts are not, and
today's grader gives them anew.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from opasd.choices import ENGINES
from opasd.config import ModelConfig, RolloutConfig, SamplingConfig
from opasd.errors import ConfigError
from opasd.evaluation.folder import SAMPLES, SETTINGS
from opasd.evaluation.samples import Sample, SampleKey, parse_line
from opasd.evaluation.targets import ADAPTER_FILES, MODEL_FILES
from opasd.model.loading import hub_commit, model_source

VERSION = 1
"""To be raised when an engine of this package draws other tokens than before for the same call."""


def base_digest(model: ModelConfig, rollout: RolloutConfig) -> str:
    """Return a digest of the base model and its engine, empty where it cannot be known.

    That is so on servers, and for a hub's model whose commit is not known.
    """
    folder = Path(model_source(model)).expanduser()
    content = _content(folder, MODEL_FILES) if folder.is_dir() else hub_commit(model)
    if ENGINES[rollout.engine].servers or not content:
        return ""
    # The adapter's own files say the rest of an adapter.
    settings = {"dtype": model.dtype, "attn_implementation": model.attn_implementation}
    settings["four_bits"] = model.adaptation == "qlora"
    # `auto` is another number format on a GPU.
    parts = [VERSION, content, settings, rollout.model_dump(mode="json", exclude={"servers"})]
    return _digest([*parts, torch.cuda.is_available()])


def model_digest(base: str, adapter: Path | None) -> str:
    """Return a digest of the base with an adapter, empty if that of the base is."""
    return base and _digest([base, adapter and _content(adapter, ADAPTER_FILES)])


def question(model: str, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]) -> str:
    """Return a digest of one call of the engine, empty if the model's is."""
    return model and _digest([model, list(map(list, prompts)), sampling.model_dump(mode="json"), list(seeds)])


def _content(folder: Path, endings: tuple[str, ...]) -> str:
    """Return a digest of all bytes of the folder's files with these endings."""
    found = []
    for path in sorted(path for path in folder.iterdir() if path.name.endswith(endings) and path.is_file()):
        with path.open("rb") as file:
            found.append([path.name, hashlib.file_digest(file, "blake2b").hexdigest()])
    return _digest(found)


def _digest(parts: object) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def check_folders(folders: Iterable[Path], output: Path) -> None:
    """Refuse folders that are missing; that of the evaluation's own folder, a sweep's, may be made by it."""
    for folder in folders:
        if not folder.is_dir() and folder not in output.parents:
            raise ConfigError(f"--reuse: no folder {folder}; give an evaluation's, or one with evaluations in it")


class Shelf:
    """The samples of evaluations' folders, or of the evaluations in a folder, by what was asked; also later ones."""

    def __init__(self, folders: Iterable[Path]) -> None:
        places = [place for folder in folders for place in (folder, *sorted(folder.glob("*")))]
        # A training run has a file of this name too.
        held = {place.resolve(): place for place in places if (place / SETTINGS).is_file()}
        self._read = dict.fromkeys(held.values(), 0)
        """How many bytes of each file are known."""
        self._lines: dict[tuple[str, str, int], tuple[Path, int]] = {}
        """The folder and the place of each line."""

    def take(self, asked: str, keys: Sequence[SampleKey]) -> list[Sample]:
        """Return the samples of this question for the keys, as they are in their folders; nothing unless all exist."""
        if not asked:
            return []
        if any((asked, key.problem, key.sample) not in self._lines for key in keys):
            self._read_on()
        found = []
        for key in keys:
            folder, start = self._lines.get((asked, key.problem, key.sample), (None, 0))
            sample = folder and _sample_at(folder / SAMPLES, start)
            # Another process may have replaced the file.
            if not folder or not sample or (asked, key[2:]) != (sample.asked, sample.key[2:]):
                return []
            found.append(replace(sample, source=sample.source or f"{folder}#{sample.target}"))
        return found

    def _read_on(self) -> None:
        for folder, start in self._read.items():
            if not (folder / SAMPLES).is_file():  # not yet, or a pipe in someone else's folder
                continue
            try:
                with (folder / SAMPLES).open("rb") as file:
                    file.seek(start)
                    for line in file:
                        if not line.endswith(b"\n"):
                            break  # it is being written
                        sample = parse_line(line)
                        if sample and sample.asked:
                            own = (sample.asked, sample.problem, sample.sample)
                            self._lines.setdefault(own, (folder, self._read[folder]))
                        self._read[folder] += len(line)
            except OSError:
                continue


def _sample_at(path: Path, start: int) -> Sample | None:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return parse_line(file.readline())
    except OSError:
        return None
