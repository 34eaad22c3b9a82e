"""Flags made from a model: every field of EvaluateConfig can be given, and is given back."""

import argparse

import pytest

from opasd.cli._flags import add_flags, read_flags
from opasd.errors import ConfigError
from opasd.recipes.evaluate import EvaluateConfig


def parse(*args: str) -> EvaluateConfig:
    parser = argparse.ArgumentParser()
    add_flags(parser, EvaluateConfig, EvaluateConfig.model_fields)
    return read_flags(parser.parse_args(args), EvaluateConfig)


def test_every_option_is_a_flag() -> None:
    config = EvaluateConfig(
        benchmarks=("aime24", "x.jsonl"), profile="opsd", samples=3, problems=4, budgets=(8, 16), max_new_tokens=16,
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, thinking=False, seed=-1, engine="vllm_server",
        server=("http://a:1", "http://b:2"), max_batch=5, data_dir="d", grader="m:f", plugins=("own",),
        boxes="last", think_marks=("[A]", "[B]"), judge="http://a:1",
    )  # fmt: skip
    assert set(EvaluateConfig.model_fields) == config.model_fields_set
    assert parse(*config.flags()) == config
    assert parse() == EvaluateConfig()
    assert parse(*EvaluateConfig(thinking=True).flags()).thinking is True


def test_a_list_may_be_given_in_parts() -> None:
    assert parse("--benchmarks", "a, b,", "--benchmarks", "c").benchmarks == ("a", "b", "c")
    assert parse("--budgets", "10", "--budgets", "20,30").budgets == (10, 20, 30)


def test_every_wrong_value_is_named() -> None:
    with pytest.raises(ConfigError) as error:
        parse("--samples", "many", "--top-p", "2", "--engine", "vlm")
    assert str(error.value) == (
        "--samples: got 'many'; it must be a valid integer, unable to parse string as an integer; "
        "--top-p: got '2'; it must be less than or equal to 1; "
        "--engine: got 'vlm'; use one of transformers, vllm, vllm_server, openai (did you mean vllm?)"
    )


def test_the_help_is_the_text_of_the_model() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, EvaluateConfig, EvaluateConfig.model_fields)
    text = " ".join(parser.format_help().split())
    for name, field in EvaluateConfig.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert " ".join((field.description or "?").split()) in text
