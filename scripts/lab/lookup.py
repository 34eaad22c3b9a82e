"""Pretrain a model on the task `lookup`, measure it and write its folder with the record of how it was made.

    python -m scripts.lab.lookup --output model

The model is taught as the embedded one is (`demos.py`): it knows which statement to look at, and more often than not
looks at the person's last statement instead. Sharper sampling makes that worse: taking the likeliest token is no
remedy. References of three kinds come before or after the problem: pointers, which name
the needed statements and hold no value, the whole solution, and the final answer. With a reference the responses are
right; a mistake that is already written is followed by "Wait" and put right, and is not learned. Drills ask for
statements word by word: without them the model never learned to find one by its person and its item.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from opasd.config import PromptConfig
from opasd.data.made.lookup import LEVELS, SHAPES, Puzzle, Statement, make_puzzles, work
from scripts.lab.demos import Segment
from scripts.lab.formats import Formats
from scripts.lab.measure import SHARP, Sampling, respond, wilson
from scripts.lab.model import SYSTEM_PROMPTS, make_tokenizer
from scripts.lab.pretrain import Settings, make_examples, make_model, save, train

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Reference = Literal["pointers", "solution", "answer"]
BEFORE = "{reference}Problem: {question}\n\n{instruction}"
"""The teacher's message with the reference first: what it points at can be marked while the problem is read."""
REFERENCES: dict[Reference, str] = {
    "pointers": "Use statements {pointers}.\n\n",
    "solution": PromptConfig().reference,
    "answer": "The final answer is {answer}.\n\n",
}
CONTEXTS: dict[str, PromptConfig] = {
    **{f"{name} after": PromptConfig(reference=wording) for name, wording in REFERENCES.items()},
    **{f"{name} before": PromptConfig(reference=wording, teacher=BEFORE) for name, wording in REFERENCES.items()},
}
SMALL = ((4, 2), (4, 3), (5, 3), (6, 3), (7, 3))
"""Shapes of the short problems that make up half of the data: looking up is learned sooner on them."""
MIXTURE = {
    "student": 0.35, "thinking": 0.15, "drill": 0.15, "pointers before": 0.15, "pointers after": 0.05,
    "solution after": 0.05, "solution before": 0.03, "answer after": 0.035, "answer before": 0.035,
}  # fmt: skip
DRILLED = 10
"""Statements that a drill asks for."""


@dataclass(frozen=True)
class Rates:
    """How often demonstrations go wrong."""

    wrong_item: float = 0.6
    """A student takes the person's last statement, which is about another item."""
    thinking: float = 0.25
    """Factor on it in thinking mode."""
    notice: float = 0.1
    """A student's mistake is noticed and put right at once."""
    spoiled: float = 0.5
    """A privileged response finds a mistake already written."""
    unnoticed: float = 0.15
    """Such a mistake has been carried to the end, and only the answer is left to write."""


def demonstrations(
    tokenizer: "PreTrainedTokenizerFast", seed: int, count: int, rates: Rates
) -> Iterator[list[Segment]]:
    """Contexts and the pieces of their responses."""
    rng = random.Random(f"opasd-lookup-demos:{seed}")
    formats = {name: Formats(tokenizer, config) for name, config in CONTEXTS.items()}
    for puzzle in make_puzzles("pretrain", count, seed, shapes=SMALL + SHAPES):
        kind = rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.05 else ""
        yield [(context(formats, kind, puzzle, system), False), *response(puzzle, kind, rates, rng)]


def context(formats: dict[str, Formats], kind: str, puzzle: Puzzle, system: str = "") -> str:
    """The context of a response."""
    if kind == "drill":
        return formats["pointers before"].prompt("student", _drill_question(puzzle), system=system)
    if kind in ("student", "thinking"):
        return formats["pointers before"].prompt(kind, puzzle.question, system=system)
    return formats[kind].prompt("privileged", puzzle.question, getattr(puzzle, kind.split()[0]), system)


def response(puzzle: Puzzle, kind: str, rates: Rates, rng: random.Random) -> list[Segment]:
    """The pieces of a response of a kind."""
    if kind == "student":
        return [(_attempt(puzzle, rates.wrong_item, rates.notice, rng), True)]
    if kind == "drill":
        return [("\n".join(one.text() for one in _drilled(puzzle)), True)]
    if kind == "thinking":
        wrong = rates.wrong_item * rates.thinking
        chain = _walk(puzzle, [], wrong, rng)
        thought = f"<think>\n{' '.join(one.text() for one in chain)}\n</think>\n\n"
        return [(thought + _written_out(chain, puzzle.item), True)]
    return _privileged(puzzle, rates, rng)


