"""Evaluation of the embedded model over its whole test split against one prompt at a time, in the same run.

    python benchmarks/evaluation.py [--problems 1200] [--alone 40]

Tokens a second, and how many cores were at work: processor time over wall time. One at a time is measured on a few
problems spread over the split, before and after the rest, and the faster of the two is taken.
"""

import argparse
import time

import torch

from opasd.config import ModelConfig, RolloutConfig
from opasd.evaluation.benchmarks import load, packaged
from opasd.evaluation.loop import Base
from opasd.evaluation.profiles import PROFILES
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.engine import derive_seed

LAB = ModelConfig(name_or_path="lab")


def measure(problems: int, alone: int, max_batch: int = 256) -> dict[str, tuple[float, float]]:
    """Tokens a second and cores at work, of both ways."""
    base = Base(LAB, RolloutConfig(max_batch=max_batch))
    benchmark, profile = load(packaged()["lab"], limit=problems), PROFILES["lab"]
    builder = PromptBuilder(base.tokenizer, benchmark.entry.prompts())
    prompts = [builder.student_ids(problem.question, thinking=False) for problem in benchmark.problems]
    seeds = [derive_seed(0, problem.id, 0) for problem in benchmark.problems]
    engine = base.engine(1024, [])
    few = range(0, problems, max(problems // alone, 1))

    def timed(batches: list[list[int]]) -> tuple[float, float]:
        wall, busy, tokens = time.perf_counter(), time.process_time(), 0
        for batch in batches:
            found = engine.generate([prompts[i] for i in batch], profile.sampling, [seeds[i] for i in batch])
            tokens += sum(len(completion.ids) for completion in found)
        seconds = time.perf_counter() - wall
        return tokens / seconds, (time.process_time() - busy) / seconds

    one_by_one = [[index] for index in few]
    timed(one_by_one[:2])
    before, together, after = timed(one_by_one), timed([list(range(problems))]), timed(one_by_one)
    return {"one prompt at a time": max(before, after), "evaluation": together}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1200)
    parser.add_argument("--alone", type=int, default=40, help="problems answered one at a time")
    options = parser.parse_args()
    found = measure(options.problems, options.alone)
    print(f"{torch.get_num_threads()} threads, {options.problems} problems\n")
    print(f"{'':<22} {'tokens/s':>9} {'cores':>6}")
    for name, (speed, cores) in found.items():
        print(f"{name:<22} {speed:>9,.0f} {cores:>6.2f}")
    print(f"\n{found['evaluation'][0] / found['one prompt at a time'][0]:.1f} times")


if __name__ == "__main__":
    main()
