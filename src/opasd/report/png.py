"""Figures as PNG, where the `png` extra is installed; the page's own PNG buttons need nothing."""

from collections.abc import Callable
from importlib.util import find_spec

from opasd.errors import ConfigError

SCALE = 3


def rasteriser() -> Callable[[str], bytes]:
    """SVG text ─► PNG bytes, three pixels a unit."""
    if find_spec("resvg_py") is None:
        raise ConfigError(
            "--png needs resvg; pip install 'opasd[png]', or use the PNG button under each figure of the page"
        )
    import resvg_py

    def rasterise(svg: str) -> bytes:
        return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=SCALE))

    return rasterise
