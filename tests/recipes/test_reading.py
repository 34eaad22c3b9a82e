"""The YAML of recipes: a file extends another, hostile text is one clear error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opasd.config import RunConfig
from opasd.errors import ConfigError
from opasd.recipes import load_recipe
from opasd.recipes.checking import to_config
from opasd.recipes.evaluate import to_evaluate
from opasd.recipes.reading import parse_value, parse_yaml, read_yaml, write_yaml


def test_a_file_extends_a_recipe_or_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: opsd-qwen3-4b\ntrain: {max_steps: 7}\n")
    (tmp_path / "b.yml").write_text("extends: a.yaml\ntrain: {seed: 1}\n")
    config = load_recipe(str(tmp_path / "b.yml")).config()
    assert (config.train.max_steps, config.train.seed, config.objective.attention_weight) == (7, 1, 0)


def test_null_takes_a_parents_validation_set_away(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "extends: gsm8k-0.5b\nvalidation_data: {gsm8k: null, mine: {source: mine.jsonl}}\n", encoding="utf-8"
    )
    assert list(load_recipe(str(tmp_path / "a.yaml")).config().validation_data) == ["mine"]
    (tmp_path / "b.yaml").write_text("extends: a.yaml\nvalidation_data: {gsm8k: null}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="validation_data.gsm8k: got nothing"):
        load_recipe(str(tmp_path / "b.yaml")).config()  # there is none any more
    (tmp_path / "c.yaml").write_text("validation_data: {mine: null}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="validation_data.mine: got nothing"):
        load_recipe(str(tmp_path / "c.yaml")).config()


def test_evaluation_settings_are_inherited_and_checked(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: base-qwen3-4b\nevaluate: {samples: 4}\n")
    child = load_recipe(str(tmp_path / "a.yaml"))
    assert child.evaluate_only
    assert child.parents == ("base-qwen3-4b", "opasd-qwen3-4b", "opasd-qwen3-1.7b")
    assert child.evaluate is not None
    evaluation = to_evaluate(child.evaluate, "child")
    assert evaluation.flags() == [
        "--benchmarks", "aime24,aime25,aime26,hmmt25", "--profile", "paper", "--samples", "4",
    ]  # fmt: skip
    for text, message in (
        ("evaluate: {sampels: 1}", r"evaluate.sampels: unknown key; did you mean samples\?"),
        ("evaluate: [aime24]", "evaluate: got"),
        ("evaluate_only: 3", "evaluate_only: got 3; give true or false"),
    ):
        (tmp_path / "b.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_recipe(str(tmp_path / "b.yaml"))


def test_extends_in_a_circle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigError, match="leads back"):
        load_recipe(str(tmp_path / "a.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train:\n  lerning_rate: 1", r"train.lerning_rate: unknown key; did you mean train.learning_rate\?"),
        ("learning_rate: 1", r"learning_rate: unknown key; did you mean train.learning_rate\?"),
        ("objective: {token: {clip: pertoken}}", r"objective.token.clip: got 'pertoken'.*did you mean per_token\?"),
        ("train: {max_steps: 0}", "train.max_steps: got 0; it must be greater than 0"),
        ("train: 5", "train: got 5; this is a section"),
        ("train: {extra: {a: [1]}}", r"train.extra.a: got \[1\]; it must be a valid string"),
        (
            "validation_data: {x: {sorce: y}}",
            r"validation_data.x.sorce: unknown key; did you mean validation_data.x.source",
        ),
        (
            "objective: {token_weight: 0, attention_weight: 0}",
            "objective: token_weight and attention_weight are both 0",
        ),
        ("zzz: 1", "zzz: unknown key; the keys here are prompts, rollout"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_path(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        to_config(parse_yaml(text, "x.yaml"), "x.yaml")
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", 'line 3, column 1: the key "a" is repeated'),
        ("1: 2", "the key 1 is not text"),
        ("- a", "holds a list"),
        ("hello", "holds the single value 'hello'"),
        ("a: [", "line 1"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: &x [*x]", "aliases written out"),
        ("a: *nowhere", "undefined alias"),
        ("a: 1\n---\nb: 2", "but found another document"),
        ("[" * 5000, "nested too deeply"),
        ("a: !!int abc", "not valid YAML"),
        ("a: \0", "not valid YAML"),
    ],
)
def test_unusable_yaml_is_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, "x.yaml")


def test_a_small_file_cannot_stand_for_a_huge_value() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    with pytest.raises(ConfigError, match="aliases written out"):
        parse_yaml("\n".join(lines), "x.yaml")


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    for name, raw, message in (("big", b"#" * 300_000, "larger than"), ("latin", b"a: \xff", "not UTF-8")):
        path = tmp_path / f"{name}.yaml"
        path.write_bytes(raw)
        with pytest.raises(ConfigError, match=message):
            read_yaml(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path)
    with pytest.raises(ConfigError, match="no file"):
        load_recipe(str(tmp_path / "absent.yaml"))


def test_plain_words_mean_what_they_look_like() -> None:
    text = "a: 5e-6\nb: no\nc: 2026-01-01\nd: 12:30:00\ne: 010\nf: ~\ng: True\nh: .inf\ni: on\nj:\nk: -3\nl: 1.\n"
    assert parse_yaml(text, "x") == {
        "a": 5e-6, "b": "no", "c": "2026-01-01", "d": "12:30:00", "e": 10, "f": None, "g": True, "h": float("inf"),
        "i": "on", "j": None, "k": -3, "l": 1.0,
    }  # fmt: skip
    assert [parse_value(t) for t in ("1e-4", "true", "a: b", "[1, x]", "a#b", "")] == [
        1e-4, True, "a: b", [1, "x"], "a#b", None,
    ]  # fmt: skip
    for text in ("a #b", "#", r"####\s*(.+)", "5 # five"):
        assert parse_value(text) == text
    assert parse_value('"a #b"') == "a #b"


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(st.dictionaries(st.text(), _values, max_size=4))
@example(
    {
        "a": "1e5",
        "b": "no",
        "c": "null",
        "d": "x\n  y \n",
        "e": "\n",
        "f": "5",
        "<<": {"=": "~"},
        "h": "\r\n",
        "g": "\t\x85\u2028",
    }
)
def test_what_is_written_is_read_back(mapping: dict[str, Any]) -> None:
    assert parse_yaml(write_yaml(mapping), "x") == mapping


@given(st.binary(max_size=300) | st.text(alphabet="{}[]:,-&*!|>'\"%@#?\n \tab0.~<=", max_size=80).map(str.encode))
def test_random_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile.yaml"
    path.write_bytes(raw)
    message = _refusal(lambda: load_recipe(str(path)).config())
    assert message is None or str(path) in message


@given(st.dictionaries(st.sampled_from([*RunConfig.model_fields, "x"]), _values, max_size=4))
def test_values_of_any_type_are_taken_or_refused(values: dict[str, Any]) -> None:
    message = _refusal(lambda: to_config(values, "here"))
    assert message is None or message.startswith("here:\n")


def _refusal(action: Callable[[], object]) -> str | None:
    try:
        action()
    except ConfigError as error:
        return str(error)
    return None
