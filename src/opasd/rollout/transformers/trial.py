"""Whether a model can be decoded in slots, and how: a trial with two prompts."""

import warnings
from collections import deque

import torch
from transformers import DynamicCache, PreTrainedModel

from opasd.config import SamplingConfig
from opasd.device import short_of_memory
from opasd.rollout.transformers import pages
from opasd.rollout.transformers.decoding import Decoder, Row, SlotPlan
from opasd.rollout.transformers.fusing import kernels_available
from opasd.rollout.transformers.graphs import GraphCapture
from opasd.rollout.transformers.slots import token_states

NOT_FINITE = "its logits are not finite"


@torch.no_grad()
def make_slot_plan(model: PreTrainedModel) -> SlotPlan | str:
    """Return how to decode `model` in slots, or the reason why it cannot be, after a trial with two prompts."""
    vocabulary = model.config.get_text_config().vocab_size
    prompts = [[number * vocabulary // length for number in range(length)] for length in (24, 9)]
    caches = [DynamicCache(config=model.config) for _ in prompts]
    inputs = [torch.tensor([prompt], device=model.device) for prompt in prompts]
    outputs = [
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        for ids, cache in zip(inputs, caches, strict=True)
    ]
    expected_BV = torch.cat([output.logits[:, -1] for output in outputs]).double()
    if not bool(expected_BV.isfinite().all()):
        return NOT_FINITE
    # How far two correct computations may be apart: every layer loses precision.
    rounded = model.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    tolerance = 0.1 if model.dtype.itemsize < 4 else 1e-2 if rounded else 1e-3
    reason = ""
    for fuse in (True, False) if kernels_available(model.device) else (False,):
        graphs = GraphCapture(model.device, enabled=model.device.type == "cuda" and not _has_hooks(model))
        plan = SlotPlan(token_states(caches[0]), fuse, graphs)
        decoder = Decoder(
            model, plan, SamplingConfig(temperature=0, max_new_tokens=1), frozenset(), 2, 24, 2 * -(-24 // pages.PAGE)
        )
        try:
            decoder.admit(deque(Row(number, tuple(prompt), 0) for number, prompt in enumerate(prompts)))
            with decoder.step_form():
                logits_BV = decoder.logits(2, decoder.num_pages(1)).double()
                graphs.enabled = graphs.enabled and not _waits(decoder)
        except Exception as error:
            if short_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            continue
        error = float((logits_BV - expected_BV).norm() / expected_BV.norm())
        if error <= tolerance:
            return plan
        reason = f"its logits would be off by {error:.1e}"
    return reason


def _waits(decoder: Decoder) -> bool:
    """Return whether the model waits for the device in a step, which no graph can hold."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that the detection is a prototype
            torch.cuda.set_sync_debug_mode("error")
        decoder.logits(2, decoder.num_pages(1))
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def _has_hooks(model: PreTrainedModel) -> bool:
    """Return whether foreign Python code runs in every forward; a graph would run it only once."""
    tables = (table for module in model.modules() for table in (module._forward_hooks, module._forward_pre_hooks))
    modules = (str(getattr(hook, "__module__", "")) for table in tables for hook in table.values())
    return any(not name.startswith(("transformers.", "peft.")) for name in modules)
