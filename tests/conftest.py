"""Settings of the whole suite: no network, few threads, reproducible properties."""

import gc
import os
import signal
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["OMP_NUM_THREADS"] = "1"  # of every process that a test starts: threads that wait spin

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which peft does

torch.set_num_threads(1)
settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):  # one nursery for all workers
        from tests import nursery

        os.environ[nursery.SHARED] = nursery.address()


def pytest_sessionstart() -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell starts its background jobs so
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup; what a test starts is to hear it nevertheless
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_finish() -> None:
    gc.freeze()  # every training collects garbage; the libraries' objects, which stay, are not looked through each time


def pytest_sessionfinish() -> None:
    gc.unfreeze()
    if "tests.nursery" in sys.modules:
        sys.modules["tests.nursery"].end()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA GPU")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
