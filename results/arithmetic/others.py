"""The training problems of `arithmetic`, each with the next one's solution: what the sight of *any* solution teaches.

    python results/arithmetic/others.py others.jsonl

Answers stay the problems' own, so that rollouts are graded as ever.
"""

import json
import sys

from opasd.data.made.arithmetic import SIZES, make_problems

problems = make_problems("train", SIZES["train"])
with open(sys.argv[1], "x") as file:
    for problem, other in zip(problems, [*problems[1:], problems[0]], strict=True):
        row = {"question": problem.question, "solution": other.solution, "answer": problem.answer}
        file.write(json.dumps(row) + "\n")
