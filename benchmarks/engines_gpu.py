"""The rollout engines on one GPU: the same prompts through our own decoder and through vLLM in process.

    python benchmarks/engines_gpu.py --engine transformers --parts adapter,base,training --json ours.jsonl
    python benchmarks/engines_gpu.py --engine vllm --parts adapter,training,base --json vllm.jsonl
    python benchmarks/engines_gpu.py --table ours.jsonl vllm.jsonl            no GPU: both side by side
    python benchmarks/engines_gpu.py --both OUTPUT --budget 400    both, shortened, and tests/vllm/test_gpu*.py
    python benchmarks/engines_gpu.py --both OUTPUT --budget 300 --engine vllm --parts base,training    only these

Random weights in Qwen3-1.7B's shape, bfloat16, LoRA r = 64 on all linear layers, the paper's sampling. Times are those
of whole calls after a warm-up: waking up, taking the adapter, reading the prompts, capturing, sleeping. Every result is
printed and written at once. A case that would not end within `--budget` seconds is left out, and so is one that fails.

`--both` makes vLLM's engine once, for the cases with and without adapter and for the training, and runs the parts in
the order in which `--parts` names them; the tests are always last. Of 64 × 8,192 tokens it times the 512 steps in the
middle, without reading the prompts: a step's time grows evenly with the length, so that is the mean of all. From about
600 s on, the part `whole` runs all of them as well.
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen3Config, TrainingArguments

from opasd.config import DriftConfig, OPASDConfig, RolloutConfig, SamplingConfig
from opasd.data.made.counts import make_problems
from opasd.lab import model_path
from opasd.rollout.drift import DriftCheck
from opasd.rollout.engine import RolloutEngine
from opasd.rollout.factory import make_engine
from opasd.trainer.trainer import OPASDTrainer

SHAPES: dict[str, dict[str, Any]] = {
    "1.7b": {"vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
    "tiny": {"vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
}  # fmt: skip
GIB = 2**30
ROWS = 256
MADE_IN = 150
"""Seconds to allow for making an engine."""


@dataclass(frozen=True)
class Case:
    name: str
    problems: int
    prompt: int
    tokens: int
    seconds: int
    """About what it takes on an H200."""
    samples: int = 1
    mean: int | None = None
    """Mean length of completions that end by themselves."""
    warm: bool = True
    steps_alone: bool = False
    """Whether the time to read the prompts is taken off."""


FULL = [Case("64 x 1,024", 64, 256, 1024, 10), Case("256 x 1,024", 256, 256, 1024, 20)]
PARTS = {
    "adapter": [
        *FULL,
        Case("256, ragged, mean 512", 256, 256, 4096, 25, mean=512),
        Case("16 x 12 samples x 512, prompts of 2,048", 16, 2048, 512, 25, samples=12),
        Case("4 x 12 samples, last 512 of 38,912", 4, 38_400, 512, 40, samples=12, warm=False),
        Case("32, last 512 of 16,384", 32, 15_872, 512, 35, warm=False),
        Case("64 x 8,192", 64, 256, 8192, 115, warm=False),
    ],
    "base": [*FULL, Case("64, last 512 of 8,192", 64, 7_680, 512, 30, warm=False)],
}
WHOLE = Case("64 x 8,192", 64, 256, 8192, 100)
MIDDLE = Case("64 x 8,192, steps 3,840 to 4,352", 64, 4_096, 512, 22, steps_alone=True)
SHORTENED = {
    "transformers": {"adapter": [MIDDLE], "base": [MIDDLE]},
    "vllm": {"adapter": [MIDDLE], "base": [*FULL, MIDDLE]},
}
LONG_PARTS = ["adapter", "base", "training"]
SHORT_PARTS = ["base", "training", "adapter", "whole", "tests"]
ROOT = Path(__file__).resolve().parents[1]
TRAINED_IN = 60
"""Seconds to allow for twenty steps, without making an engine."""
OURS_IN = 110
"""Seconds to keep for our own engine's shortened cases."""
Row = dict[str, Any]


class Results:
    """Prints rows, and appends them to a file."""

    def __init__(self, path: Path | None, about: Row) -> None:
        self.path, self.about = path, about

    def add(self, **row: Any) -> None:
        rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}
        print("  ".join(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
                        for name, value in rounded.items()), flush=True)  # fmt: skip
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.about | rounded) + "\n")


