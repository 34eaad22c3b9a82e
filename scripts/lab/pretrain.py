"""Pretrain the embedded model from nothing, measure it and write its folder with the record of how it was made.

    python -m scripts.lab.pretrain --out model --seed 0

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from opasd.data.made.counts import make_puzzles
from scripts.lab.demos import Kind, Rates, Segment, make_demo
from scripts.lab.formats import Formats, wordings
from scripts.lab.measure import measure
from scripts.lab.model import END_OF_TEXT, END_OF_TURN, SIZES, SYSTEM_PROMPTS, make_config, make_tokenizer, token_id

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MIXTURE: dict[Kind, float] = {"student": 0.4, "thinking": 0.15, "privileged": 0.45}
SYSTEM_SHARE = 0.05
GROUPS = 3
"""Shapes of a step: examples by length."""


@dataclass(frozen=True)
class Settings:
    """A pretraining run."""

    seed: int = 0
    size: str = "base"
    steps: int = 11_300
    batch: int = 128
    examples: int = 250_000
    learning_rate: float = 3e-3
    """AdamW's, for the embeddings and the norms."""
    matrix_rate: float = 0.02
    """Muon's, for all other matrices."""
    weight_decay: float = 0.05
    warmup: int = 300
    embedding_scale: float = 0.1
    """Standard deviation of the embeddings at the start."""
    measured: int = 1200
    """Held-out problems for the record."""


@dataclass(frozen=True)
class Examples:
    """Token ids [N, T], padded on the right, and which of them are learned; `lengths` [N]."""

    ids: Tensor
    learned: Tensor
    lengths: Tensor