def _drilled(puzzle: Puzzle) -> list[Statement]:
    """The statements that the puzzle's drill asks for; its number decides."""
    return random.Random(puzzle.id).sample(puzzle.statements, min(DRILLED, len(puzzle.statements)))


def _drill_question(puzzle: Puzzle) -> str:
    asked = ", ".join(f"{one.person}'s {one.item}" for one in _drilled(puzzle))
    return f"{puzzle.question.rsplit(' How many', 1)[0]} Repeat {asked}."


def _walk(puzzle: Puzzle, begun: Sequence[Statement], wrong: float, rng: random.Random) -> list[Statement]:
    """Go on from a chain that is begun to a count that is stated; each step takes a wrong item at a rate."""
    chain = list(begun)
    while not chain or chain[-1].source:
        right = puzzle.find(chain[-1].source if chain else puzzle.person, puzzle.item)
        chain.append(_lookalike(puzzle, right) if rng.random() < wrong else right)
    return chain


def _lookalike(puzzle: Puzzle, right: Statement) -> Statement:
    """The same person's statement that stands last: the wrong one, unless the right one stands there."""
    return [one for one in puzzle.statements if one.person == right.person][-1]


def _written_out(chain: list[Statement], item: str) -> str:
    return "".join([*(statement.line(item) for statement in chain), *work(chain, item)])


def _attempt(puzzle: Puzzle, wrong: float, notice: float, rng: random.Random) -> str:
    """A student's response: each step may take a wrong item, and may put it right at once."""
    chain: list[Statement] = []
    text = ""
    while not chain or chain[-1].source:
        right = puzzle.find(chain[-1].source if chain else puzzle.person, puzzle.item)
        taken = _lookalike(puzzle, right) if rng.random() < wrong else right
        text += taken.line(puzzle.item)
        if taken is not right and rng.random() < notice:
            taken = right
            text += f"Wait, {taken.line(puzzle.item)}"
        chain.append(taken)
    return text + "".join(work(chain, puzzle.item))


def _privileged(puzzle: Puzzle, rates: Rates, rng: random.Random) -> list[Segment]:
    """Right lines, in which a mistake may already be written."""
    right, item = puzzle.needed, puzzle.item
    places = [n for n, one in enumerate(right) if _lookalike(puzzle, one).line(item) != one.line(item)]
    if not places or rng.random() >= rates.spoiled:
        return [(_written_out(right, item), True)]
    place = rng.choice(places)
    taken = _lookalike(puzzle, right[place])
    chain = _walk(puzzle, [*right[:place], taken], 0.0, rng)
    segments: list[Segment] = [("".join(one.line(item) for one in right[:place]), True)]
    first, value = taken.line(item).split(":", 1)
    # What differs from the right statement is not learned: the source, or with the same source what follows it.
    wrong = f" {taken.source}" if taken.source not in ("", right[place].source) else value
    segments += [(f"{first}:", True), (wrong, False), (value.removeprefix(wrong), True)]
    after = [one.line(item) for one in chain[place + 1 :]] + work(chain, item)
    if rng.random() < rates.unnoticed:
        *lines, answer = after
        before, number = answer.split("{")
        return [*segments, *_continued(lines), (before + "{", False), (number, True)]
    written = after[: rng.randrange(len(after))]
    mended = "".join(["Wait, ", *(one.line(item) for one in right[place:]), *work(right, item)])
    return [*segments, *_continued(written), (mended, True)]


def _continued(lines: Sequence[str]) -> list[Segment]:
    """Lines after a mistake: their beginning is not learned, since "Wait" should stand there."""
    pieces = [line.split(":", 1) for line in lines]
    return [segment for first, rest in pieces for segment in ((first, False), (":" + rest, True))]