class Memory:
    """The most of the device's memory in use within a block, whoever allocates it."""

    def __enter__(self) -> "Memory":
        self.used, self._end = used_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            self.used = max(self.used, used_bytes())

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def used_bytes() -> int:
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def make_folder(shape: str, root: Path) -> Path:
    """Save a model with random weights: vLLM loads it from there."""
    folder = root / f"model-{shape}"
    if not folder.exists():
        torch.manual_seed(0)
        config = Qwen3Config(max_position_embeddings=40_960, tie_word_embeddings=True, **SHAPES[shape])
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(model_path()).save_pretrained(folder)
    return folder


def load(folder: Path, *, adapted: bool) -> PreTrainedModel | PeftModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).requires_grad_(False)
    torch.nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
    if adapted:
        torch.manual_seed(1)
        model = get_peft_model(model, LoraConfig(r=64, lora_alpha=128, target_modules="all-linear"))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=1e-3)
    return model.eval()


def make_prompts(case: Case, vocabulary: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(case.problems * case.prompt)
    problems = [
        torch.randint(5, vocabulary, (case.prompt,), generator=generator).tolist() for _ in range(case.problems)
    ]
    return [tuple(prompt) for prompt in problems for _ in range(case.samples)]


def rollout_config(engine: str, share: float, **settings: Any) -> RolloutConfig:
    values = {"engine": engine, "max_batch": ROWS, "vllm": {"memory_share": share}, **settings}
    return RolloutConfig.model_validate(values)


def measure(part: str, options: argparse.Namespace, folder: Path, results: Results, left: Callable[[], float]) -> None:
    """Time the cases of a part with one engine; also the drift, and the memory that is free while it sleeps."""
    cases = [case for case in PARTS[part] if not options.cases or options.cases in case.name]
    cases = [Case(c.name, min(c.problems, 2), 40, 8, 1, c.samples, c.mean and 4) if options.tiny else c for c in cases]
    if options.engine == "vllm" and left() < MADE_IN + cases[0].seconds:
        print(f"{part}: left out, {left():.0f} s left", flush=True)
        return
    model, tokenizer = load(folder, adapted=part == "adapter"), AutoTokenizer.from_pretrained(folder)
    vocabulary, longest = model.config.vocab_size, max(case.prompt + case.tokens for case in cases)
    start, before = time.perf_counter(), used_bytes()
    engine: Any = make_engine(rollout_config(options.engine, options.share), model, tokenizer, longest=longest + 8)
    engine.stop = frozenset()
    results.add(part=part, made_in=time.perf_counter() - start, model_gib=before / GIB, asleep_gib=used_bytes() / GIB)
    if isinstance(model, PeftModel):
        drift(engine, model, make_prompts(cases[0], vocabulary)[:8], results)
    time_cases(part, cases, engine, vocabulary, results, left)
    engine.close()
    del engine, model
    torch.cuda.empty_cache()


def time_cases(
    part: str, cases: list[Case], engine: Any, vocabulary: int, results: Results, left: Callable[[], float]
) -> None:
    for case in cases:
        if left() < case.seconds * 1.2:
            print(f"{part}, {case.name}: left out, {left():.0f} s left", flush=True)
            continue
        try:
            time_case(part, case, engine, make_prompts(case, vocabulary), vocabulary, results)
        except Exception as error:
            results.add(part=part, case=case.name, failed=f"{type(error).__name__}: {error}"[:300])


def drift(engine: RolloutEngine, model: PeftModel, prompts: list[tuple[int, ...]], results: Results) -> None:
    """What the engine says of its tokens against what the model itself says."""
    sampling = SamplingConfig(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=64)
    found = engine.generate(prompts, sampling, range(len(prompts)), measured=len(prompts))
    if found[0].logprobs is not None:
        settings = DriftConfig(rollouts=len(prompts), tokens=64, tolerance=1.0)
        checked = DriftCheck(model, settings, half=True)(prompts, found)
        assert checked is not None
        results.add(part="drift", mean=checked.mean, largest=checked.largest)


def time_case(
    part: str, case: Case, engine: Any, prompts: list[tuple[int, ...]], vocabulary: int, results: Results
) -> None:
    sampling = SamplingConfig(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=case.tokens)
    engine.stop = frozenset(range(0, vocabulary, case.mean)) if case.mean else frozenset()
    if case.warm:
        engine.generate(prompts, sampling.model_copy(update={"max_new_tokens": 24}), range(len(prompts)))
    reading = 0.0
    if case.steps_alone:
        start = time.perf_counter()
        engine.generate(prompts, sampling.model_copy(update={"max_new_tokens": 1}), range(len(prompts)))
        reading = time.perf_counter() - start
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with Memory() as memory:
        start = time.perf_counter()
        found = engine.generate(prompts, sampling, range(len(prompts)))
        seconds = time.perf_counter() - start - reading
    lengths = [len(completion.ids) - case.steps_alone for completion in found]
    results.add(
        part=part, case=case.name, tokens=sum(lengths), longest=max(lengths), seconds=seconds, reading=reading,
        rate=round(sum(lengths) / seconds), peak_gib=memory.used / GIB, after_gib=used_bytes() / GIB,
    )  # fmt: skip


def train(
    options: argparse.Namespace, folder: Path, results: Results, left: Callable[[], float],
    made: tuple[PeftModel, RolloutEngine] | None = None,
) -> None:  # fmt: skip
    """Twenty steps; the run itself checks the drift of every fifth. `made`: the model and its engine, left open."""
    if left() < (TRAINED_IN if made else (MADE_IN if options.engine == "vllm" else 20) + 60):
        print(f"training: left out, {left():.0f} s left", flush=True)
        return
    steps, limit, problems = (2, 8, 4) if options.tiny else (20, 256, 16) if made else (20, 512, 32)
    rollout = rollout_config(options.engine, 0.4, max_new_tokens=limit, drift={"every": 5, "tolerance": 1.0})
    with tempfile.TemporaryDirectory() as output:
        trainer = OPASDTrainer(
            model=made[0] if made else load(folder, adapted=True),
            engine=made[1] if made else None,
            args=TrainingArguments(
                output_dir=output, max_steps=steps, per_device_train_batch_size=problems, learning_rate=1e-5,
                report_to=[], save_strategy="no", bf16=torch.cuda.is_available(), use_cpu=not torch.cuda.is_available(),
            ),
            config=OPASDConfig.model_validate(
                {"rollout": rollout.model_dump(), "validation": {"every": 0}, "save_samples_every": 0}
            ),
            train_dataset=make_problems("train", steps * problems, 0),
            processing_class=AutoTokenizer.from_pretrained(folder),
        )  # fmt: skip
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        asleep = used_bytes()
        if made is None:
            trainer.close()
        lines = (Path(output) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "grad_norm" in row]
    timed = {name: [row[name] for row in rows[2:]] for name in rows[-1] if name.startswith("seconds/")}
    results.add(
        part="training", steps=len(rows), rollouts=problems, tokens=limit, seconds=seconds, asleep_gib=asleep / GIB,
        first_loss=rows[0]["loss"], last_loss=rows[-1]["loss"],
        drift=max((row["rollout/drift"] for row in rows if "rollout/drift" in row), default=None),
        **{name: sum(values) / len(values) for name, values in timed.items() if values},
    )  # fmt: skip


def shortened(options: argparse.Namespace, folder: Path, results: Results, left: Callable[[], float]) -> None:
    """Run the parts of one engine, which is made once; cases leave the time that a training after them needs."""
    cases = SHORTENED[options.engine] | {"whole": [WHOLE]}
    if options.tiny:
        cases = {
            part: [Case(c.name, 2, 40, 8, 1, steps_alone=c.steps_alone) for c in some] for part, some in cases.items()
        }
    model, tokenizer = load(folder, adapted=True), AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, PeftModel)
    vocabulary, longest = model.config.vocab_size, WHOLE.prompt + WHOLE.tokens
    start, before = time.perf_counter(), used_bytes()
    engine: Any = make_engine(rollout_config(options.engine, options.share), model, tokenizer, longest=longest + 8)
    stop = engine.stop
    results.add(part="made", made_in=time.perf_counter() - start, model_gib=before / GIB, asleep_gib=used_bytes() / GIB)

    def run(part: str, kept: float) -> None:
        if part == "training":
            engine.stop = stop
            train(options, folder, results, left, (model, engine))
            model.eval()
            gc.collect()  # the optimizer's memory is not the engine's
        elif part == "base":
            with as_base(engine, model):
                time_cases("base", cases["base"], engine, vocabulary, results, lambda: left() - kept)
        else:
            if part == "adapter":
                engine.stop = frozenset()
                drift(engine, model, make_prompts(cases["adapter"][0], vocabulary)[:8], results)
            time_cases("adapter", cases[part], engine, vocabulary, results, lambda: left() - kept)

    for place, part in enumerate(options.parts):
        try:
            run(part, TRAINED_IN if "training" in options.parts[place + 1 :] and not options.tiny else 0)
        except Exception as error:
            results.add(part=part, failed=f"{type(error).__name__}: {error}"[:1000])
    engine.close()


