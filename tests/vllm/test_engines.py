"""Engines of other kinds than a student's with an adapter, one at a time: vLLM has one set of globals a process."""

import os
import random

import numpy as np
import pytest
import torch

from opasd.config import DriftConfig, SamplingConfig
from opasd.errors import ConfigError
from opasd.rollout.drift import DriftCheck
from opasd.rollout.factory import make_engine, serve_base
from opasd.rollout.stops import stop_ids
from opasd.rollout.vllm.in_process import VLLMEngine
from opasd.rollout.vllm.serving import ServedBase
from tests.vllm.setting import FLOAT32, GREEDY, LONGEST, base, change, config, greedy, prompts, student, tokenizer

NO_STOP: frozenset[int] = frozenset()
SAMPLED = SamplingConfig(temperature=0.9, top_k=12, top_p=0.9, max_new_tokens=30)


def ids(completions):
    return [completion.ids for completion in completions]


def rows(model, asked):
    return [greedy(model, prompt) for prompt in asked]


def test_the_process_is_left_as_it_was():
    """vLLM seeds the generators and replaces torch's function when it is made, and draws from them."""
    model = student()
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    threads, environment = torch.set_num_threads, dict(os.environ)
    made = make_engine(config(), model, tokenizer(), longest=LONGEST)
    made.generate(prompts(2), SAMPLED, [1, 2], measured=1)
    made.close()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # noqa: NPY002
    assert torch.set_num_threads is threads
    assert {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")} == {
        k: v for k, v in environment.items() if not k.startswith("VLLM_")
    }
    assert torch.is_grad_enabled()


def test_all_weights_can_train():
    """Without adapters the weights are copied over, and the caches are forgotten with them.

    The model says one token again and again about random prompts, often the same after an update: what tells the
    updates apart is how likely that token is.
    """
    torch.manual_seed(0)
    whole = base()
    whole.requires_grad_(True)
    made = make_engine(config(), whole, tokenizer(), longest=LONGEST)
    made.stop = NO_STOP
    asked, seen = prompts(6), set()
    for _ in range(3):
        found = made.generate(asked, GREEDY, range(6), measured=6)
        assert ids(found) == rows(whole, asked)
        assert DriftCheck(whole, DriftConfig(), half=False)(asked, found) is not None
        seen.add(tuple(round(sum(completion.logprobs), 2) for completion in found))
        change(whole, 0.02)
    assert len(seen) == 3
    made.close()


def test_ids_beyond_the_tokenizer_are_ids_too():
    """A padded vocabulary: the model may sample what has no text, and the trainer needs just these ids."""
    whole, known = base(), len(tokenizer())
    assert whole.config.vocab_size > known
    asked = prompts(4)
    with torch.no_grad():
        likely = torch.tensor([row[0] for row in rows(whole, asked)])
        table = whole.get_input_embeddings().weight
        table[known : known + 4] = 1.5 * table[likely]
    made = make_engine(config(), whole, tokenizer(), longest=LONGEST)
    made.stop = NO_STOP
    found = ids(made.generate(asked, GREEDY, range(4)))
    made.close()
    assert found == rows(whole, asked)
    assert max(map(max, found)) >= known


def test_a_base_for_evaluation_switches_between_adapters(tmp_path):
    students = {name: student(seed) for seed, name in enumerate("ab")}
    for name, adapted in students.items():
        adapted.save_pretrained(str(tmp_path / name))
    made = serve_base(config(), FLOAT32, tokenizer(), longest=LONGEST, adapters=[tmp_path / name for name in "ab"])
    assert made.stop == stop_ids(base(), tokenizer())
    assert len(made.stop) == 2
    made.stop = NO_STOP
    asked = prompts(4)
    for name in "aba":
        made.use_adapter(tmp_path / name)
        assert ids(made.generate(asked, GREEDY, range(4))) == rows(students[name], asked)
    made.close()


def test_half_precision_stays_within_its_tolerance():
    """bfloat16 in both: rounding differs, and the check must not take it for stale weights."""
    adapted = student().to(torch.bfloat16)
    made = make_engine(config(), adapted, tokenizer(), longest=LONGEST)
    asked = prompts(8)
    drift = DriftCheck(adapted, DriftConfig(rollouts=8), half=True)(
        asked, made.generate(asked, SAMPLED, range(8), measured=8)
    )
    made.close()
    assert drift is not None
    assert 1e-4 < drift.mean < 0.04


def test_what_vllm_cannot_load_is_one_message(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ConfigError, match="vLLM cannot serve"):
        VLLMEngine(config(), ServedBase(str(tmp_path), base().config, NO_STOP, {}), 64, dtype="float32")
