"""The records that the attention viewer shows: how they are packed, and whether one is whole.

The KEPT largest weights of a step's row are stored as bytes on a logarithmic scale below the row's largest weight m: 0
for a weight below m·2⁻¹¹ or not stored, else 1 + 126·(11 + log₂(a/m))/11, rounded, so that a shown weight is off by at
most 3.1 %. Rows are compressed (zlib) and written in base64; the browser unpacks them. A trajectory of 2,000 tokens
takes a few megabytes. The curves are stored exactly as the loss computes them, to five digits.
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
"""The number of weights stored of a step; a shorter row is stored whole."""
PAGE_BYTES = 8_000_000
"""The size of the records in one page, at most."""


def quantised(row: np.ndarray) -> tuple[np.ndarray, float]:
    """Return one byte for each weight of a step, and the largest weight, to which the bytes are relative."""
    largest = float(row.max(initial=0.0))
    if not 0 < largest < np.inf:
        return np.zeros(row.size, np.uint8), 0.0
    with np.errstate(divide="ignore"):
        level = OCTAVES + np.log2(np.clip(row / largest, 0, 1))
    levels = np.where(level > 0, 1 + np.rint(np.clip(level, 0, OCTAVES) * LEVELS / OCTAVES), 0).astype(np.uint8)
    if row.size > KEPT:
        levels[np.argpartition(row, row.size - KEPT)[: row.size - KEPT]] = 0
    return levels, largest


def packed(rows: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return the rows of all steps, concatenated, compressed and in base64, and the largest weight of each."""
    steps = [quantised(row) for row in rows]
    levels = b"".join(levels.tobytes() for levels, _ in steps)
    return {
        "rows": base64.b64encode(zlib.compress(levels, 6)).decode(),
        "largest": [float(f"{largest:.5g}") for _, largest in steps],
    }


def unpacked(pack: dict[str, Any], lengths: Sequence[int]) -> list[np.ndarray]:
    """Return the rows of these lengths that were packed, as far as they were stored."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(pack["rows"])), np.uint8)
    shares = np.where(levels > 0, 2.0 ** ((levels.astype(float) - 1) * OCTAVES / LEVELS - OCTAVES), 0.0)
    rows = np.split(shares, np.cumsum(lengths)[:-1])
    return [largest * row for row, largest in zip(rows, pack["largest"], strict=True)]


def is_record(record: Any) -> bool:
    """Return whether the viewer can show the record: its kind and version, and that all parts fit together."""
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
        heads = [head for part in (*record["layers"], *record["views"]) for head in part.get("heads", ())]
        packs += [head[name] for head in heads for name in ("teacher", "projected", "student") if name in head]
        curves += [head["rho"] if "rho" in head else head["divergence"] for head in heads]
        curves += [layer["rho_text"] for layer in (*record["layers"], *heads) if "rho_text" in layer]
        return (
            steps > 0
            and len(record["seen"]["shared"]) == steps
            and len(record["shared"]["student"]) == len(record["shared"]["teacher"])
            and bool(record["views"] and record["layers"])
            and all(isinstance(text, str) for text in (*texts, *(pack["rows"] for pack in packs)))
            and all(len(pack["largest"]) == steps for pack in packs)
            and all(isinstance(number, int) and number >= 0 for number in numbers)
            and all(position < len(record["student"]["tokens"]) for position in record["shared"]["student"])
            and all(len(curve) == steps and all(isinstance(y, int | float) for y in curve) for curve in curves)
            and bool(json.dumps(record, allow_nan=False))
        )
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        return False
