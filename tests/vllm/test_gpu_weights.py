"""vLLM on a GPU with all weights in training. A file of its own: a process can have one engine at a time on a GPU."""

import pytest
import torch

from opasd.config import DriftConfig, SamplingConfig
from opasd.rollout.drift import DriftCheck
from opasd.rollout.factory import make_engine
from tests.vllm.setting import LONGEST, base, change, config, prompts, tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
SAMPLED = SamplingConfig(temperature=0.9, top_k=12, top_p=0.9, max_new_tokens=64)


def test_all_weights_can_train():
    whole = base().to("cuda", torch.bfloat16).requires_grad_(True)
    made = make_engine(config(vllm={"memory_share": 0.2, "eager": True}), whole, tokenizer(), longest=LONGEST)
    made.stop = frozenset()
    asked = prompts(8)
    for _ in range(2):
        drift = DriftCheck(whole, DriftConfig(rollouts=8), half=True)(
            asked, made.generate(asked, SAMPLED, range(8), measured=8)
        )
        assert drift is not None
        assert drift.mean < 0.05
        change(whole, 0.01)
    made.close()