@contextmanager
def as_base(engine: Any, model: PeftModel) -> Iterator[None]:
    """Sample without the adapter within a block."""
    student = getattr(engine, "student", None)
    if student is None:
        with model.disable_adapter():
            yield
        return
    engine.student = None
    engine.use_adapter(None)
    try:
        yield
    finally:
        engine.student = student


def both(options: argparse.Namespace, began: float) -> None:
    """Run each engine in a process of its own and then the tests, within the budget; end with the table."""
    output = options.both
    output.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")])
    )

    def left() -> float:
        return options.budget - (time.perf_counter() - began)

    def run(name: str, command: list[str], seconds: float) -> None:
        print(f"== {name}, at most {seconds:.0f} s", flush=True)
        try:
            code = subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            code = None
        print(
            f"== {name}: {'ended at its limit' if code is None else f'exit code {code}'}; {left():.0f} s left",
            flush=True,
        )

    parts = [part for part in options.parts if part != "tests"]
    own = [str(Path(__file__).resolve()), "--shortened", "--parts", ",".join(parts), "--share", str(options.share)]
    own += ["--models", str(options.models), *(["--tiny"] if options.tiny else [])]
    engines = [options.engine] if options.engine else ["vllm", "transformers"]
    for engine in engines if parts else []:
        budget = max(left() - (0 if engine == engines[-1] else OURS_IN), 1)
        arguments = ["--engine", engine, "--budget", f"{budget - 5:.0f}", "--json", str(output / f"{engine}.jsonl")]
        run(engine, [*own, *arguments], budget)
    if "tests" in options.parts:
        for name in ("test_gpu", "test_gpu_weights"):
            if left() < 30:
                print(f"{name}: left out, {left():.0f} s left", flush=True)
                continue
            tests = ["-m", "pytest", "-v", "-p", "no:cacheprovider", f"tests/vllm/{name}.py"]
            run(name, [*tests, f"--junitxml={output / name}.xml"], left())
    table(sorted(output.glob("*.jsonl")))


