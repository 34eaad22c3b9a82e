"""Divide rollouts into micro-batches of at most so many tokens."""

from opasd.prompts.rollout import Rollout


def microbatches(rollouts: list[Rollout], budget: int, *, packed: bool) -> list[list[Rollout]]:
    """Group rollouts so that a group's teacher sequences, the longer ones, hold at most `budget` tokens with padding.

    Groups are ordered by length, so that little is padded. A rollout above the budget is a group of its own.
    """
    groups: list[list[Rollout]] = []
    tokens = 0
    for rollout in sorted(rollouts, key=lambda rollout: len(rollout.teacher_ids)):
        length = len(rollout.teacher_ids)
        if groups and (tokens + length if packed else (len(groups[-1]) + 1) * length) <= budget:
            groups[-1].append(rollout)
            tokens += length
        else:
            groups.append([rollout])
            tokens = length
    return groups
