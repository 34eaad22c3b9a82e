"""Write training problems of `lookup` whose pointers name as many statements that no step needs.

    python results/lookup/wrong.py wrong.jsonl

They are a control: an attention target that is as sharp and points elsewhere. Questions, solutions and answers are the
task's own, in its own order.
"""

import json
import random
import sys

from opasd.data.made.lookup import make_puzzles

COUNT = 1408  # what lookup.yaml draws

with open(sys.argv[1], "x") as file:
    for puzzle in make_puzzles("train", COUNT):
        needed = {int(number) for number in puzzle.pointers.split(", ")}
        others = [number for number in range(1, len(puzzle.statements) + 1) if number not in needed]
        wrong = random.Random(puzzle.id).sample(others, len(needed))
        row = {"question": puzzle.question, "solution": puzzle.solution, "answer": puzzle.answer}
        file.write(json.dumps({**row, "pointers": ", ".join(map(str, wrong))}) + "\n")
