"""Both contexts of every problem, as a run makes them before its first step: time, and memory that stays.

    python benchmarks/prompts.py [--tokenizer FOLDER] [--problems 1000] [--characters 9000]

One problem at a time (`PromptBuilder.pair`) against all of them (`PromptBuilder.pairs`), in turns, the faster of two
each; and the bytes that a token's id takes as they are kept, against a list of pairs. Solutions are chains of
arithmetic of about the given length.
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable, Sequence

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from opasd.config import PromptConfig
from opasd.data.made.arithmetic import make_problems
from opasd.data.problems import Problem
from opasd.lab import model_path
from opasd.prompts.pairs import PromptBuilder, PromptPair


def problems(count: int, characters: int) -> list[Problem]:
    """Long ones."""
    made = make_problems("train", 512)
    lines = [problem.solution for problem in made]
    length = sum(map(len, lines)) // len(lines) + 1
    some = max(1, characters // length)
    return [
        Problem(made[n % 512].question, "\n".join(lines[(n + k) % 512] for k in range(some)), id=str(n))
        for n in range(count)
    ]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def memory(work: Callable[[], Sequence[PromptPair]]) -> float:
    """Bytes a token that stay."""
    tracemalloc.start()
    kept = work()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / sum(len(pair.student_ids) + len(pair.teacher_ids) for pair in kept)


def measure(tokenizer: PreTrainedTokenizerBase, count: int, characters: int) -> dict[str, tuple[float, float]]:
    """Milliseconds a problem and bytes a token, of both ways."""
    builder = PromptBuilder(tokenizer, PromptConfig(max_student_tokens=1 << 20, max_teacher_tokens=1 << 20))
    given = problems(count, characters)
    ways: dict[str, Callable[[], Sequence[PromptPair]]] = {
        "one at a time": lambda: [builder.pair(problem) for problem in given],
        "all": lambda: builder.pairs(given)[0],
    }
    builder.pairs(given[:64])
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(2):
        for name, work in ways.items():
            found[name].append(seconds(work))
    few = given[: max(1, count // 10)]
    few_ways = {"one at a time": lambda: [builder.pair(p) for p in few], "all": lambda: builder.pairs(few)[0]}
    return {name: (1000 * min(found[name]) / count, memory(few_ways[name])) for name in ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default=str(model_path()), help="a model's folder (default: the embedded one)")
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--characters", type=int, default=9000, help="length of a solution")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    one = PromptBuilder(tokenizer, PromptConfig(max_teacher_tokens=1 << 20)).pair(problems(1, options.characters)[0])
    print(f"{options.problems} problems, {len(one.student_ids)} + {len(one.teacher_ids)} tokens\n")
    print(f"{'':<14} {'ms a problem':>13} {'bytes a token':>14}")
    for name, (milliseconds, held) in measure(tokenizer, options.problems, options.characters).items():
        print(f"{name:<14} {milliseconds:>13.2f} {held:>14.1f}")


if __name__ == "__main__":
    main()
