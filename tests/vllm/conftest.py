"""Real vLLM on a CPU; all of this is skipped where vLLM is not installed."""

from importlib.util import find_spec

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(__file__.rsplit("/", 1)[0]):
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(900))
            item.add_marker(pytest.mark.filterwarnings("default"))  # vLLM's own
            if find_spec("vllm") is None:
                item.add_marker(pytest.mark.skip(reason="needs vLLM; make test-vllm"))
