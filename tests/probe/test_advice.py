"""Advice: each sentence follows from its rule and carries its numbers."""

import pytest

from opasd.probe.advice import advise

FIGURE = {"mean": 0.62, "low": 0.55, "high": 0.69, "problems": 40}


def summary(verdict, adds=0.1, early=0.1):
    def figure(mean):
        return None if mean is None else {"mean": mean, "low": mean - 0.05, "high": mean + 0.05}

    return {
        "verdict": verdict,
        "preference": None if verdict == "none" else FIGURE,
        "own_adds": figure(adds),
        "own_adds_before_the_end": figure(early),
        "student": {"accuracy": FIGURE},
    }


def looks(gates, layers=(1,), template=0.1):
    def figures(*means):
        return [{"mean": mean, "low": mean, "high": mean} for mean in means]

    loss = {"template": figures(*[template] * 3), "problem": figures(*[0.14] * 3), "words": figures(0, 0, 0)}
    references = {
        name: {
            "student": figures(0.01, 0.2, 0.03),
            "loss": loss,
            "gate": own and {"verdict": own[0], "ratio": own[1], "projected": 0.2 * own[1], "student": 0.2},
        }
        for name, own in gates.items()
    }
    return {
        "references": references,
        "own_reference": next(iter(gates)),
        "layers": 3,
        "uniform": 0.001,
        "looking_layers": None if layers is None else list(layers),
        "gate_layers": list(layers or ()),
        "rule": {"of_best": 0.5, "of_uniform": 10.0, "gate": 2.0},
    }


def says(advice, about):
    (one,) = [one for one in advice if one["about"] == about]
    assert one["rule"]
    return one["says"]


@pytest.mark.parametrize(
    ("verdict", "start"),
    [
        ("above", "Worth training"), ("below", "Not worth training"), ("open", "Not shown to be worth training"),
        ("too few", "Whether training is worth it cannot be said"), ("none", "Whether training is worth it cannot"),
    ],
)  # fmt: skip
def test_training_is_worth_it_if_the_teacher_prefers_right_answers(verdict, start):
    advice = advise(summary(verdict), None, "none")
    assert says(advice, "train").startswith(start)
    assert [one["about"] for one in advice] == ["train", "reference", "clip"]
    assert "--look" in says(advice, "reference")
    assert advice[0]["numbers"]["own_adds"]["mean"] == 0.1


@pytest.mark.parametrize(
    ("adds", "early", "start"),
    [
        (0.24, 0.21, "Worth training"),  # arithmetic, which gained
        (0.11, 0.04, "Perhaps worth training"),  # GSM8K on 1.5B, which gained nothing: it knows the last number
        (0.03, 0.03, "Perhaps worth training"),  # GSM8K on 0.5B, which gained nothing
        (-0.02, -0.02, "Perhaps worth training"),  # the embedded task, which gained
        (0.24, None, "Worth training"),  # answers too short for tenths
        (None, None, "Perhaps worth training"),
    ],
)
def test_it_is_worth_it_for_sure_if_the_own_reference_tells_before_the_end(adds, early, start):
    said = says(advise(summary("above", adds, early), None, "none"), "train")
    assert said.startswith(start)
    assert ("GSM8K and MATH" in said) == (start == "Perhaps worth training")


def test_the_reference_with_the_largest_ratio_counts():
    found = advise(None, looks({"solution": ("fails", 0.8), "pointers": ("passes", 3.1)}), "none")
    assert "has a chance with pointers" in says(found, "reference")
    assert "0.620 beside the student's 0.200" in says(found, "reference")
    found = advise(None, looks({"solution": ("fails", 0.8), "answer": ("fails", 1.1)}), "none")
    assert "--attention-weight 0" in says(found, "reference")
    assert "with answer" in says(found, "reference")
    found = advise(None, looks({"solution": ("fails", 0.8), "pointers": ("fails", 1.4)}), "none")
    assert "--attention-weight 0" in says(found, "reference")
    assert "with pointers" in says(found, "reference")
    assert "not clearly 2 times" in says(advise(None, looks({"solution": ("open", 2.2)}), "none"), "reference")
    numbers = next(one for one in found if one["about"] == "reference")["numbers"]
    assert numbers["solution"]["ratio"] == 0.8


def test_layers_and_support():
    found = advise(None, looks({"solution": ("fails", 0.8)}), "none")
    assert "--samples" in says(found, "train")
    assert "layers [1]" in says(found, "layers")
    assert "0.200" in says(found, "layers")
    assert "the last layer 0.030" in says(found, "layers")
    assert "support" not in [one["about"] for one in found]
    found = advise(None, looks({"solution": ("fails", 0.8)}, template=0.4), "none")
    assert "40% of the attention loss" in says(found, "support")


def test_without_known_needs_or_looking_layers_no_gate_is_claimed():
    unknown = looks({"solution": None}, layers=None)
    assert "what a step needs is not known" in says(advise(None, unknown, "none"), "reference")
    assert "cannot be said for these problems" in says(advise(None, unknown, "none"), "layers")
    blind = looks({"solution": ("fails", 0.8)}, layers=())
    assert "--attention-weight 0" in says(advise(None, blind, "none"), "reference")
    assert says(advise(None, blind, "none"), "layers").startswith("No layer clearly looks")


@pytest.mark.parametrize(
    ("clip", "divergence", "start"),
    [
        ("pointwise", "forward_kl", "Change"), ("pointwise_masked", "forward_kl", "Change"),
        ("per_token", "forward_kl", "Keep"), ("none", "forward_kl", "Keep"), ("none", "reverse_kl", "Keep"),
        ("per_token", "reverse_kl", "Change objective.token.clip to none"),  # docs/evidence/ablations.md
    ],
)  # fmt: skip
def test_never_the_pointwise_clip_and_none_with_reverse_kl(clip, divergence, start):
    assert says(advise(None, None, clip, divergence), "clip").startswith(start)
