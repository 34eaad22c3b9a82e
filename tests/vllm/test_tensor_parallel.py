"""Two processes share vLLM's weights: each gets the completions of its own prompts, from the current weights."""

import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from opasd.rollout.factory import make_engine
from tests import nursery
from tests.vllm.setting import GREEDY, LONGEST, SMALL, base, change, config, greedy, prompts, student, tokenizer

SCRIPT = """
import os, sys
from tests.vllm.test_tensor_parallel import check
check(sys.argv[1])
sys.stderr.flush()
os._exit(0)
"""


def check(kind):
    """In one of two processes: other prompts in each, none in one of them, and an update in between."""
    dist.init_process_group("gloo")
    model = student() if kind == "adapter" else base().requires_grad_(True)
    engine = make_engine(config(vllm=SMALL | {"tensor_parallel": 2}), model, tokenizer(), longest=LONGEST)
    engine.stop = frozenset()
    for turn, counts in enumerate([(2, 0), (3, 4)]):
        asked = prompts(counts[dist.get_rank()], seed=2 * turn + dist.get_rank())
        found = engine.generate(asked, GREEDY, range(len(asked)))
        assert [completion.ids for completion in found] == [greedy(model, prompt) for prompt in asked]
        change(model)
    engine.close()
    dist.barrier()  # the processes' own group is still there
    sys.stderr.write("checked\n")


@pytest.fixture(autouse=True)
def _no_memory_left_behind():
    """On a CPU vLLM gives the memory that processes share one name for all times, and a process may end without it."""
    yield
    for left in Path("/dev/shm").glob("-tp:0-*-cpushm_*"):
        left.unlink()


@pytest.mark.parametrize("kind", ["adapter", "all weights"])
def test_processes_that_share_the_weights(kind):
    for done in nursery.run_together(2, "-c", SCRIPT, kind):
        assert done.returncode == 0, done.stderr[-3000:]
        assert "checked" in done.stderr
