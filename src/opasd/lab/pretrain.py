"""Pretrain the embedded model from nothing, measure it and write its folder with the record of how it was made.

    python -m opasd.lab.pretrain --out model --seed 0

Data: demonstrations of `demos.py` on problems of the `pretrain` split, a response's own tokens alone in the loss.
On one H200 this takes minutes; on a CPU use it with few steps, to see that it runs.
"""

import argparse
import json
import math
import os
import platform
import random
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from opasd.lab.demos import Kind, Rates, make_demo
from opasd.lab.formats import Formats, wordings
from opasd.lab.measure import measure
from opasd.lab.model import END_OF_TEXT, END_OF_TURN, SYSTEM_PROMPTS, make_config, make_tokenizer, token_id
from opasd.lab.task import make_puzzles

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MIXTURE: dict[Kind, float] = {"student": 0.4, "thinking": 0.15, "privileged": 0.45}
SYSTEM_SHARE = 0.05


@dataclass(frozen=True)
class Settings:
    """A pretraining run."""

    seed: int = 0
    size: str = "base"
    steps: int = 3000
    batch: int = 256
    examples: int = 300_000
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    warmup: int = 200
    measured: int = 1200
    """Held-out problems for the record."""


@dataclass(frozen=True)
class Examples:
    """Token ids [N, T], padded on the right, and which of them are learned; `lengths` [N]."""

    ids: Tensor
    learned: Tensor
    lengths: Tensor


def make_examples(tokenizer: "PreTrainedTokenizerFast", settings: Settings, rates: Rates, workers: int) -> Examples:
    """The data of a run, in an order that does not depend on the number of workers."""
    size = 5000
    jobs = [
        (tokenizer, settings.seed * 1_000_003 + number, min(size, settings.examples - start), rates)
        for number, start in enumerate(range(0, settings.examples, size))
    ]
    if workers > 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            parts = list(pool.map(_encode_part, jobs))
    else:
        parts = [_encode_part(job) for job in jobs]
    lengths = torch.tensor([length for part in parts for length in part[2]])
    width = int(lengths.max())
    ids = torch.full((len(lengths), width), token_id(tokenizer, END_OF_TEXT), dtype=torch.int16)
    learned = torch.zeros(len(lengths), width, dtype=torch.bool)
    row = 0
    for part_ids, part_learned, part_lengths in parts:
        flat_ids, flat_learned = torch.tensor(part_ids, dtype=torch.int16), torch.tensor(part_learned).bool()
        inside = torch.arange(width) < torch.tensor(part_lengths)[:, None]
        ids[row : row + len(part_lengths)][inside] = flat_ids
        learned[row : row + len(part_lengths)][inside] = flat_learned
        row += len(part_lengths)
    return Examples(ids, learned, lengths)


def _encode_part(
    job: tuple["PreTrainedTokenizerFast", int, int, Rates],
) -> tuple["array[int]", "array[int]", list[int]]:
    """Some demonstrations as ids, whether each is learned, and the lengths."""
    tokenizer, seed, count, rates = job
    backend, formats, rng = tokenizer.backend_tokenizer, Formats(tokenizer), random.Random(f"opasd-lab-demos:{seed}")
    ids, learned, lengths = array("h"), array("b"), []
    for puzzle in make_puzzles("pretrain", count, seed):
        kind = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
        demo = make_demo(puzzle, kind, rates, rng)
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < SYSTEM_SHARE else ""
        segments = [(formats.prompt(kind, demo.question, demo.reference, system), False), *demo.segments]
        length = 0
        for text, is_learned in (*segments, (END_OF_TURN, True)):
            tokens = backend.encode(text, add_special_tokens=False).ids
            ids.extend(tokens)
            learned.extend([is_learned] * len(tokens))
            length += len(tokens)
        lengths.append(length)
    return ids, learned, lengths


