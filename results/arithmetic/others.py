"""Write the training problems of `arithmetic`, each with the next problem's solution.

    python results/arithmetic/others.py others.jsonl

They show what the sight of *any* solution teaches. Each problem keeps its own answer, by which rollouts are graded.
"""

import json
import sys

from opasd.data.made.arithmetic import SIZES, make_problems

problems = make_problems("train", SIZES["train"])
with open(sys.argv[1], "x") as file:
    for problem, other in zip(problems, [*problems[1:], problems[0]], strict=True):
        row = {"question": problem.question, "solution": other.solution, "answer": problem.answer}
        file.write(json.dumps(row) + "\n")
