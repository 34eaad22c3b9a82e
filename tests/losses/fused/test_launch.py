"""Launches by a table of what kernels were compiled for."""

from itertools import product

import pytest
import torch

pytest.importorskip("triton")
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import native_specialize_impl

from opasd.losses.fused.launch import described, launch

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int64)
TENSORS = [torch.zeros(64, dtype=dtype)[begin:] for dtype in DTYPES for begin in (0, 1, 2, 4, 8, 16)]
EDGES = [edge + more for edge in (0, 2**31, -(2**31), 2**63, -(2**63), 48) for more in (-16, -1, 0, 1, 16)]
INTEGERS = sorted(number for number in EDGES if -(2**63) <= number < 2**64)
ARGUMENTS = [*TENSORS, *INTEGERS, 1, 17, 0.0, 1.0, 16.0, True, False, None]
SETTINGS = {"SIZE": 8, "WIDE": True, "num_warps": 4}


def compiled_for(argument):
    """How Triton distinguishes arguments, with and without their alignment and value."""
    ways = ((True, True), (True, False), (False, False))
    return [native_specialize_impl(CUDABackend, argument, False, *way) for way in ways]


def test_what_triton_compiles_differently_for_is_described_differently():
    known = [(described(argument), compiled_for(argument)) for argument in ARGUMENTS]
    for (ours, triton_s), (our_other, triton_s_other) in product(known, known):
        assert ours != our_other or triton_s == triton_s_other


def test_aligned_and_other_sizes_share_a_description():
    assert described(torch.zeros(3)) == described(torch.zeros(9, 9))
    assert described(32) == described(4096)
    assert described(33) == described(35)
    assert described(0.5) == described(-3.0)


def test_what_no_kernel_takes_is_refused():
    with pytest.raises(TypeError, match="got tuple"):
        described((1, 2))  # pyright: ignore[reportArgumentType]


class Kernel:
    """A kernel that records what it is compiled for, and what its compiled versions are launched with."""

    arg_names = ("X", "count", "scale", "WIDE", "SIZE")

    def __init__(self):
        self.compiled, self.launched = [], []

    def __getitem__(self, grid):
        def compile_and_run(*arguments, **constants):
            self.compiled.append((grid, arguments, constants))
            return Compiled(self.launched, constants)

        return compile_and_run


class Compiled:
    def __init__(self, launched, constants):
        self.launched, self.constants = launched, constants

    def __getitem__(self, grid):
        return lambda *arguments: self.launched.append((grid, arguments, self.constants))


@pytest.mark.parametrize(("grid", "whole"), [((5,), (5, 1, 1)), ((5, 2), (5, 2, 1)), ((5, 2, 3), (5, 2, 3))])
def test_a_second_launch_takes_the_compiled_kernel_with_its_own_arguments(grid, whole):
    kernel, x = Kernel(), torch.zeros(32)
    launch(kernel, (3,), x, 48, 0.5, **SETTINGS)
    assert not kernel.launched
    launch(kernel, grid, x, 64, 0.25, **SETTINGS)
    ((seen, arguments, constants),) = kernel.launched
    assert seen == whole
    assert arguments[0] is x
    assert arguments[1:] == (64, 0.25, True, 8)
    assert constants == SETTINGS
    assert len(kernel.compiled) == 1


@pytest.mark.parametrize(
    ("arguments", "constants"),
    [
        ((torch.zeros(32)[1:], 49, 0.5), SETTINGS),
        ((torch.zeros(32, dtype=torch.bfloat16), 49, 0.5), SETTINGS),
        ((torch.empty(32, device="meta"), 49, 0.5), SETTINGS),
        ((torch.zeros(32), 48, 0.5), SETTINGS),
        ((torch.zeros(32), 1, 0.5), SETTINGS),
        ((torch.zeros(32), 2**40 + 1, 0.5), SETTINGS),
        ((torch.zeros(32), 49, None), SETTINGS),
        ((torch.zeros(32), 49, 2), SETTINGS),
        ((torch.zeros(32), 49, 0.5), SETTINGS | {"SIZE": 16}),
        ((torch.zeros(32), 49, 0.5), SETTINGS | {"WIDE": 1}),
        ((torch.zeros(32), 49, 0.5), SETTINGS | {"num_warps": 8}),
        ((torch.zeros(32), 49, 0.5), {"SIZE": 8, "WIDE": True, "num_stages": 4}),
        ((torch.zeros(32), 49, 0.5), {"WIDE": 8, "SIZE": True, "num_warps": 4}),
    ],
)
def test_anything_else_is_triton_s_to_find(arguments, constants):
    kernel = Kernel()
    launch(kernel, (1,), torch.zeros(32), 49, 0.5, **SETTINGS)
    launch(kernel, (1,), *arguments, **constants)
    assert not kernel.launched
    assert len(kernel.compiled) == 2


def test_kernels_are_distinguished():
    first, second = Kernel(), Kernel()
    for kernel in (first, second, second):
        launch(kernel, (1,), torch.zeros(32), 48, 0.5, **SETTINGS)
    assert len(first.compiled) == len(second.compiled) == len(second.launched) == 1
    assert not first.launched


def test_a_missing_constant_is_named_before_anything_runs():
    kernel = Kernel()
    with pytest.raises(KeyError, match="SIZE"):
        launch(kernel, (1,), torch.zeros(32), 48, 0.5, WIDE=True)
    assert not kernel.compiled


def test_another_maker_s_gpu_has_tritons_own_launch(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    kernel = Kernel()
    for _ in range(2):
        launch(kernel, (1,), torch.zeros(32), 48, 0.5, **SETTINGS)
    assert len(kernel.compiled) == 2


def test_what_compiles_nothing_is_run_each_time():
    runs = []

    class Interpreted:
        arg_names = ("X", "SIZE")

        def __getitem__(self, grid):
            return lambda *arguments, **constants: runs.append(grid)

    kernel = Interpreted()
    for _ in range(2):
        launch(kernel, (4,), torch.zeros(3), SIZE=1)
    assert runs == [(4,), (4,)]
