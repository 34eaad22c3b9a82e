"""Make text of unknown origin fit for a page: models and run folders may hold anything."""

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, TypeVar

T = TypeVar("T")

_UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
"""Control characters, marks that turn the direction of the following text, lone surrogates, non-characters."""


def printable(text: str) -> str:
    """Replace each character that a page cannot show or must not obey."""
    return _UNSHOWN.sub("\ufffd", text.replace("\r\n", "\n"))


def safe(text: str) -> str:
    """Return the text as HTML, for between tags or in quotes."""
    return escape(printable(text), quote=True)


def embedded(value: Any) -> str:
    """Return JSON for a <script> element; it holds no end of the element, no comment, no line separator."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSHOWN.sub("\ufffd", text).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def digest(source: str) -> str:
    """Return the digest by which a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def shortened(text: str, limit: int) -> str:
    """Return the text, or its beginning and its end with … between if it is too long."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def shared_start(texts: Sequence[str]) -> str:
    """Return the longest text that all texts begin with."""
    first, last = min(texts), max(texts)  # the others lie between these two, and share what these two share
    different = (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(different, len(first))]


def split_by_size(items: Iterable[T], size: Callable[[T], int], limit: int) -> list[list[T]]:
    """Split the items into lists of at most `limit` in size together; a list holds at least one item."""
    parts: list[list[T]] = []
    total = 0
    for item in items:
        added = size(item)
        if not parts or total + added > limit:
            parts.append([])
            total = 0
        parts[-1].append(item)
        total += added
    return parts


def slug(text: str) -> str:
    """Return a name for a file or an element, of letters, digits, dots, at signs and hyphens."""
    return re.sub(r"[^A-Za-z0-9@.-]+", "-", text).strip("-.")[:80] or "x"


def csv_text(rows: Iterable[Sequence[str | float]]) -> str:
    """Return the rows as CSV; no spreadsheet runs a text in them as a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_no_formula(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return out.getvalue()


def _no_formula(text: str) -> str:
    """Return a text that does not begin like a formula; numbers keep their sign."""
    shown = printable(text).replace("−", "-")
    return f"'{shown}" if shown[:1] in ("=", "@", "\t", "\r") or re.match(r"[-+](?![\d.])", shown) else shown
