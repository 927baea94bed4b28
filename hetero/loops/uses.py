"""How often a batch shows each row, and how often with label 1: what policies count.

Counts are whole numbers, so their sums over towers are exact in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hetero.optim.definition import gradient_width
from hetero.records import F32, Bags, Batch, GroupBatch, GroupSpec


def with_uses(gradients: tuple[Tensor, ...], batch: Batch, *, groups: Sequence[GroupSpec]) -> tuple[Tensor, ...]:
    """Gradients float32 [U, E] per group; of groups that count uses [U, E + 2], with shows and clicks behind."""
    if not any(gradient_width(group) > group.dim for group in groups):
        return gradients
    return tuple(
        torch.cat([own, torch.from_numpy(_uses(of_group, batch.labels)).to(own.device)], dim=1)
        if gradient_width(group) > group.dim
        else own
        for own, of_group, group in zip(gradients, batch.groups, groups, strict=True)
    )


def _uses(group: GroupBatch, labels: F32) -> F32:
    """Shows and clicks of unique rows, float32 [U, 2]."""
    uses = np.zeros((len(group.unique), 2), np.float32)
    for bags in (group.pooled, *group.sequences):
        clicked = _labels_of(bags, labels) == np.float32(1)
        uses[:, 0] += np.bincount(bags.local, minlength=len(uses))
        uses[:, 1] += np.bincount(bags.local[clicked], minlength=len(uses))
    return uses


def _labels_of(bags: Bags, labels: F32) -> F32:
    """The label of the batch row that each occurrence belongs to, float32 [N]."""
    if not len(labels):
        return labels
    if bags.offsets is None:
        return np.repeat(labels, len(bags.local) // len(labels))
    per_row = (len(bags.offsets) - 1) // len(labels)
    return np.repeat(np.repeat(labels, per_row), np.diff(bags.offsets))