def make_examples(
    tokenizer: "PreTrainedTokenizerFast",
    settings: Settings,
    rates: Any,
    workers: int,
    demonstrations: "Demonstrations | None" = None,
) -> Examples:
    """The data of a run, in an order that does not depend on the number of workers."""
    size = 5000
    demonstrations = demonstrations or count_demonstrations
    jobs = [
        (demonstrations, tokenizer, settings.seed * 1_000_003 + number, min(size, settings.examples - start), rates)
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
        flat_ids = torch.frombuffer(part_ids, dtype=torch.int16)
        flat_learned = torch.frombuffer(part_learned, dtype=torch.int8).bool()
        inside = torch.arange(width) < torch.tensor(part_lengths)[:, None]
        ids[row : row + len(part_lengths)][inside] = flat_ids
        learned[row : row + len(part_lengths)][inside] = flat_learned
        row += len(part_lengths)
    return Examples(ids, learned, lengths)


Demonstrations = Callable[["PreTrainedTokenizerFast", int, int, Any], Iterator[list[Segment]]]
"""Gives so many demonstrations of a seed, with rates of mistakes: a context and the pieces of its response."""


def count_demonstrations(
    tokenizer: "PreTrainedTokenizerFast", seed: int, count: int, rates: Rates
) -> Iterator[list[Segment]]:
    """Demonstrations of the task `lab`."""
    formats, rng = Formats(tokenizer), random.Random(f"opasd-lab-demos:{seed}")
    for puzzle in make_puzzles("pretrain", count, seed):
        kind = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
        demo = make_demo(puzzle, kind, rates, rng)
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < SYSTEM_SHARE else ""
        yield [(formats.prompt(kind, demo.question, demo.reference, system), False), *demo.segments]


def _encode_part(
    job: tuple[Demonstrations, "PreTrainedTokenizerFast", int, int, Any],
) -> tuple["array[int]", "array[int]", list[int]]:
    """Some demonstrations as ids, whether each is learned, and the lengths."""
    demonstrations, tokenizer, seed, count, rates = job
    backend = tokenizer.backend_tokenizer
    ids, learned, lengths = array("h"), array("b"), []
    for segments in demonstrations(tokenizer, seed, count, rates):
        length = 0
        for text, is_learned in (*segments, (END_OF_TURN, True)):
            tokens = backend.encode(text, add_special_tokens=False).ids
            ids.extend(tokens)
            learned.extend([is_learned] * len(tokens))
            length += len(tokens)
        lengths.append(length)
    return ids, learned, lengths


def make_model(tokenizer: "PreTrainedTokenizerFast", settings: Settings) -> "PreTrainedModel":
    """The untrained model: embeddings that can be seen, layers that add nothing yet."""
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(settings.seed)
    model = Qwen3ForCausalLM(make_config(tokenizer, settings.size))
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(weight)
        elif name.endswith("embed_tokens.weight"):
            nn.init.normal_(weight, std=settings.embedding_scale)
    return model


def train(model: "PreTrainedModel", examples: Examples, settings: Settings, device: torch.device) -> dict[str, Any]:
    """Muon and AdamW with warm-up and a cosine; the figures of the run."""
    step = Step(model, settings, device)
    ids, learned = examples.ids.to(device), examples.learned.to(device)
    learned_N = examples.learned.sum(1)
    seen = trained = 0
    losses: list[tuple[int, float]] = []
    begin = time.perf_counter()
    for number, groups in enumerate(batches(examples.lengths, settings), 1):
        count = sum(int(learned_N[rows].sum()) for rows, _ in groups)
        loss = step(
            [(ids[on := rows.to(device), :width], learned[on, 1:width]) for rows, width in groups],
            count,
            schedule(number - 1, settings),
        )
        seen += sum(int(examples.lengths[rows].sum()) for rows, _ in groups)
        trained += count
        if number % 100 == 0 or number == settings.steps:
            losses.append((number, round(loss.item(), 4)))
            if number % 1000 == 0 or number == settings.steps:
                sys.stderr.write(f"step {number}: loss {losses[-1][1]}, {time.perf_counter() - begin:.0f} s\n")
    last = [value for _, value in losses[-5:]]
    return {
        "tokens_read": seen,
        "tokens_learned": trained,
        "seconds": round(time.perf_counter() - begin, 1),
        "final_loss": round(sum(last) / len(last), 4),
        "losses": losses[:: max(1, len(losses) // 20)],
    }


Group = tuple[Tensor, Tensor]
"""Token ids [B, T] of some examples, and which of the tokens after the first are learned [B, T − 1]."""


class Step:
    """One step of training.

    A model this small is bound by its launches: on a GPU the layers are compiled, and all but Muon's update is one CUDA
    graph (Muon reads its rate as a number, which a graph would freeze).
    """

    def __init__(self, model: "PreTrainedModel", settings: Settings, device: torch.device) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register("lab_causal", _causal_attention)
        nn.Module.to(model, device).train()
        decoder: Any = model.get_decoder()
        head: Any = model.get_output_embeddings()
        self.model, self.decoder, self.head, self.device = model, decoder, head, device
        self.before = model.config._attn_implementation
        self.settings = settings
        on_gpu = device.type == "cuda"
        self.loss_of = torch.compile(_losses, dynamic=False) if on_gpu else _losses
        self.layers = [torch.compile(layer, dynamic=False) if on_gpu else layer for layer in decoder.layers]
        inner = [weight for layer in decoder.layers for weight in layer.parameters()]
        outer = [*decoder.embed_tokens.parameters(), *decoder.norm.parameters()]
        self.rate = torch.zeros((), device=device)
        self.adamw = torch.optim.AdamW(
            [*outer, *(weight for weight in inner if weight.ndim < 2)],
            lr=self.rate,
            betas=(0.9, 0.98),
            weight_decay=0.0,
            fused=on_gpu,
            capturable=on_gpu,
        )
        # Momentum 0.95 with Nesterov's step and five Newton-Schulz iterations, scaled by √max(1, rows / columns).
        matrices = [weight for weight in inner if weight.ndim == 2]
        self.muon = torch.optim.Muon(matrices, weight_decay=settings.weight_decay, adjust_lr_fn="original")
        self.groups: list[Group] = []
        self.learned = torch.ones((), device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss = torch.zeros((), device=device)
        self.calls = 0

    def __call__(self, groups: Sequence[Group], learned: int, share: float) -> Tensor:
        """The loss; `share` is the schedule's part of the learning rates."""
        if not self.groups:
            self.groups = [(ids.to(self.device).long(), target.to(self.device)) for ids, target in groups]
        for static, new in zip(self.groups, groups, strict=True):
            for target, source in zip(static, new, strict=True):
                target.copy_(source)
        self.learned.fill_(learned)
        self.rate.fill_(share * self.settings.learning_rate)
        self.muon.param_groups[0]["lr"] = share * self.settings.matrix_rate
        self.calls += 1
        self.model.config._attn_implementation = "lab_causal"
        try:
            if self.graph is not None:
                self.graph.replay()  # overwrites the gradients
            else:
                self.model.zero_grad(set_to_none=True)
                if self.device.type == "cuda":
                    self._first_runs()
                else:
                    self._run()
        finally:
            self.model.config._attn_implementation = self.before
        self.muon.step()
        return self.loss

    def _first_runs(self) -> None:
        """Run three times outside of a graph, so that everything made once exists; then capture the graph."""
        if self.calls < 4:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._run()
            torch.cuda.current_stream().wait_stream(stream)
            return
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._run()
        self.graph.replay()

    def _run(self) -> None:
        """Compute the loss and the gradients, clip them, and let AdamW update its weights."""
        total = torch.zeros((), device=self.device)
        for ids, target in self.groups:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                hidden = self.decoder.embed_tokens(ids)
                turns = self.decoder.rotary_emb(hidden, torch.arange(ids.shape[1], device=self.device)[None])
                for layer in self.layers:
                    hidden = layer(hidden, position_embeddings=turns, attention_mask=None)
                part = self.loss_of(self.decoder.norm(hidden), self.head.weight, ids, target) / self.learned
            part.backward()
            total += part.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adamw.step()
        self.loss.copy_(total)


def _losses(hidden: Tensor, head: Tensor, ids: Tensor, target: Tensor) -> Tensor:
    """The sum of the learned tokens' losses."""
    logits = functional.linear(hidden[:, :-1], head).flatten(0, 1).float()
    return (functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none") * target.flatten()).sum()


def _causal_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, scaling: float | None = None, **__: Any
) -> tuple[Tensor, None]:
    # Right-padded and causal: the padding changes nothing before it.
    grouped = query.shape[1] != key.shape[1]
    output = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped
    )
    return output.transpose(1, 2).contiguous(), None


def batches(lengths: Tensor, settings: Settings) -> Iterator[list[tuple[Tensor, int]]]:
    """Rows of each step and the width they are cut to: always so many of the shortest examples, ..., of the longest.

    Shapes that never change are what a graph needs, and several of them pad less than one."""
    generator = torch.Generator().manual_seed(settings.seed)
    bounds = torch.tensor([0.0, *lengths.float().quantile(torch.arange(1, GROUPS + 1) / GROUPS).tolist()])
    groups = [((lengths > low) & (lengths <= high)).nonzero().flatten() for low, high in pairwise(bounds)]
    counts = [round(settings.batch * len(group) / len(lengths)) for group in groups[:-1]]
    counts.append(settings.batch - sum(counts))
    widths = [int(lengths[group].max()) if len(group) else 0 for group in groups]
    orders = [torch.empty(0, dtype=torch.long) for _ in groups]
    for _ in range(settings.steps):
        drawn = []
        for number, (group, count) in enumerate(zip(groups, counts, strict=True)):
            if count == 0:
                continue
            while len(orders[number]) < count:
                orders[number] = torch.cat([orders[number], group[torch.randperm(len(group), generator=generator)]])
            drawn.append((orders[number][:count], widths[number]))
            orders[number] = orders[number][count:]
        yield drawn


def schedule(step: int, settings: Settings) -> float:
    """Share of the learning rates at a step: linear warm-up, then a cosine down to 2 %."""
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
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rates = rates or Rates()
    begin = time.perf_counter()
    tokenizer = make_tokenizer(wordings())
    examples = make_examples(tokenizer, settings, rates, workers)
    made = time.perf_counter() - begin
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(tokenizer, settings)
    figures = train(model, examples, settings, device)
    save(model, tokenizer, out)
    shipped = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    nn.Module.to(shipped, device)
    record = {
        "command": f"python -m scripts.lab.pretrain --out MODEL --seed {settings.seed} --size {settings.size} "
        f"--steps {settings.steps} --batch {settings.batch} --examples {settings.examples} "
        f"--learning-rate {settings.learning_rate} --matrix-rate {settings.matrix_rate} --measured {settings.measured}",
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


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)

    return number


def main(arguments: Sequence[str] | None = None) -> None:
    """Pretrain from the command line."""
    default = Settings()
    parser = argparse.ArgumentParser(description="Pretrain the embedded model.")
    parser.add_argument(
        "--output", "--out", dest="out", metavar="DIR", type=Path, required=True, help="folder to write; must not exist"
    )
    parser.add_argument("--size", default=default.size, choices=SIZES, help="architecture")
    parser.add_argument("--seed", type=int, default=default.seed)
    for name, least in (("steps", 1), ("batch", GROUPS), ("examples", GROUPS), ("measured", 4)):
        parser.add_argument(f"--{name}", type=_at_least(least), default=getattr(default, name))
    for name in ("learning_rate", "matrix_rate"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(default, name))
    parser.add_argument("--workers", type=_at_least(1), default=os.cpu_count() or 1, help="processes that make data")
    options = vars(parser.parse_args(arguments))
    out, workers = options.pop("out"), options.pop("workers")
    if out.exists():
        parser.error(f"{out} exists; name a new folder")
    record = pretrain(out, Settings(**options), workers=workers)
    sys.stdout.write(json.dumps(record["measured"], indent=2) + "\n")


if __name__ == "__main__":
    main()
