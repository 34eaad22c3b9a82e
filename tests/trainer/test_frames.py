"""How far it is from the command to the mathematics."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import opasd
from opasd.cli import main
from opasd.losses.divergence import DIVERGENCES
from tests.training import TOKENIZER, make_model

PACKAGE = str(Path(opasd.__file__).parent)


def own_frames():
    """The package's functions on the stack, outermost first."""
    frame, names = sys._getframe(1), []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[::-1]


@pytest.mark.parametrize("part", ["token", "attention"])
def test_at_most_eight_frames_lead_from_the_command_to_a_divergence(part, tmp_path, monkeypatch):
    """From `main` to the function that calls the divergence's formula."""
    stacks = []
    formula = "log_terms" if part == "token" else "slope"

    def watched(original):
        def run(*args):
            stacks.append(own_frames())
            return original(*args)

        return run

    for name, formulas in DIVERGENCES.items():
        monkeypatch.setitem(DIVERGENCES, name, replace(formulas, **{formula: watched(getattr(formulas, formula))}))
    make_model().save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    weights = ["--objective.token-weight", str(float(part == "token"))]
    weights += ["--objective.attention-weight", str(float(part == "attention"))]
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"problem": "What is 1 + 1?", "solution": "1 + 1 = 2", "answer": "2"}\n')
    settings = ["--train.max-steps", "1", "--rollout.max-new-tokens", "4", "--data.source", str(problems)]
    settings += ["--train.gradient-accumulation-steps", "1", "--validation.every", "0"]
    assert main(["train", "--model.name-or-path", str(tmp_path / "model"), "--name", "run", *settings, *weights]) == 0
    assert stacks
    assert max(map(len, stacks)) <= 8, " ".join(max(stacks, key=len))