def corpus() -> list[str]:
    """Every word of the task, in the places where it occurs."""
    rng = random.Random("opasd-lookup-tokenizer")
    texts = ["system\n", "user\n", "assistant\n", "\n\n", *SYSTEM_PROMPTS]
    texts += [f"{count} {{{count}}} ({count})" for count in range(100)] * 20
    for puzzle in make_puzzles("pretrain", 1500, seed=-1):
        for kind in ("student", "thinking", "drill", "pointers before"):
            texts += [
                puzzle.question,
                _drill_question(puzzle),
                "".join(text for text, _ in response(puzzle, kind, Rates(), rng)),
            ]
    for config in CONTEXTS.values():
        texts += [config.student, config.teacher, config.reference, config.instruction] * 20
    return texts


def measure(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", count: int) -> dict[str, Any]:
    """Accuracy on held-out problems in every context, by level as well."""
    puzzles = make_puzzles("test", count)
    formats = {name: Formats(tokenizer, config) for name, config in CONTEXTS.items()}
    batch = 1024 if model.device.type == "cuda" else 64
    samplings = {"t1.0": Sampling(batch=batch), "t0.6_p0.95_k20": replace(SHARP, batch=batch)}
    samplings["greedy"] = Sampling(temperature=0.0, batch=batch)
    record: dict[str, Any] = {"split": "test", "problems": count, "problem_seed": 0, "sampling_seed": 0}
    for kind in (kind for kind in MIXTURE if kind != "drill"):
        for name, sampling in samplings.items():
            if kind not in ("student", "thinking") and name != "t1.0":
                continue
            prompts = [context(formats, kind, puzzle) for puzzle in puzzles]
            responses = respond(model, tokenizer, prompts, [puzzle.answer for puzzle in puzzles], sampling)
            levels = {
                str(level): sum(one.right for one in responses[level - 1 :: len(LEVELS)]) / (count // len(LEVELS))
                for level in LEVELS
            }
            record[f"{kind}, {name}"] = {
                "accuracy": wilson(sum(one.right for one in responses), count),
                "by_level": {level: round(share, 3) for level, share in levels.items()},
                "mean_tokens": sum(one.num_tokens for one in responses) / count,
            }
    return record


def main(arguments: Sequence[str] | None = None) -> None:
    """Pretrain from the command line."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    default = Settings(size="lookup", steps=6000, batch=160, examples=400_000, measured=600)
    parser = argparse.ArgumentParser(description="Pretrain a model on the task lookup.")
    parser.add_argument("--output", metavar="DIR", type=Path, required=True, help="folder to write; must not exist")
    for name in ("seed", "steps", "batch", "examples", "measured"):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name))
    for name in ("learning_rate", "matrix_rate"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(default, name))
    parser.add_argument("--size", default=default.size)
    parser.add_argument("--wrong-item", type=float, default=Rates.wrong_item, help="share of steps that go wrong")
    parser.add_argument("--workers", type=int, default=1, help="processes that make data")
    options = vars(parser.parse_args(arguments))
    out, workers, wrong_item = options.pop("output"), options.pop("workers"), options.pop("wrong_item")
    if out.exists():
        parser.error(f"{out} exists; name a new folder")
    if not 0 <= wrong_item <= 1:
        parser.error(f"--wrong-item is {wrong_item}; give a share from 0 to 1")
    settings, rates = replace(default, **options), Rates(wrong_item=wrong_item)
    begin = time.perf_counter()
    tokenizer = make_tokenizer([], corpus())
    examples = make_examples(tokenizer, settings, rates, workers, demonstrations)
    made = time.perf_counter() - begin
    sys.stderr.write(f"{len(examples.lengths)} examples of up to {examples.ids.shape[1]} tokens in {made:.0f} s\n")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(tokenizer, settings)
    figures = train(model, examples, settings, device)
    save(model, tokenizer, out)
    shipped = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    nn.Module.to(shipped, device)
    count, read = settings.measured, AutoTokenizer.from_pretrained(out)
    measured = measure(shipped, read, count) if count else {}
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    record = {
        "command": f"python -m scripts.lab.lookup --output MODEL {flags} --wrong-item {wrong_item}",
        "settings": asdict(settings),
        "mixture": MIXTURE,
        "rates": asdict(rates),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "vocabulary": len(tokenizer),
        "training": figures,
        "measured": measured,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "versions": {"torch": torch.__version__},
    }
    (out / "TRAINING.json").write_text(json.dumps(record, indent=2) + "\n")
    sys.stdout.write(json.dumps(record["measured"], indent=2) + "\n")


if __name__ == "__main__":
    main()
