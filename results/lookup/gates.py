"""Measure the gate of `lookup` with other wordings of the pointers, at single heads and at the forks alone.

    python results/lookup/gates.py             # needs models/lookup
    python results/lookup/gates.py stubborn    # needs models/stubborn; reads the recipe's wording alone

It puts what it read into gates.json, under the model's name.

The gate asks that the target have twice the student's attention on the statement that a step needs. A wording is a
teacher's message, a reference, and how the pointers are written. All are read on the same 10 validation problems; those
of `KEPT` are read on 30 others, and on 20 answers that the student sampled at temperature 1. No model is trained.

`fork` is the first step about a statement, where the student chooses it. `undecided`: the student's entropy is above
0.5 nats. `5.2` is a head: its own attention, without a mean over heads. `python results/tables.py lookup` prints it.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from opasd.config import PromptConfig
from opasd.data.made import needed_spans
from opasd.data.made.lookup import Puzzle, make_puzzles
from opasd.data.problems import Problem
from opasd.evaluation.statistics import mean_of
from opasd.losses import projection
from opasd.losses.attention import attention_heads
from opasd.losses.attention_chunked import seen_by_both
from opasd.model.looking import decoder, inside
from opasd.model.scoring import Scorer
from opasd.prompts.alignment import align
from opasd.prompts.needs import needed_steps
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout

RECORD = Path(__file__).with_name("gates.json")
BEFORE, AFTER = "{reference}Problem: {question}\n\n{instruction}", PromptConfig().teacher
USE, ANSWER = "Use statements {pointers}.\n\n", "The final answer is {answer}.\n\n"
LAYERS, ENTROPY = (4, 5), 0.5


def numbers(puzzle: Puzzle) -> list[str]:
    return puzzle.pointers.split(", ")


def names(puzzle: Puzzle) -> list[str]:
    return [f"{one.person}'s {one.item}" for one in puzzle.needed]


def numbered(puzzle: Puzzle, texts: Sequence[str]) -> str:
    return ", ".join(f"({number}) {text}" for number, text in zip(numbers(puzzle), texts, strict=True))


Wording = tuple[str, str, Callable[[Puzzle], str]]
WORDINGS: dict[str, Wording] = {
    "Use statements 3, 1. (the recipe's)": (BEFORE, USE, lambda one: one.pointers),
    "the same after the problem": (AFTER, USE, lambda one: one.pointers),
    "twice": (BEFORE, USE, lambda one: ". Use statements ".join([one.pointers] * 2)),
    "three times": (BEFORE, USE, lambda one: ". Use statements ".join([one.pointers] * 3)),
    "3, 3, 1, 1": (BEFORE, USE, lambda one: ", ".join(f"{number}, {number}" for number in numbers(one))),
    "in the problem's order": (BEFORE, USE, lambda one: ", ".join(sorted(numbers(one), key=int))),
    "the last one first": (BEFORE, USE, lambda one: ", ".join(numbers(one)[::-1])),
    "3, then 1": (BEFORE, USE, lambda one: ", then ".join(numbers(one))),
    "(3), (1)": (BEFORE, USE, lambda one: ", ".join(f"({number})" for number in numbers(one))),
    "the first one alone": (BEFORE, USE, lambda one: numbers(one)[0]),
    "What is needed: 3, 1.": (BEFORE, "What is needed: {pointers}.\n\n", lambda one: one.pointers),
    "3, 1": (BEFORE, "{pointers}\n\n", lambda one: one.pointers),
    "names: Val's coins, Ann's coins": (BEFORE, USE, lambda one: ", ".join(names(one))),
    "numbers and names": (BEFORE, USE, lambda one: numbered(one, names(one))),
    "numbers and names, after": (AFTER, USE, lambda one: numbered(one, names(one))),
    "the statements, with values": (BEFORE, USE, lambda one: numbered(one, [each.text() for each in one.needed])),
    "the solution": (BEFORE, PromptConfig().reference, lambda one: one.pointers),
    "the answer": (BEFORE, ANSWER, lambda one: one.pointers),
}
"""The teacher's message, the reference, and what stands for {pointers}."""
KEPT = [*list(WORDINGS)[:2], "3, 3, 1, 1", "3, then 1", "What is needed: 3, 1.", "the solution", "the answer"]
READINGS = {
    "gold": (slice(0, 10), list(WORDINGS), False),
    "gold, others": (slice(10, 40), KEPT, False),
    "student's": (slice(0, 20), KEPT, True),
}
"""Problems, wordings, and whether the student's own answers are read."""
COLUMNS = ("problems", "student", "target", "ratio", "low", "high")
"""Both masses, target / student, and the interval of target − 2 · student over problems."""
Row = tuple[str, bool, float, list[list[float]]]
"""Of a step: its problem, whether it is a fork, the student's entropy, and the masses by measure, of both roles."""


