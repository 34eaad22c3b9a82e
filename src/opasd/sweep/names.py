"""Names of runs and texts of settings: short, safe as a folder's name, and never the same for two different values."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from opasd.recipes.fields import Settings
from opasd.recipes.reading import parse_value

_LONGEST_NAME = 120
_LONGEST_CELL = 40


def settings_name(settings: Settings) -> str:
    """Return the settings as one text, such as `attention_weight-0.5-update-ema`."""
    short = short_names(list(settings))
    return "-".join(f"{short[field]}-{value_text(value)}" for field, value in settings.items())


def short_names(fields: Sequence[str]) -> dict[str, str]:
    """Return the last part of each field's name, with the parts before it that make it unique among the fields."""
    short: dict[str, str] = {}
    for field in fields:
        parts = field.split(".")
        others = [other.split(".") for other in fields if other != field]
        count = next((n for n in range(1, len(parts)) if all(o[-n:] != parts[-n:] for o in others)), len(parts))
        short[field] = ".".join(parts[-count:])
    return short


def value_text(value: Any) -> str:
    """Return a value as a name or a table has it; a text that reads like another value is quoted."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, str):
        return value if isinstance(parse_value(value), str) else f'"{value}"'
    return "+".join(map(value_text, value)) if isinstance(value, list | tuple) else str(value)


def folder_name(text: str) -> str:
    """Return the text as a folder's name, with a digest of the text if a part of it had to be left out."""
    name = re.sub(r"[^A-Za-z0-9._+=@-]+", "_", text).lstrip(".-_")[:_LONGEST_NAME]
    return name if name == text else with_digest(name or "run", text)


def with_digest(name: str, text: str) -> str:
    """Return the name with six hexadecimal digits that differ for another text."""
    return f"{name}-{hashlib.blake2b(text.encode(errors='surrogatepass'), digest_size=3).hexdigest()}"


def shortened_texts(texts: Sequence[str]) -> list[str]:
    """Return texts for the cells of a column: for long ones the words in which they differ, as far as these fit.

    A single word, such as a path, stays whole: two of them may differ at the end alone.
    """
    if not any(len(text.split()) > 1 and (len(text) > _LONGEST_CELL or "\n" in text) for text in texts):
        return list(texts)
    split = [text.split() for text in texts]
    shortest = min(map(len, split))
    first = next((n for n in range(shortest) if len({words[n] for words in split}) > 1), shortest)
    last = next((n for n in range(shortest - first) if len({words[-1 - n] for words in split}) > 1), shortest - first)
    cells = []
    for words in split:
        text = " ".join(["…"] * (first > 0) + words[first : len(words) - last] + ["…"] * (last > 0))
        cells.append(text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…")
    return cells
