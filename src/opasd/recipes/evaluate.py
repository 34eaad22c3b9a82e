"""How a result is evaluated: what `opasd evaluate` is given, as a recipe or a sweep says it."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from opasd.choices import Engine
from opasd.config import Section
from opasd.errors import ConfigError
from opasd.recipes.checking import explain


class EvaluateConfig(Section):
    """Options of `opasd evaluate` under the same names; what is unset is its own choice or the profile's."""

    benchmarks: tuple[str, ...] = ()
    """Names (`opasd evaluate --list`), data files or folders. Unset: the paper's four, or `lab` for the lab."""
    profile: Literal["paper", "opsd", "lab"] | None = None
    """Sampling settings by name."""
    samples: int | None = Field(default=None, gt=0)
    """Answers for each problem."""
    problems: int | None = Field(default=None, gt=0)
    """Only this many problems of each benchmark."""
    budgets: tuple[int, ...] = ()
    """Lengths at which the same samples are cut and graded; each is reported by itself."""
    max_new_tokens: int | None = Field(default=None, gt=0)
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
    """What samples."""
    server: tuple[str, ...] = ()
    """vLLM servers, for `engine: vllm_server`."""
    max_batch: int | None = Field(default=None, gt=0)
    """Samples drawn side by side."""
    data_dir: str | None = None
    """Folder with local copies of benchmarks."""

    def flags(self) -> list[str]:
        """The same on the command line of `opasd evaluate`."""
        found: list[str] = []
        for name in type(self).model_fields:
            value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
            if value is None or value == ():
                continue
            if name == "thinking":
                found.append(flag if value else "--no-thinking")
            elif name == "server":
                found += [word for url in value for word in (flag, url)]
            else:
                found += [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
        return found


def to_evaluate(values: Mapping[str, Any], where: str) -> EvaluateConfig:
    """Checked; `where` names the origin in the message."""
    try:
        return EvaluateConfig.model_validate(dict(values))
    except ValidationError as error:
        lines = explain(error, EvaluateConfig)
        raise ConfigError(f"{where}:\n" + "\n".join(f"  evaluate.{line}" for line in lines)) from None
