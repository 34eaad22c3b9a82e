"""Chains of four operations with worked solutions, for docs/experiments.md: python results/arithmetic/make.py FOLDER

Writes arithmetic-train.jsonl (4,096 problems), arithmetic-validation.jsonl (400) and arithmetic.jsonl (1,000, the test
set); no problem is in two of them. The solutions are written as Qwen2.5-Coder writes such answers itself.
"""

import json
import random
import sys
from pathlib import Path

SIZES = {"arithmetic-train": 4096, "arithmetic-validation": 400, "arithmetic": 1000}
STEPS = 4


def problem(draw: random.Random) -> dict[str, str]:
    number = draw.randint(12, 99)
    words, lines = [f"Start with {number}."], [f"1. Start with {number}."]
    while len(lines) <= STEPS:
        name = draw.choice(["Add", "Subtract", "Multiply"])
        other = draw.randint(3, 9) if name == "Multiply" else draw.randint(12, 396)
        result = {"Add": number + other, "Subtract": number - other, "Multiply": number * other}[name]
        if not 0 < result <= 5000:
            continue
        told = f"{name} by {other}" if name == "Multiply" else f"{name} {other}"
        sign = {"Add": "+", "Subtract": "-", "Multiply": "\\times"}[name]
        words.append(f"{told}.")
        lines.append(f"{len(lines) + 1}. {told}: \\({number} {sign} {other} = {result}\\).")
        number = result
    return {
        "problem": f"{' '.join(words)} What number is the result?",
        "solution": "\n".join([*lines, "", f"Therefore, the result is \\(\\boxed{{{number}}}\\)."]),
        "answer": str(number),
    }


def main() -> None:
    folder, draw, seen = Path(sys.argv[1]), random.Random(2026), set()
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        rows = []
        while len(rows) < size:
            row = problem(draw)
            if row["problem"] not in seen:
                seen.add(row["problem"])
                rows.append(json.dumps(row))
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