def table(paths: list[Path]) -> None:
    """Print the rates and the memory of all engines side by side."""
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    engines = sorted({row["engine"] for row in rows})
    print("| | " + " | ".join(f"`{engine}`" for engine in engines) + " |")
    print("|---" * (1 + len(engines)) + "|")
    for part, case in dict.fromkeys((row["part"], row["case"]) for row in rows if "rate" in row):
        found = {
            row["engine"]: row for row in rows if row["part"] == part and row.get("case") == case and "rate" in row
        }
        cells = (
            f"{found[name]['rate']:,} tokens/s, {found[name]['peak_gib']:.0f} GiB" if name in found else "–"
            for name in engines
        )
        print(f"| {part}: {case} | " + " | ".join(cells) + " |")
    for row in rows:
        if "rate" not in row:
            print(json.dumps(row))


def versions() -> Row:
    found: Row = {"torch": torch.__version__}
    for name in ("transformers", "peft", "triton", "vllm"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["transformers", "vllm"], help="transformers; with --both both")
    parser.add_argument("--parts", help=f"{','.join(LONG_PARTS)}; with --both {','.join(SHORT_PARTS)}")
    parser.add_argument("--cases", default="", help="only cases with this in their name")
    parser.add_argument("--budget", type=float, default=540, help="seconds for everything")
    parser.add_argument("--share", type=float, default=0.8, help="of the memory, for vLLM")
    parser.add_argument("--json", type=Path, help="file to append results to")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()), help="folder for the model")
    parser.add_argument("--tiny", action="store_true", help="try the script itself, also without a GPU")
    parser.add_argument("--shortened", action="store_true", help="the shortened parts of one engine")
    parser.add_argument("--both", type=Path, metavar="OUTPUT", help="both engines, shortened, then the tests")
    parser.add_argument("--table", type=Path, nargs="+", help="files of results to print side by side")
    options = parser.parse_args()
    if options.table:
        table(options.table)
        return
    known = SHORT_PARTS if options.both or options.shortened else LONG_PARTS
    options.parts = options.parts.split(",") if options.parts else known
    if unknown := [part for part in options.parts if part not in known]:
        parser.error(f"--parts: {', '.join(unknown)} is none of {', '.join(known)}")
    if options.both:
        both(options, began)
        return
    options.engine = options.engine or "transformers"
    shape = "tiny" if options.tiny else "1.7b"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    results = Results(options.json, {"engine": options.engine, "shape": shape, "device": device} | versions())
    print(json.dumps(results.about), flush=True)
    folder = make_folder(shape, options.models)

    def left() -> float:
        return options.budget - (time.perf_counter() - began)

    for part in ["shortened"] if options.shortened else options.parts:
        try:
            if part == "shortened":
                shortened(options, folder, results, left)
            elif part == "training":
                train(options, folder, results, left)
            else:
                measure(part, options, folder, results, left)
        except Exception as error:
            results.add(part=part, failed=f"{type(error).__name__}: {error}"[:1000])
    if options.tiny:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
