"""Rollouts on one GPU: the `transformers` engine beside plain `generate` and transformers' own continuous batching.

    python benchmarks/generation.py [--cases 1.7b,1.7b-lora] [--plain-tokens 256] [--json benchmarks/results/x.json]

Random weights in bfloat16, prompts of 192 to 320 tokens, the paper's sampling. Nothing ends early except in the case
`ends`, where one token in 100 does and 256 prompts share 128 rows. Before a time is printed the engine's greedy tokens
in float32 must be those of `generate`, and a contender's sampled tokens must be ones that the model finds likely.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from opasd.config import SamplingConfig
from opasd.model.unwrap import unwrap
from opasd.rollout.transformers.engine import TransformersEngine

VOCABULARY = 151_936
SHAPES: dict[str, Callable[[], PreTrainedConfig]] = {
    "1.7b": lambda: Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, tie_word_embeddings=True,
    ),
    "0.5b": lambda: Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True,
    ),
}  # fmt: skip
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SAMPLING = SamplingConfig(temperature=1.1, top_p=0.95, top_k=20)


@dataclass(frozen=True)
class Case:
    shape: str
    lora: bool
    prompts: int
    tokens: int
    rows: int
    plain_tokens: int
    """New tokens of the slow contenders, whose time is next to proportional to them."""
    ends: bool = False


CASES = {
    "1.7b": Case("1.7b", False, 64, 1024, 64, 1024),
    "1.7b-lora": Case("1.7b", True, 64, 1024, 64, 128),
    "0.5b-64": Case("0.5b", False, 64, 288, 64, 288),
    "0.5b-256": Case("0.5b", False, 256, 288, 256, 288),
    "0.5b-lora-256": Case("0.5b", True, 256, 288, 256, 128),
    "ends": Case("0.5b", False, 256, 288, 128, 288, ends=True),
}
Tokens = list[list[int]]
Contender = Callable[[int], Tokens]


def make_model(case: Case, dtype: torch.dtype, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    with torch.device("cuda"):
        model: nn.Module = AutoModelForCausalLM.from_config(SHAPES[case.shape](), dtype=dtype)
        if case.lora:
            model = get_peft_model(unwrap(model), LoraConfig(r=64, lora_alpha=128, target_modules=LINEAR))
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    nn.init.normal_(parameter, std=0.01)
    unwrap(model).generation_config = GenerationConfig(pad_token_id=0, eos_token_id=None)
    return model.eval()


def make_prompts(count: int, seed: int) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(192, 321, (count,), generator=generator).tolist()
    return [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def plain_generate(model: nn.Module, prompts: Tokens, limit: int, **settings: Any) -> Tokens:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device="cuda")
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device="cuda")
    output = unwrap(model).generate(  # pyright: ignore[reportCallIssue]
        input_ids=ids, attention_mask=mask, max_new_tokens=limit, pad_token_id=0, **settings
    )
    return output[:, longest:].tolist()


def contenders(case: Case, model: nn.Module, prompts: Tokens, stop: frozenset[int]) -> dict[str, Contender]:
    eos = sorted(stop) or None
    drawn = {"do_sample": True, "temperature": SAMPLING.temperature, "top_k": SAMPLING.top_k, "top_p": SAMPLING.top_p}
    fast, padded = (TransformersEngine(model, stop, case.rows, decoding=way) for way in ("slots", "padded"))

    def in_parts(limit: int) -> Tokens:
        parts = [prompts[start : start + case.rows] for start in range(0, len(prompts), case.rows)]
        return [row for part in parts for row in plain_generate(model, part, limit, eos_token_id=eos, **drawn)]

    def continuous(limit: int) -> Tokens:
        settings = GenerationConfig(max_new_tokens=limit, eos_token_id=eos or -1, pad_token_id=0, **drawn)
        base: Any = unwrap(model)
        found = base.generate_batch(inputs=prompts, generation_config=settings)
        return [output.generated_tokens for output in found.values()]

    def engine(limit: int, one: TransformersEngine) -> Tokens:
        sampling = SAMPLING.model_copy(update={"max_new_tokens": limit})
        return [list(completion.ids) for completion in one.generate(prompts, sampling, range(len(prompts)))]

    return {
        "engine, first call": lambda limit: engine(limit, fast),
        "engine": lambda limit: engine(limit, fast),
        "plain generate": in_parts,
        "continuous batching": continuous,
        "engine, padded batches": lambda limit: engine(limit, padded),
    }


# ---- nothing is timed that is not right -----------------------------------------------------------------------------


def check_greedy(case: Case, seed: int) -> None:
    """In float32, where rounding decides between next to no two tokens."""
    model, prompts = make_model(case, torch.float32, seed), make_prompts(4, seed + 1)
    expected = plain_generate(model, prompts, 24, do_sample=False)
    greedy = SamplingConfig(temperature=0, max_new_tokens=24)
    found = TransformersEngine(model, frozenset(), decoding="slots").generate(prompts, greedy, range(4))
    if [list(completion.ids) for completion in found] != expected:
        sys.exit(f"{case}: the engine's greedy tokens are not those of generate: no times are printed")


@torch.no_grad()
def check_likely(model: nn.Module, prompts: Tokens, completions: Tokens, limit: int, ends: bool) -> str:
    """What is wrong with completions: top-k keeps 20, so the model's own forward must have each among 40."""
    if len(completions) != len(prompts) or (not ends and any(len(ids) != limit for ids in completions)):
        return f"{len(completions)} completions of {sorted({len(ids) for ids in completions})[:5]} tokens"
    for place in (0, len(prompts) // 2):
        drawn = completions[place]
        ids = torch.tensor([prompts[place] + drawn], device="cuda")
        logits_TV = unwrap(model)(input_ids=ids, use_cache=False, logits_to_keep=len(drawn) + 1).logits[0, :-1]
        likely_TK = logits_TV.topk(40, -1).indices
        share = float((likely_TK == torch.tensor(drawn, device="cuda")[:, None]).any(-1).float().mean())
        if share < 0.98:
            return f"only {share:.1%} of row {place}'s tokens are likely ones"
    return ""


# ---- measuring ------------------------------------------------------------------------------------------------------


def measure(
    case: Case, names: Sequence[str], plain_tokens: int, seed: int, rows: list[dict[str, Any]], save: Callable[[], None]
) -> None:
    """Adds a row for each contender to `rows`."""
    check_greedy(case, seed)
    model, prompts = make_model(case, torch.bfloat16, seed), make_prompts(case.prompts, seed + 1)
    stop = frozenset(range(0, VOCABULARY, 100)) if case.ends else frozenset()
    for name, contender in contenders(case, model, prompts, stop).items():
        if name not in names:
            continue
        limit = (
            case.tokens if name.startswith("engine") and "padded" not in name else min(case.plain_tokens, plain_tokens)
        )
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        weights = torch.cuda.memory_allocated()
        try:
            if name != "engine, first call":
                contender(24)  # libraries set themselves up
            torch.cuda.synchronize()
            start = time.perf_counter()
            found = contender(limit)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        except Exception as error:
            print(f"{name:26s}  failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            rows.append({"name": name, "failed": f"{type(error).__name__}: {error}"})
            continue
        if case.ends:
            found = [ids[: next((i + 1 for i, token in enumerate(ids) if token in stop), len(ids))] for ids in found]
        wrong = check_likely(model, prompts, found, limit, case.ends)
        if wrong:
            print(f"{name:26s}  wrong: {wrong}", flush=True)
            rows.append({"name": name, "failed": wrong})
            continue
        tokens = sum(map(len, found))
        row = {
            "name": name, "new_tokens": limit, "tokens": tokens, "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "ms_per_step": None if case.ends else 1000 * seconds / limit,
            "extra_gib": (torch.cuda.max_memory_allocated() - weights) / 2**30,
        }  # fmt: skip
        rows.append(row)
        step = "" if case.ends else f"{row['ms_per_step']:10.2f}"
        print(
            f"{name:26s}{limit:8d}{seconds:10.2f}{row['tokens_per_second']:12.0f}{step:>10s}{row['extra_gib']:10.1f}",
            flush=True,
        )
        save()
    by_name = {row["name"]: row for row in rows if "failed" not in row}
    if {"plain generate", "engine"} <= set(by_name):
        ratio = by_name["engine"]["tokens_per_second"] / by_name["plain generate"]["tokens_per_second"]
        print(f"engine over plain generate: {ratio:.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--contenders", default="", help="names with ; between them; all by default")
    parser.add_argument(
        "--plain-tokens", type=int, default=10**9, help="at most so many new tokens of the slow contenders"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA GPU")
    every = ["engine, first call", "engine", "plain generate", "continuous batching", "engine, padded batches"]
    names = arguments.contenders.split(";") if arguments.contenders else every
    versions = {module.__name__: module.__version__ for module in (torch, transformers, peft)}
    about = {
        "command": " ".join(sys.argv), "seed": arguments.seed, "device": torch.cuda.get_device_name(),
        "python": platform.python_version(), "versions": versions,
    }  # fmt: skip
    print(json.dumps(about))
    results: dict[str, Any] = {"about": about, "cases": {}}

    def save() -> None:
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")

    for name in arguments.cases.split(","):
        case = CASES[name]
        ends = ", a token in 100 ends" if case.ends else ""
        print(f"\n{name}: {case.prompts} prompts in {case.rows} rows, {case.tokens} new tokens, LoRA {case.lora}{ends}")
        print(f"{'':26s}{'limit':>8s}{'seconds':>10s}{'tokens/s':>12s}{'ms/step':>10s}{'GiB':>10s}")
        results["cases"][name] = []
        measure(case, names, arguments.plain_tokens, arguments.seed, results["cases"][name], save)
        save()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