def train(model: "PreTrainedModel", examples: Examples, settings: Settings, device: torch.device) -> dict[str, Any]:
    """AdamW with warm-up and a cosine; the figures of the run."""
    nn.Module.to(model, device).train()
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    assert head is not None
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=device.type == "cuda")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _schedule(step, settings))
    seen = trained = 0
    losses: list[tuple[int, float]] = []
    begin = time.perf_counter()
    for step, rows in enumerate(_batches(len(examples.lengths), settings)):
        width = int(examples.lengths[rows].max())
        ids = examples.ids[rows, :width].to(device).long()
        target = examples.learned[rows, 1:width].to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            # Right-padded and causal: the padding changes nothing before it, so no mask is needed.
            hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][target]
            logits = head(hidden)
        loss = functional.cross_entropy(logits.float(), ids[:, 1:][target])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        seen += int(examples.lengths[rows].sum())
        trained += len(logits)
        if (step + 1) % 100 == 0 or step + 1 == settings.steps:
            losses.append((step + 1, round(loss.item(), 4)))
            if (step + 1) % 500 == 0 or step + 1 == settings.steps:
                sys.stderr.write(f"step {step + 1}: loss {losses[-1][1]}, {time.perf_counter() - begin:.0f} s\n")
    last = [value for _, value in losses[-5:]]
    return {
        "tokens_read": seen,
        "tokens_learned": trained,
        "seconds": round(time.perf_counter() - begin, 1),
        "final_loss": round(sum(last) / len(last), 4),
        "losses": losses[:: max(1, len(losses) // 20)],
    }


def _batches(count: int, settings: Settings) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(settings.seed)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(settings.steps):
        while len(order) < settings.batch:
            order = torch.cat([order, torch.randperm(count, generator=generator)])
        rows, order = order[: settings.batch], order[settings.batch :]
        yield rows


def _schedule(step: int, settings: Settings) -> float:
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def save(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", out: Path) -> None:
    """The model's folder: bf16 weights, both end tokens declared."""
    from transformers import GenerationConfig

    ends = [token_id(tokenizer, token) for token in (END_OF_TURN, END_OF_TEXT)]
    model.generation_config = GenerationConfig(
        eos_token_id=ends, pad_token_id=ends[1], do_sample=True, temperature=1.0, top_p=1.0, top_k=0
    )
    nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def pretrain(out: Path, settings: Settings, rates: Rates | None = None, workers: int = 1) -> dict[str, Any]:
    """The whole run; leaves the folder and returns its record."""
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

    rates = rates or Rates()
    begin = time.perf_counter()
    tokenizer = make_tokenizer(wordings())
    examples = make_examples(tokenizer, settings, rates, workers)
    made = time.perf_counter() - begin
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(settings.seed)
    model = Qwen3ForCausalLM(make_config(tokenizer, settings.size))
    figures = train(model, examples, settings, device)
    save(model, tokenizer, out)
    shipped = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    nn.Module.to(shipped, device)
    record = {
        "command": f"python -m opasd.lab.pretrain --out MODEL --seed {settings.seed} --size {settings.size} "
        f"--steps {settings.steps} --batch {settings.batch} --examples {settings.examples} "
        f"--learning-rate {settings.learning_rate}",
        "settings": asdict(settings),
        "mixture": MIXTURE,
        "system_share": SYSTEM_SHARE,
        "rates": asdict(rates),
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": (out / "model.safetensors").stat().st_size,
        "vocabulary": len(tokenizer),
        "seconds_for_data": round(made, 1),
        "training": figures,
        "measured": measure(shipped, AutoTokenizer.from_pretrained(out), settings.measured),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    (out / "TRAINING.json").write_text(json.dumps(record, indent=2) + "\n")
    return record


def main(arguments: Sequence[str] | None = None) -> None:
    """Pretrain from the command line."""
    default = Settings()
    parser = argparse.ArgumentParser(description="Pretrain the embedded model.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist")
    parser.add_argument("--size", default=default.size, help="architecture: base or small")
    for name in ("seed", "steps", "batch", "examples", "measured"):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name))
    parser.add_argument("--learning-rate", type=float, default=default.learning_rate)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that make data")
    options = vars(parser.parse_args(arguments))
    out, workers = options.pop("out"), options.pop("workers")
    if out.exists():
        parser.error(f"{out} exists; name a new folder")
    record = pretrain(out, Settings(**options), workers=workers)
    sys.stdout.write(json.dumps(record["measured"], indent=2) + "\n")


if __name__ == "__main__":
    main()
