"""Tokens a second of the rollout engines on the same prompts, in the same process, one after the other.

    .venv-vllm/bin/python benchmarks/engines.py        # or make test-vllm, which ends with it

The embedded model answers problems of its own task, greedily, up to its own stop token, so all engines give the same
tokens; that is checked. CPU seconds count besides wall seconds, which a busy machine stretches.
"""

import argparse
import time
from importlib.util import find_spec

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from opasd.config import PromptConfig, RolloutConfig, SamplingConfig
from opasd.data.made.counts import make_problems
from opasd.lab import model_path
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.engine import RolloutEngine
from opasd.rollout.factory import make_engine

LONGEST = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rank", type=int, default=16, help="of the adapter; 0 leaves it out")
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32).eval()
    if options.rank:
        model = get_peft_model(
            model, LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear")
        )
    builder = PromptBuilder(tokenizer, PromptConfig())
    prompts = [builder.student_ids(p.question) for p in make_problems("test", options.prompts, 0)]
    sampling = SamplingConfig(temperature=0, max_new_tokens=options.tokens)
    found = []
    print(f"{options.prompts} prompts, {'rank ' + str(options.rank) if options.rank else 'no'} adapter")
    print(f"{'engine':<14} {'tokens':>8} {'wall s':>8} {'tokens/s':>9} {'CPU s':>7} {'tokens/CPU s':>13}")
    for name in ("transformers", "vllm"):
        if name == "vllm" and find_spec("vllm") is None:
            print("vllm           not installed")
            continue
        config = RolloutConfig.model_validate(
            {"engine": name, "vllm": {"memory_share": 0.1, "cache_bytes": 256 << 20}, "max_batch": 256}
        )
        engine = make_engine(config, model, tokenizer, longest=LONGEST)
        engine.generate(prompts[:8], sampling, range(8))  # both warm up
        found.append(measured(name, engine, prompts, sampling))
        engine.close()
    if len(found) == 2:
        same = sum(ours == theirs for ours, theirs in zip(*found, strict=True))
        print(f"{same} of {len(prompts)} completions are equal token for token")


def measured(
    name: str, engine: RolloutEngine, prompts: list[tuple[int, ...]], sampling: SamplingConfig
) -> list[tuple[int, ...]]:
    wall, cpu = time.perf_counter(), time.process_time()
    completions = engine.generate(prompts, sampling, range(len(prompts)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    count = sum(len(completion.ids) for completion in completions)
    print(f"{name:<14} {count:>8} {wall:>8.2f} {count / wall:>9.0f} {cpu:>7.2f} {count / cpu:>13.0f}")
    return [completion.ids for completion in completions]


if __name__ == "__main__":
    main()
