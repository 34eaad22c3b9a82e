"""The token loss's kernel is compiled for a GPU that need not be here, where the compiler once crashed."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from opasd.losses.fused.token_kernels import CLIPS, compare_rows

constants = {"STUDENT_BIAS": None, "TEACHER_BIAS": None, "KIND": 0, "CLIP": CLIPS["pointwise"], "GRADIENT": True}
constants |= {"CAPS": 0, "LANES": 512}
types = {"STUDENT": "*bf16", "DIFFERENCE": "*bf16", "READINGS": "*fp32", "vocabulary": "i32"}
types |= dict.fromkeys(constants, "constexpr")
signature = {name: types.get(name, "fp32") for name in compare_rows.arg_names}
aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(signature.values()) if kind[0] == "*"}
source = ASTSource(compare_rows, signature, constants, aligned)
print(compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 16}).asm["ptx"])
"""


def test_point_wise_clipping_compiles_for_sm_90_at_an_uneven_vocabulary(tmp_path):
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    settings["TRITON_CACHE_DIR"] = str(tmp_path)  # a kernel in the cache would not be compiled
    process = subprocess.run([sys.executable, "-c", COMPILE], env=settings, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr  # a crash ends that process, not this one
    assert "sm_90" in process.stdout
    assert "compare_rows" in process.stdout
