"""What the browser does with a packed row, in Python."""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from opasd.report.viewer import LEVELS, OCTAVES


def restored(levels: np.ndarray, largest: float) -> np.ndarray:
    """The weights that the bytes encode."""
    return np.where(levels > 0, largest * 2.0 ** ((levels.astype(float) - 1) * OCTAVES / LEVELS - OCTAVES), 0.0)


def unpacked(pack: dict[str, Any], lengths: Sequence[int]) -> list[np.ndarray]:
    """The rows of these lengths that were packed, as far as they were stored."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(pack["rows"])), np.uint8)
    rows = np.split(levels, np.cumsum(lengths)[:-1])
    return [restored(row, largest) for row, largest in zip(rows, pack["largest"], strict=True)]