class Reader:
    """Reads responses in both roles."""

    def __init__(self, name: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(f"models/{name}")
        self.model: Any = AutoModelForCausalLM.from_pretrained(f"models/{name}", dtype=torch.float32).eval()
        self.scorer, self.decode = Scorer(self.model, LAYERS), decoder(self.tokenizer)
        self.heads = self.model.config.num_attention_heads
        self.measures = ["4 and 5", "4", "5"]
        self.measures += [f"{layer}.{head}" for layer in LAYERS for head in range(self.heads)]

    def rollout(self, puzzle: Puzzle, wording: str, ids: Sequence[int]) -> Rollout:
        teacher, reference, written = WORDINGS[wording]
        config = PromptConfig(teacher=teacher, reference=reference, max_student_tokens=768, max_teacher_tokens=1400)
        problem = Problem(puzzle.question, puzzle.solution, puzzle.answer, puzzle.id, written(puzzle))
        return Rollout(PromptBuilder(self.tokenizer, config).pair(problem), tuple(ids), puzzle.id)

    def answer(self, puzzle: Puzzle, seed: int) -> list[int]:
        """Return an answer of the student."""
        context = self.rollout(puzzle, KEPT[0], ()).student_ids
        torch.manual_seed(seed)
        sampling: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 160}
        return self.model.generate(torch.tensor([context]), **sampling)[0, len(context) :].tolist()

    def steps(self, rollout: Rollout) -> Iterator[Row]:
        """Yield what both roles have on the needed statement, for each step that needs one."""
        needs = needed_spans("lookup", rollout.pair.problem, self.decode(list(rollout.completion_ids))) or []
        steps = needed_steps(rollout.pair, rollout.completion_ids, needs, self.decode)
        if not steps:
            return
        logits = self.model(torch.tensor([rollout.student_ids])).logits[0].log_softmax(-1)
        roles = [self.scorer([rollout], role)[0].layers for role in ("student", "teacher")]
        alignment = align(rollout.pair, rollout.num_tokens, support="context", query="predicting", first_token=True)
        token_N = torch.tensor([step.token for step in steps])
        queries = alignment.student_query[token_N], alignment.teacher_query[token_N]
        shared = alignment.student_shared, alignment.teacher_shared
        seen_NJ = seen_by_both(queries, shared, (None, None))
        needed_NJ = inside([step.statement for step in steps], shared[0])
        masses: list[list[list[float]]] = []
        for layers, query_N, shared_J in zip(roles, queries, shared, strict=True):
            means, each = [], []
            for layer in layers:
                own = replace(layer, query_HTD=layer.query_HTD[:, token_N])
                rows_HNJ = attention_heads(own, query_N)[..., shared_J] * seen_NJ
                means.append((projection.normalise(rows_HNJ.mean(0))[0] * needed_NJ).sum(-1))
                each += [(projection.normalise(row_NJ)[0] * needed_NJ).sum(-1) for row_NJ in rows_HNJ]
            masses.append(torch.stack([torch.stack(means).mean(0), *means, *each]).T.tolist())
        begun = None
        for number, step in enumerate(steps):
            row_V = logits[int(queries[0][number])]
            fork, begun = step.statement != begun, step.statement
            entropy = -float((row_V.exp() * row_V).sum())
            pairs = zip(*(role[number] for role in masses), strict=True)
            yield rollout.pair.problem.id, fork, entropy, [list(pair) for pair in pairs]


def gate(rows: Sequence[Row], measure: int) -> list[float]:
    """Return the COLUMNS of a measure, by the probe's formulas."""
    problems: dict[str, list[list[float]]] = defaultdict(list)
    for problem, _, _, masses in rows:
        problems[problem].append(masses[measure])
    values = [[fmean(column) for column in zip(*own, strict=True)] for own in problems.values()]
    student, target = (fmean(column) for column in zip(*values, strict=True))
    margin = mean_of([own[1] - 2 * own[0] for own in values])
    figures = student, target, target / student, margin.low, margin.high
    return [len(values), *(float(f"{value:.4g}") for value in figures)]


@torch.no_grad()
def measure(name: str) -> dict[str, Any]:
    reader, record = Reader(name), dict[str, Any]()
    for reading, (part, read, own) in READINGS.items():
        wordings = read if name == "lookup" else KEPT[:1]
        rows: dict[str, list[Row]] = {wording: [] for wording in wordings}
        for number, puzzle in enumerate(make_puzzles("validation", part.stop)[part]):
            gold = reader.tokenizer(puzzle.solution, add_special_tokens=False)["input_ids"]
            ids = reader.answer(puzzle, number) if own else gold
            for wording in wordings:
                rows[wording] += reader.steps(reader.rollout(puzzle, wording, ids))
        record[reading] = {}
        for wording, found in rows.items():
            parts = {"": found, " fork": [row for row in found if row[1]]}
            parts[" undecided"] = [row for row in found if row[2] > ENTROPY]
            kept = enumerate(reader.measures)
            record[reading][wording] = {
                f"{name}{part}": gate(chosen, index)
                for index, name in kept
                for part, chosen in parts.items()
                if chosen and (not part or name in ("4 and 5", "5", "4.2", "5.2"))
            }
    return record


if __name__ == "__main__":
    torch.set_num_threads(1)
    (model,) = sys.argv[1:] or ("lookup",)
    records = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    records[model] = measure(model)
    RECORD.write_text(json.dumps(records, ensure_ascii=False).replace("}, ", "},\n") + "\n", encoding="utf-8")
