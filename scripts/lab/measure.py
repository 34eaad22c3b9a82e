"""What the embedded model can do: alone, and with the solution in its context.

    python -m scripts.lab.measure --count 1200

Accuracy has a Wilson interval of 95 %. The log-probabilities are those of the reference solution's tokens, as a
response, under the student's and the teacher's context; forks are the tokens that apply the rule or forget it.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from opasd.data.made.counts import LEVELS, Puzzle, make_puzzles, work
from opasd.lab import model_path
from scripts.lab.demos import Kind
from scripts.lab.formats import Formats
from scripts.lab.model import END_OF_TURN, token_id

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MARKERS = re.compile(
    r"\b(wait|hmm|perhaps|maybe|actually|alternatively|seems|might|likely|check)\b", flags=re.IGNORECASE
)
_BOXED = re.compile(r"\\boxed\{\s*(-?\d+)\s*\}")


def is_right(response: str, answer: str) -> bool:
    """Return whether the number in the last `\\boxed{}` of the response is the answer."""
    numbers = _BOXED.findall(response)
    return bool(numbers) and str(int(numbers[-1])) == answer


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn; temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 192
    seed: int = 0
    batch: int = 256


SHARP = Sampling(temperature=0.6, top_p=0.95, top_k=20)


@dataclass(frozen=True)
class Response:
    """A sampled response: its text, its tokens with the end token if it came, and whether it is right."""

    text: str
    num_tokens: int
    ended: bool
    right: bool


def sample(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
    puzzles: Sequence[Puzzle],
    kind: Kind,
    sampling: Sampling,
) -> list[Response]:
    """One response to each problem, in order."""
    formats = Formats(tokenizer)
    prompts = [formats.prompt(kind, puzzle.question, puzzle.solution) for puzzle in puzzles]
    return respond(model, tokenizer, prompts, [puzzle.answer for puzzle in puzzles], sampling)


def respond(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
    prompts: Sequence[str],
    answers: Sequence[str],
    sampling: Sampling,
) -> list[Response]:
    """One response to each context, in order."""
    responses: list[Response] = []
    generate: Any = model.generate  # typed through a protocol that the base class does not name
    torch.manual_seed(sampling.seed)
    knobs: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        knobs = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        }
    end = token_id(tokenizer, END_OF_TURN)
    for start in range(0, len(prompts), sampling.batch):
        batch = list(prompts[start : start + sampling.batch])
        inputs = tokenizer(batch, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        with torch.no_grad():
            output = generate(
                input_ids=inputs["input_ids"].to(model.device),
                attention_mask=inputs["attention_mask"].to(model.device),
                max_new_tokens=sampling.max_tokens,
                **knobs,
            )
        rows = output[:, inputs["input_ids"].shape[1] :].tolist()
        for answer, row in zip(answers[start : start + sampling.batch], rows, strict=True):
            ended = end in row
            ids = row[: row.index(end)] if ended else row
            text = str(tokenizer.decode(ids))
            responses.append(Response(text, len(ids) + ended, ended, ended and is_right(text, answer)))
    return responses


def wilson(right: int, count: int) -> dict[str, float | int]:
    """A share with its Wilson interval of 95 %."""
    z, share = 1.959964, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return {"value": round(share, 4), "low": round(middle - half, 4), "high": round(middle + half, 4), "count": count}


def summarise(puzzles: Sequence[Puzzle], responses: Sequence[Response]) -> dict[str, Any]:
    """Accuracy, by level as well, and the responses' form."""
    by_level = {
        str(level): [
            response.right for puzzle, response in zip(puzzles, responses, strict=True) if puzzle.level == level
        ]
        for level in LEVELS
    }
    count = len(responses)
    return {
        "accuracy": wilson(sum(response.right for response in responses), count),
        "accuracy_by_level": {level: round(sum(right) / len(right), 4) for level, right in by_level.items() if right},
        "mean_tokens": round(sum(response.num_tokens for response in responses) / count, 2),
        "max_tokens": max(response.num_tokens for response in responses),
        "ended": round(sum(response.ended for response in responses) / count, 4),
        "markers_per_response": round(sum(len(MARKERS.findall(r.text)) for r in responses) / count, 4),
    }


@torch.no_grad()
def log_probabilities(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", puzzles: Sequence[Puzzle], kind: Kind
) -> dict[str, float]:
    """Mean log-probability of the right next token, over the solution and at its forks."""
    formats = Formats(tokenizer)
    every: list[float] = []
    forks: list[float] = []
    for puzzle in puzzles:
        ids = tokenizer(formats.prompt(kind, puzzle.question, puzzle.solution), add_special_tokens=False)["input_ids"]
        start, fork_at = len(ids), []
        pieces = [(puzzle.plan, False)]
        for line in work(puzzle):
            *body, end = line.pieces()
            pieces += [("".join(body), False), (end, line.final != line.raw)]
        pieces.append((puzzle.solution.splitlines()[-1] + END_OF_TURN, False))
        for text, fork in pieces:
            if fork:
                fork_at.append(len(ids) - start)
            ids = ids + tokenizer(text, add_special_tokens=False)["input_ids"]
        logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0, start - 1 : -1].float()
        target = torch.tensor(ids[start:], device=model.device)
        values = logits.log_softmax(-1).gather(1, target[:, None])[:, 0].tolist()
        every += values
        forks += [values[position] for position in fork_at]
    return {"all": round(sum(every) / len(every), 5), "forks": round(sum(forks) / len(forks), 5)}


def measure(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", count: int = 1200, seed: int = 0
) -> dict[str, Any]:
    """Everything above on `count` held-out problems of the test split."""
    puzzles = make_puzzles("test", count, seed)
    record: dict[str, Any] = {"split": "test", "problems": count, "problem_seed": seed, "sampling_seed": 0}
    kinds: tuple[Kind, ...] = ("student", "privileged", "thinking")
    batch = 1024 if model.device.type == "cuda" else 256
    for kind in kinds:
        for name, sampling in (("t1.0", Sampling(batch=batch)), ("t0.6_p0.95_k20", replace(SHARP, batch=batch))):
            record[f"{kind}_{name}"] = summarise(puzzles, sample(model, tokenizer, puzzles, kind, sampling))
    record["log_probability_of_right_token"] = {
        kind: log_probabilities(model, tokenizer, puzzles[:400], kind) for kind in kinds[:2]
    }
    return record


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a model folder and print the record."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parser = argparse.ArgumentParser(description="Measure the embedded model.")
    parser.add_argument("--model", type=Path, default=model_path(), help="folder of the model")
    parser.add_argument("--count", type=int, default=1200, help="held-out problems")
    parser.add_argument("--seed", type=int, default=0, help="seed of the problems")
    options = parser.parse_args(arguments)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
    record = measure(model, AutoTokenizer.from_pretrained(options.model), options.count, options.seed)
    sys.stdout.write(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
