"""Launches by a table of what kernels were compiled for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import native_specialize_impl

from opasd.losses.fused.launch import described, launch

STORES = {dtype: torch.zeros(64, dtype=dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64)}
integers = st.one_of(
    st.integers(-40, 40), st.integers(-(2**62), 2**62), st.integers(-(2**40), 2**40).map(lambda n: n * 16)
)
tensors = st.builds(lambda dtype, begin: STORES[dtype][begin:], st.sampled_from(list(STORES)), st.integers(0, 20))
arguments = st.one_of(integers, st.floats(), st.booleans(), st.none(), tensors)


@given(arguments, arguments)
def test_what_triton_compiles_differently_for_is_described_differently(one, other):
    if described(one) == described(other):
        for specialise, align in ((True, True), (False, False)):
            mine, theirs = (native_specialize_impl(CUDABackend, x, False, specialise, align) for x in (one, other))
            assert mine == theirs


class Kernel:
    """Stands for a kernel: notes what it is compiled for, and what a compiled one is launched with."""

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


def test_a_second_launch_takes_the_compiled_kernel_with_its_own_arguments():
    kernel, x = Kernel(), torch.zeros(32)
    launch(kernel, (3,), x, 48, 0.5, SIZE=8, WIDE=True, num_warps=4)
    assert not kernel.launched
    launch(kernel, (5, 2), x, 64, 0.25, SIZE=8, WIDE=True, num_warps=4)
    ((grid, arguments, constants),) = kernel.launched
    assert grid == (5, 2, 1)
    assert arguments[0] is x
    assert arguments[1:] == (64, 0.25, True, 8)
    assert constants == {"SIZE": 8, "WIDE": True, "num_warps": 4}
    assert len(kernel.compiled) == 1


@pytest.mark.parametrize(
    ("arguments", "constants"),
    [
        ((torch.zeros(32)[1:], 48, 0.5), {"SIZE": 8, "WIDE": True, "num_warps": 4}),
        ((torch.zeros(32, dtype=torch.bfloat16), 48, 0.5), {"SIZE": 8, "WIDE": True, "num_warps": 4}),
        ((torch.zeros(32), 49, 0.5), {"SIZE": 8, "WIDE": True, "num_warps": 4}),
        ((torch.zeros(32), 1, 0.5), {"SIZE": 8, "WIDE": True, "num_warps": 4}),
        ((torch.zeros(32), 2**40, 0.5), {"SIZE": 8, "WIDE": True, "num_warps": 4}),
        ((torch.zeros(32), 48, None), {"SIZE": 8, "WIDE": True, "num_warps": 4}),
        ((torch.zeros(32), 48, 0.5), {"SIZE": 16, "WIDE": True, "num_warps": 4}),
        ((torch.zeros(32), 48, 0.5), {"SIZE": 8, "WIDE": True, "num_warps": 8}),
    ],
)
def test_anything_else_is_triton_s_to_find(arguments, constants):
    kernel = Kernel()
    launch(kernel, (1,), torch.zeros(32), 48, 0.5, SIZE=8, WIDE=True, num_warps=4)
    launch(kernel, (1,), *arguments, **constants)
    assert not kernel.launched
    assert len(kernel.compiled) == 2


def test_kernels_are_told_apart():
    one, other = Kernel(), Kernel()
    for kernel in (one, other, other):
        launch(kernel, (1,), torch.zeros(32), 48, 0.5, SIZE=8, WIDE=True)
    assert len(one.compiled) == len(other.compiled) == len(other.launched) == 1
    assert not one.launched


def test_what_compiles_nothing_is_run_each_time():
    runs = []

    class Interpreted:
        def __getitem__(self, grid):
            return lambda *arguments, **constants: runs.append(grid)

    kernel = Interpreted()
    for _ in range(2):
        launch(kernel, (4,), torch.zeros(3), SIZE=1)
    assert runs == [(4,), (4,)]
