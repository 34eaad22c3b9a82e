"""Write MATH's training problems without the first 300, which are held out. The sweeps beside this file need them.

    python results/math/data.py train.jsonl math-train.jsonl

`train.jsonl` has `problem`, `solution` and `answer` of the 6,936 rows of data/math/train.parquet of mignonjia/verl (by
way of DigitalLearningGmbH/MATH-lighteval), in their order. Those without a final answer, or with a solution of 3,000
characters or more, are left out; 6,609 rows remain.
"""

import json
import sys

HELD_OUT, LONGEST = 300, 3000

with open(sys.argv[1], encoding="utf-8") as source, open(sys.argv[2], "x", encoding="utf-8") as file:
    for row in list(map(json.loads, source))[HELD_OUT:]:
        if row["answer"] and len(row["solution"]) < LONGEST:
            file.write(json.dumps({key: row[key] for key in ("problem", "solution", "answer")}) + "\n")
