"""What a process said last: its message, and whether it was short of the device's memory."""

import traceback
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.sweep.logs import OTHER_PROCESS, last_words
from tests.models import CUDNN

OUT = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.00 GiB."
ASYNCHRONOUS = "\nCUDA kernel errors might be asynchronously reported\nCompile with `TORCH_USE_CUDA_DSA`\n"
VLLM = (
    "Free memory on device cuda:0 (3.25/23.43 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 21.09 GiB)."
)


def said(tmp_path: Path, text: str, before: str = "") -> tuple[str, bool]:
    log = tmp_path / "log"
    log.write_text(before + text)
    return last_words(log, len(before))


def raised(error: Exception) -> str:
    try:
        raise error
    except Exception as caught:
        return "".join(traceback.format_exception(caught))


@pytest.mark.parametrize(
    "text",
    [
        raised(torch.OutOfMemoryError(OUT)),
        raised(torch.OutOfMemoryError("HIP out of memory. Tried to allocate 20.00 MiB.")),
        raised(RuntimeError(OUT)),
        raised(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
        raised(torch.AcceleratorError("CUDA error: out of memory" + ASYNCHRONOUS)),
        raised(RuntimeError("Triton Error [CUDA]: out of memory")),
        raised(RuntimeError(CUDNN)),
        raised(ValueError(VLLM)),
        "torch.cuda.OutOfMemoryError: " + OUT,
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out of memory\n",
        f"error: vLLM cannot serve Qwen/Qwen3-1.7B: {VLLM}\n(its settings)\n",
        "  9%|▉  | 1/10\r 10%|█  | 2/10\rTraceback (most recent call last):\n" + f"[rank1]: RuntimeError: {OUT}\n",
        f"[rank1]: torch.OutOfMemoryError: {OUT}\n" + raised(RuntimeError("Connection closed by peer")) * 20,
    ],
)
def test_short_of_memory(tmp_path: Path, text: str) -> None:
    message, short = said(tmp_path, "started\n" + text)
    assert short
    assert any(words in message for words in ("memory", "ALLOC_FAILED", "mha_graph"))


@pytest.mark.parametrize(
    "text",
    [
        raised(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`")),
        raised(RuntimeError("CUDA error: an illegal memory access was encountered" + ASYNCHRONOUS)),
        raised(RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")),
        raised(MemoryError("out of memory")),
        f"decoding goes on without CUDA graphs, which is slow: {OUT}\n" + raised(RuntimeError("a bug")),
        "the model takes no packed sequences (RuntimeError: CUDA error: out of memory)\n" + raised(KeyError("a")),
        f"    raise torch.OutOfMemoryError('{OUT}')\n" + raised(ValueError("another")),
        raised(torch.OutOfMemoryError(OUT)) + "error: no such column; name another\n",
        "",
    ],
)
def test_not_short_of_memory(tmp_path: Path, text: str) -> None:
    assert not said(tmp_path, text)[1]


def test_the_message_is_the_last_error_or_the_last_line(tmp_path: Path) -> None:
    assert said(tmp_path, "error: one\nerror: two;\n  more\n\n") == ("two; more", False)
    assert said(tmp_path, raised(RuntimeError("a bug")) + "\n\n") == ("RuntimeError: a bug", False)
    text = "CUDA error: out of memory" + ASYNCHRONOUS
    assert said(tmp_path, raised(RuntimeError(text)))[0] == "RuntimeError: " + " ".join(text.split())
    # What an earlier attempt said is past.
    assert said(tmp_path, "one\n", before=f"torch.OutOfMemoryError: {OUT}\n") == ("one", False)
    assert last_words(tmp_path / "absent", 0) == ("", False)


@settings(max_examples=50)
@given(noise=st.binary(max_size=200))
def test_any_bytes_have_last_words(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    log = tmp_path_factory.mktemp("logs") / "log"
    log.write_bytes(noise + f"\ntorch.OutOfMemoryError: {OUT}\n".encode())
    message, short = last_words(log, 0)
    assert (message, short) == (f"torch.OutOfMemoryError: {OUT}", True)


@pytest.mark.parametrize(
    ("others", "counts"),
    [
        ("Process 7 has 21.78 GiB memory in use.", True),
        ("Process 7 has 66.00 MiB memory in use. Process 8 has 1.00 GiB memory in use.", True),
        ("Process 7 has 66.00 MiB memory in use.", False),  # a desktop, or the service by which processes share a GPU
        ("Including non-PyTorch memory, this process has 18.35 GiB memory in use.", False),
    ],
)
def test_other_processes_count_where_they_hold_much(others: str, counts: bool) -> None:
    message = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {others}"
    assert bool(OTHER_PROCESS.search(message)) is counts
