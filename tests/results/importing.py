"""The scripts of results/, which import one another by their bare names."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

RESULTS = Path(__file__).parents[2] / "results"


@contextmanager
def imported(name: str) -> Iterator[ModuleType]:
    """Import results/NAME.py with its neighbours, and forget them afterwards."""
    own = [path.stem for path in RESULTS.glob("*.py")]
    with pytest.MonkeyPatch.context() as patch:
        for each in own:
            patch.delitem(sys.modules, each, raising=False)
        patch.syspath_prepend(str(RESULTS))
        yield import_module(name)
        for each in own:
            sys.modules.pop(each, None)
