"""How a result is evaluated: the options of `opasd evaluate`, which a recipe or a sweep may set too."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from opasd.choices import Engine
from opasd.config import Section, check_address
from opasd.errors import ConfigError
from opasd.recipes.checking import checked


class EvaluateConfig(Section):
    """Options of `opasd evaluate` under the same names. The command or the profile decides what is unset.

    The fields and their order are part of the text that tells a sweep whether its settings have changed.
    """

    benchmarks: tuple[str, ...] = ()
    """Names (see `opasd evaluate --list`), data files, folders, or YAML files of entries. Unset: the paper's four, or
    `lab` for the embedded model."""
    profile: Literal["paper", "opsd", "lab"] | None = None
    """Sampling settings by name. Unset: paper, or lab for the embedded model."""
    samples: int | None = Field(default=None, gt=0, le=10**6)
    """Answers for each problem."""
    problems: int | None = Field(default=None, gt=0, le=10**8)
    """Only the first problems of each benchmark, this many."""
    budgets: tuple[int, ...] = ()
    """Lengths at which the same samples are cut and graded; each is reported by itself."""
    max_new_tokens: int | None = Field(default=None, gt=0, le=10**6)
    """Longest completion."""
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Keep the likeliest tokens that together have this probability."""
    top_k: int | None = Field(default=None, ge=0)
    """Keep this many of the likeliest tokens; 0 keeps all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Drop tokens with less than this share of the likeliest one's probability."""
    thinking: bool | None = None
    """Thinking mode of the chat template."""
    seed: int | None = None
    """Seed of the samples."""
    engine: Engine | None = None
    """What samples the answers. Unset: transformers."""
    server: tuple[str, ...] = ()
    """Addresses of vLLM servers, http://HOST:PORT, for the engine vllm_server; one of any server for openai."""
    max_batch: int | None = Field(default=None, gt=0, le=10**6)
    """Samples drawn side by side. Unset: 128."""
    data_dir: str | None = None
    """Folder with local copies of benchmarks, which are preferred to the hub's."""
    grader: str | None = None
    """Grader of the answers: a name that a plugin has registered, or `module:function`. Unset: the package's own."""
    plugins: tuple[str, ...] = ()
    """Python modules to import first, which register benchmarks, graders or engines."""
    boxes: Literal["joined", "last"] | None = None
    """Boxes with only a comma, `and` or `or` between them: joined to one list, or only the last one read. Unset:
    joined."""
    think_marks: tuple[str, ...] = ()
    """Marks that open and close a model's reasoning, OPEN,CLOSE, beside the known ones and those of its template."""

    judge: str | None = None
    """A model, or the address of a server with chat completions (`URL#MODEL`), that is asked about answers that no rule
    can settle. Its word is reported apart. Unset: none."""

    @field_validator("server")
    @classmethod
    def _addresses(cls, server: tuple[str, ...]) -> tuple[str, ...]:
        for url in server:
            check_address(url)
        return server

    @field_validator("judge")
    @classmethod
    def _no_secret(cls, judge: str | None) -> str | None:
        if judge is not None and ("://" in judge or "@" in judge or "?" in judge):  # a model's name has none of these
            check_address(judge.partition("#")[0])
        return judge

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        # Unset, a field that came later must not change the text of a sweep's settings.
        later = {"boxes": None, "think_marks": (), "judge": None}
        return (pair for pair in super().__repr_args__() if pair not in later.items())

    def flags(self) -> list[str]:
        """Return the same options on the command line of `opasd evaluate`."""
        words: list[str] = []
        for name, value in self:
            flag = f"--{name.replace('_', '-')}"
            if value is None or value == ():
                continue
            if isinstance(value, bool):
                words.append(flag if value else f"--no-{flag[2:]}")
            else:
                words += [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
        return words


def to_evaluate(values: Mapping[str, Any], where: str) -> EvaluateConfig:
    """Return the checked options; `where` names the origin in the message."""
    return checked(EvaluateConfig, values, where, "evaluate.")


TemplateValue = str | int | bool
_BOOLEANS = {"true": True, "false": False}
_WHOLE_NUMBER = re.compile("-?[0-9]+")


def template_option(name: str, value: TemplateValue) -> str:
    """Return NAME=VALUE as `parse_template_option` reads it back: a text that looks like another value is quoted."""
    if isinstance(value, str):
        ambiguous = value in _BOOLEANS or value.startswith('"') or _WHOLE_NUMBER.fullmatch(value)
        return f"{name}={json.dumps(value) if ambiguous else value}"
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def parse_template_option(text: str) -> tuple[str, TemplateValue]:
    """Return the name and the value of NAME=VALUE: true, false, a whole number, or a text, in quotes if need be."""
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not equals:
        raise ConfigError(f"--template-option: expected NAME=VALUE, got {text!r:.80}")
    if value in _BOOLEANS:
        return name, _BOOLEANS[value]
    try:
        if _WHOLE_NUMBER.fullmatch(value):
            return name, int(value)
        quoted = len(value) > 1 and value[0] == value[-1] == '"'
        return name, str(json.loads(value)) if quoted else value
    except ValueError:  # too many digits, or quotes within quotes
        raise ConfigError(
            f"--template-option: expected a number, or a text in quotes as in JSON, got {text!r:.80}"
        ) from None
