"""Fields by dotted name: as flags, and back."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.cli.train import parser
from opasd.config import RunConfig
from opasd.errors import ConfigError
from opasd.recipes.checking import to_config
from opasd.recipes.evaluate import EvaluateConfig
from opasd.recipes.fields import nested, take_flags, to_flags

_roots = {"": RunConfig, "evaluate.": EvaluateConfig}


def test_flags_set_fields_of_all_runs() -> None:
    rest, values_by_root = take_flags(
        ["lab", "--train.max-steps", "2", "--jobs", "3", "--model.lora_target_modules", "q_proj", "v_proj",
         "--layout=padded", "--train.bf16", "--train.no-fp16", "--validation.thinking", "None",
         "--evaluate.budgets", "8,16", "--prompts.system", "12",
         "--prompts.template_options.a-b", "x",
         "--data.revision", "null", "--train.report-to", "--evaluate.thinking=false", "--rollout.top-p", "1",
         "--train.gradient-checkpointing", "opsd"],
        _roots,
    )  # fmt: skip
    assert rest == ["lab", "--jobs", "3", "opsd"]
    assert values_by_root[""] == {
        "train.max_steps": 2, "model.lora_target_modules": ["q_proj", "v_proj"], "layout": "padded", "train.bf16": True,
        "train.fp16": False, "validation.thinking": None,
        "prompts.system": "12", "prompts.template_options.a-b": "x", "data.revision": None, "train.report_to": [],
        "rollout.top_p": 1, "train.gradient_checkpointing": True,
    }  # fmt: skip
    assert values_by_root["evaluate."] == {"budgets": [8, 16], "thinking": False}
    for word, message in (
        ("--train.max-step", r"did you mean train.max_steps\?"),
        ("--evaluate.bugdets", r"did you mean evaluate.budgets\?"),
        ("--train.max-steps", "needs a value"),
    ):
        with pytest.raises(ConfigError, match=message):
            take_flags([word], _roots)


_text = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20)


_fields = {
    "objective.attention_weight": st.floats(0, 1e6),
    "train.learning_rate": st.floats(0, 1),
    "train.bf16": st.booleans(),
    "train.save_total_limit": st.none() | st.integers(1, 99),
    "prompts.system": st.none() | _text.filter(lambda text: text.lower() not in ("none", "null", "true", "false")),
    "prompts.template_options.some_key": _text | st.booleans() | st.integers(),
    "train.extra.key-2": st.floats(allow_nan=False, allow_infinity=False) | st.booleans(),
    "validation_data.my-set.sample": st.integers(1, 9),
    "model.lora_target_modules": st.lists(st.sampled_from(["q_proj", "v_proj"]), unique=True),
    "validation.thinking": st.none() | st.booleans(),
    "data.seed": st.integers(-5, 5),
    "objective.attention.layers": st.sampled_from([2, [15, 16], [-1], "all"]),
}


@given(st.lists(st.sampled_from(sorted(_fields)), min_size=1, unique=True).flatmap(
    lambda fields: st.fixed_dictionaries({field: _fields[field] for field in fields})
))  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_what_is_written_as_flags_is_read_back_by_train_and_by_sweep(values: dict[str, Any]) -> None:
    words = to_flags(values)
    expected = RunConfig.model_validate(nested(values))
    _, _, config = parser().parse(words)
    assert config == expected
    _, values_by_root = take_flags(words, _roots)
    assert RunConfig.model_validate(nested(values_by_root[""])) == expected


@pytest.mark.parametrize(
    ("text", "layers"), [("2", 2), ("15,16", (15, 16)), ("-1,-2", (-1, -2)), ("[3]", (3,)), ("all", "all")]
)
def test_layers_on_a_command_line(text: str, layers: Any) -> None:
    words = [f"--objective.attention.layers={text}", "lab"]
    _, recipe, config = parser().parse(words)
    assert config.objective.attention.layers == layers
    assert recipe.name == "lab"
    again = to_config(config.model_dump(mode="json"), "a file")
    assert again.objective.attention.layers == layers


@pytest.mark.parametrize("text", ["0", "-1", "1,1", "x", "1.5", "[]", "true", "all,1"])
def test_layers_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"objective.attention.layers: got .*; give how many of the last layers"):
        parser().parse([f"--objective.attention.layers={text}"])


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ({"queries": "entropy"}, "queries: entropy needs query_threshold"),
        ({"query_threshold": 0.5}, "no effect with queries: all"),
        ({"queries": "solution_mass", "query_threshold": 1.5}, "it is a share, at most 1"),
        ({"heads": "all"}, "use one of mean, each"),
        ({"support": "template"}, "use one of context, content, problem, response"),
    ],
)
def test_members_of_the_attention_family_that_do_not_exist(member: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        to_config({"objective": {"attention": member}}, "a file")


def test_point_wise_clipping_is_warned_of() -> None:
    for clip, weight, count in (("pointwise", 1.0, 1), ("pointwise", 0.0, 0), ("per_token", 1.0, 0), ("none", 1.0, 0)):
        config = to_config({"objective": {"token": {"clip": clip}, "token_weight": weight}}, "a file")
        assert len(config.objective.warnings()) == count
        assert all("token/reversed" in warning for warning in config.objective.warnings())


def test_null_takes_a_validation_set_away_on_a_command_line_too() -> None:
    _, _, config = parser().parse(["lab", "--validation-data.lab", "null"])
    assert config.validation_data == {}
    with pytest.raises(ConfigError, match="validation_data.no: got nothing"):
        parser().parse(["lab", "--validation-data.no", "null"])
