"""The attention viewer's place in a page, and how its record is packed.

Of each step's row the KEPT largest weights are kept, as bytes on a logarithmic scale below the row's largest weight m:
0 for a weight below m·2⁻¹¹ or not kept, else 1 + 126·(11 + log₂(a/m))/11, rounded, so that a shown weight is off by
at most 3.1 %. Rows are compressed (zlib) and written in base64; a browser unpacks them. A trajectory of 2,000 tokens
takes a few megabytes. The curves are not rounded so: they are the loss's own numbers.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

KIND, VERSION = "opasd attention", 1
OCTAVES, LEVELS = 11, 126
KEPT = 256
"""Weights of a step that are kept; a shorter row is kept whole."""
PAGE_BYTES = 8_000_000
"""Of records in one page."""
SHELL = '<div id="viewer" class="viewer" tabindex="0" role="application" aria-label="Attention viewer"></div>'
ABOUT = (
    '<p class="soft small">At each step of one trajectory: where the teacher looks with the solution in view, the same '
    "projected onto what the student can see, and where the student looks, in shades over the tokens. Move over the "
    "response or the curves to change the step; a click on a token holds it. Shaded are the 256 strongest positions of "
    "a step; dotted: what stands in one context alone and is not compared.</p>"
)


def quantised(row: np.ndarray) -> tuple[np.ndarray, float]:
    """One byte for each weight of a step, and the largest weight, to which they are relative."""
    largest = float(row.max(initial=0.0))
    if not 0 < largest < np.inf:
        return np.zeros(row.size, np.uint8), 0.0
    with np.errstate(divide="ignore"):
        level = OCTAVES + np.log2(np.clip(row / largest, 0, 1))
    levels = np.where(level > 0, 1 + np.rint(np.clip(level, 0, OCTAVES) * LEVELS / OCTAVES), 0).astype(np.uint8)
    if row.size > KEPT:
        levels[np.argpartition(row, row.size - KEPT)[: row.size - KEPT]] = 0
    return levels, largest


def restored(levels: np.ndarray, largest: float) -> np.ndarray:
    """The weights that the bytes stand for."""
    return np.where(levels > 0, largest * 2.0 ** ((levels.astype(float) - 1) * OCTAVES / LEVELS - OCTAVES), 0.0)


def packed(rows: Sequence[np.ndarray]) -> dict[str, Any]:
    """The rows of all steps, one after another, compressed, in base64; and the largest weight of each."""
    found = [quantised(row) for row in rows]
    levels = b"".join(levels.tobytes() for levels, _ in found)
    return {
        "rows": base64.b64encode(zlib.compress(levels, 9)).decode(),
        "largest": [float(f"{largest:.5g}") for _, largest in found],
    }


def unpacked(pack: dict[str, Any], seen: Sequence[int]) -> list[np.ndarray]:
    """What `packed` was given, as far as it was kept; `seen` are the lengths of the rows."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(pack["rows"])), np.uint8)
    ends = np.cumsum(seen)
    return [
        restored(levels[end - count : end], largest)
        for end, count, largest in zip(ends, seen, pack["largest"], strict=True)
    ]


def is_record(record: Any) -> bool:
    """Whether the viewer can show it: the right kind and version, and every part there and of one size."""
    try:
        if record["kind"] != KIND or record["version"] != VERSION:
            return False
        steps = len(record["seen"]["teacher"])
        texts = [*record["student"]["tokens"], *record["teacher"]["tokens"]]
        numbers = [*record["seen"]["teacher"], *record["seen"]["shared"], *record["shared"]["student"]]
        numbers += [*record["shared"]["teacher"], *record["teacher"]["solution"], record["teacher"]["prompt"]]
        packs = [layer[name] for layer in record["layers"] for name in ("teacher", "projected")]
        packs += [view["student"] for view in record["views"]]
        curves = [layer["rho"] for layer in record["layers"]] + [view["divergence"] for view in record["views"]]
        return (
            steps > 0
            and len(record["seen"]["shared"]) == steps
            and len(record["shared"]["student"]) == len(record["shared"]["teacher"])
            and bool(record["views"] and record["layers"])
            and all(isinstance(text, str) for text in (*texts, *(pack["rows"] for pack in packs)))
            and all(len(pack["largest"]) == steps for pack in packs)
            and all(isinstance(number, int) and number >= 0 for number in numbers)
            and all(place < len(record["student"]["tokens"]) for place in record["shared"]["student"])
            and all(len(curve) == steps and all(isinstance(y, int | float) for y in curve) for curve in curves)
            and bool(json.dumps(record, allow_nan=False))
        )
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        return False


def parts(records: Sequence[dict[str, Any]], limit: int = PAGE_BYTES) -> list[list[dict[str, Any]]]:
    """The records in as many pages as they need; a page holds at least one."""
    found: list[list[dict[str, Any]]] = []
    spent = 0
    for record in records:
        cost = len(json.dumps(record))
        if not found or spent + cost > limit:
            found.append([])
            spent = 0
        found[-1].append(record)
        spent += cost
    return found
