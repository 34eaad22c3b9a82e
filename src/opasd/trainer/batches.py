"""Which problems a step has, and how large that makes it."""

from collections.abc import Sequence

from transformers import TrainingArguments

from opasd.config import OPASDConfig
from opasd.prompts.contexts import PromptPair, PromptPairs

PAPER = 64
"""Problems of a step in the paper."""
_TRANSFORMERS_BATCH = 8
"""transformers' default of `per_device_train_batch_size`."""


def without_repeats(
    batch: list[PromptPair], step: int, *, process: int, processes: int, batch_size: int, num_problems: int
) -> list[PromptPair]:
    """Return a process's batch without the problems that accelerate repeats at the end of an epoch.

    accelerate deals batches of `batch_size` to the processes in turn, and fills up the last ones from the epoch's
    beginning so that every process has as many. With one process nothing is repeated.
    """
    steps_per_epoch = -(-num_problems // (batch_size * processes))
    first = ((step % steps_per_epoch) * processes + process) * batch_size
    return batch[: max(num_problems - first, 0)]


def share(lengths: Sequence[int], process: int, processes: int) -> list[int]:
    """Return the numbers of a process's items, in order, so that all processes have items of about the same length.

    The longest item that is left goes to the process that has the least.
    """
    loads, owned = [0] * processes, [[] for _ in range(processes)]
    for n in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        least = min(range(processes), key=lambda process: (loads[process], process))
        loads[least] += lengths[n]
        owned[least].append(n)
    return sorted(owned[process])


def collate(pairs: list[PromptPair]) -> dict[str, list[PromptPair]]:
    """Return a step's problems as the batch that Trainer hands on."""
    return {"pairs": pairs}


def step_size(given: TrainingArguments, config: OPASDConfig, pairs: PromptPairs) -> str:
    """Return what a step has: problems, rollouts, and tokens at most; `given` are the caller's arguments.

    A number of problems that the caller may not know of, from transformers' default of 8, comes with advice.
    """
    batch, draws = given.per_device_train_batch_size, given.gradient_accumulation_steps
    wanted = batch * draws * given.world_size
    problems = min(wanted, len(pairs))
    rollouts = problems * config.rollout.rollouts_per_problem
    generated = rollouts * config.rollout.max_new_tokens
    own, objective = config.prompts.attention_reference, config.objective
    two = own is not None and objective.attends and objective.token_weight > 0
    contexts = pairs.longest["student"] + pairs.longest["teacher"] * (2 if two else 1)
    product = f"{batch} per device x {draws} accumulated x {_counted(given.world_size, 'process', 'processes')}"
    if problems < wanted:
        product += f" would be {wanted:,}, but there are no more"
    read = rollouts * contexts + (3 if two else 2) * generated
    text = (
        f"a step has {_counted(problems, 'problem')} ({product}), {_counted(rollouts, 'rollout')} and at most "
        f"{generated:,} new tokens; both roles together read at most {read:,} tokens"
    )
    if two:
        text += ". The teacher reads each rollout twice: prompts.attention_reference is a context of its own"
    if batch == _TRANSFORMERS_BATCH and wanted != PAPER:
        text += (
            f". The paper's step has {PAPER} problems. per_device_train_batch_size is 8, transformers' default: "
            f"opasd.OPASDArguments has the paper's values"
        )
    return text


def _counted(number: int, one: str, several: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else several or one + 's'}"
