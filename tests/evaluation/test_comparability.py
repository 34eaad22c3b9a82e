"""Which evaluations may be resumed, which stand for one another, and which may be compared."""

from typing import Any

import pytest

from opasd.config import ModelConfig
from opasd.evaluation.benchmarks import load, packaged
from opasd.evaluation.comparability import (
    Conditions,
    combined,
    conflicts,
    continues,
    differences_from_request,
    digest,
    sampling_key,
)
from opasd.evaluation.profiles import PROFILES
from opasd.recipes.evaluate import EvaluateConfig

TARGET = {"model": "lab", "dtype": "auto", "fingerprint": "f", "adapter": None, "run": None}
SETTINGS = {"profile": PROFILES["lab"].model_dump(mode="json"), "engine": "transformers", "group": 128}


def settings(targets: str = "t", benchmarks: str = "b", **changes: Any) -> dict[str, Any]:
    about = {
        "targets": {name: TARGET | {"adapter": f"read from {name}"} for name in targets},
        "benchmarks": {name: {"fingerprint": name, "source": "anywhere"} for name in benchmarks},
    }
    return SETTINGS | about | changes


def test_targets_and_benchmarks_may_be_added_and_nothing_else_may_change():
    before = settings("t", "b")
    moved = before | {"benchmarks": {"b": {"fingerprint": "b", "source": "elsewhere"}}}
    assert conflicts(before, moved) == []
    assert digest(before) == digest(moved)
    more = settings("tu", "bc")
    assert conflicts(before, more) == conflicts(more, before) == []
    assert combined(before, settings("u", "c")) == more
    assert continues(more, before)
    assert not continues(before, more)
    assert conflicts(before, settings(group=4)) == ["group is 128 there and 4 now"]
    other = settings(profile=PROFILES["lab"].model_copy(update={"seed": 1, "samples": 4}).model_dump(mode="json"))
    assert conflicts(before, other) == ["profile.samples is 1 there and 4 now", "profile.seed is 0 there and 1 now"]
    assert not continues(settings(group=4), before)
    assert conflicts(before, before | {"benchmarks": {"b": {"fingerprint": "c"}}}) == ["benchmarks: b is another one"]
    assert digest(before) != digest(more) != digest(settings(group=4))


@pytest.mark.parametrize(
    ("recorded", "options", "differing"),
    [
        ({}, {}, []),
        ({"template_options": {"a": 1}}, {}, ["template_options"]),
        ({"group": 4}, {"max_batch": 4}, []),
        ({"group": 4}, {"seed": 1}, ["profile", "group"]),
        ({}, {"problems": 4}, ["problems"]),
        ({}, {"benchmarks": ("aime24",)}, ["benchmarks"]),
        ({"targets": {"t": TARGET | {"adapter": "a"}}}, {}, ["targets"]),
        ({"targets": {"t": TARGET, "u": TARGET}}, {}, ["settings.json"]),
        ({"benchmarks": 5}, {}, ["settings.json"]),
        ({}, {"benchmarks": ("absent",)}, ["settings.json"]),
    ],
)
def test_a_finished_evaluation_is_compared_with_what_would_be_made(recorded, options, differing):
    made = SETTINGS | {"targets": {"t": TARGET}, "benchmarks": {"lab": load(packaged()["lab"], limit=3).describe()}}
    requested = EvaluateConfig.model_validate({"problems": 3} | options)
    assert differences_from_request(made | recorded, requested, ModelConfig(name_or_path="lab"), {}, None) == differing


def test_the_budget_and_the_seed_do_not_change_how_answers_are_sampled():
    lab, paper = PROFILES["lab"], PROFILES["paper"]
    longer = lab.sampling.model_copy(update={"max_new_tokens": 999})
    assert sampling_key(lab, {}) == sampling_key(lab.model_copy(update={"sampling": longer, "seed": 7}), {})
    keys = [sampling_key(lab, {}), sampling_key(paper, {}), sampling_key(lab, {"a": 1}), sampling_key(None, {})]
    assert len(set(keys)) == len(keys)


def test_conditions_agree_where_nothing_on_record_differs():
    first = Conditions.recorded(settings("t", "b"), TARGET)
    more = Conditions.recorded({"settings": SETTINGS, "benchmarks": settings("t", "c")["benchmarks"]}, TARGET)
    assert first.agree_with(more)
    assert first.agree_with(Conditions())
    joined = first.joined_with(more)
    assert set(joined.benchmarks) == set(joined.budgets) == {"b", "c"}
    other = Conditions.recorded(settings("t", "b", engine="vllm"), TARGET)
    assert not first.agree_with(other)
    assert first.differences_from(other, "b") == []  # the engine does not decide what may be compared
    profile = SETTINGS["profile"] | {"samples": 4, "thinking": True}
    other_sampling = Conditions.recorded(settings("t", "b", profile=profile), TARGET)
    assert other_sampling.differences_from(first, "b") == ["with thinking", "4 samples a problem"]
    assert other_sampling.differences_from(first, "b", counts=False) == ["with thinking"]
    assert other_sampling.differences_from(Conditions(), "b") == []
