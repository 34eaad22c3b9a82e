"""Text of unknown origin, made fit for a page: models and run folders may hold anything."""

import base64
import hashlib
import json
import re
from html import escape
from typing import Any

_UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
"""Control characters, what turns the direction of text that follows, lone surrogates, what is no character."""


def printable(text: str) -> str:
    """The text with a replacement character for each character that a page cannot show or must not obey."""
    return _UNSHOWN.sub("\ufffd", text.replace("\r\n", "\n"))


def safe(text: str) -> str:
    """The text as HTML, between tags or in quotes."""
    return escape(printable(text), quote=True)


def embedded(value: Any) -> str:
    """JSON that can stand in a <script> element: no end of it, no comment, no line separator is in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSHOWN.sub("\ufffd", text).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def digest(source: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def shortened(text: str, limit: int) -> str:
    """The text, or its beginning and its end with … between."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def slug(text: str) -> str:
    """A name for a file or an element, of letters, digits, dots, at signs and hyphens."""
    return re.sub(r"[^A-Za-z0-9@.-]+", "-", text).strip("-.")[:80] or "x"


def no_formula(text: str) -> str:
    """A cell of a CSV file that no spreadsheet runs as a formula; numbers keep their sign."""
    shown = printable(text).replace("−", "-")
    return f"'{shown}" if shown[:1] in ("=", "@", "\t", "\r") or re.match(r"[-+](?![\d.])", shown) else shown
