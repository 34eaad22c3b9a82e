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


def soft_intervals(text: str) -> str:
    """Return the text for HTML, with every interval behind a number in a span of its own."""
    return re.sub(r"(?<=[\d%]) (\[[^\]]*\])", r' <span class="ci">\1</span>', safe(text))


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


def without_shared_start(names: Sequence[str]) -> list[str]:
    """Return the names without the words that all of them begin with; as they are if one would be empty."""
    cut = _shared_words(names)
    return list(names) if any(len(name) == cut for name in names) else [name[cut:] for name in names]


def short_names(names: Sequence[str], limit: int) -> list[str]:
    """Return names of at most `limit` characters that differ where the names do, as far as that can be.

    Left out is what all begin with, then what the long ones begin and end with, then the middle of a name, and if
    that makes two alike, its beginning."""
    if not names or max(map(len, names)) <= limit:
        return list(names)
    parts, tried = without_shared_start(names), []
    long = [part for part in parts if len(part) > limit]
    start, end = _shared_words(long), _shared_words([part[::-1] for part in long])
    end = 0 if any(len(part) <= start + end for part in long) else end
    for left, right in ((0, 0), (start, 0), (start, end)):
        before, after = "…" if left else "", "…" if right else ""
        cuts = [part if part not in long else f"{before}{part[left : len(part) - right]}{after}" for part in parts]
        texts = [shortened(cut, limit) for cut in cuts]
        if len(set(texts)) == len(set(names)):
            if texts == cuts:
                return texts
            tried.append(texts)
    return tried[-1] if tried else [part if part not in long else f"…{part[1 - limit :]}" for part in parts]


def _shared_words(texts: Sequence[str]) -> int:
    """Return the length of the words that all of several texts begin with."""
    shared = len(shared_start(texts)) if len(texts) > 1 else 0
    return max(texts[0].rfind(separator, 0, shared) for separator in "-_/ ") + 1 if shared else 0


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
