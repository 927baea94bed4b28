"""Losses of a batch: the sum of weighted row losses divided by the sum of weights over all towers' rows."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

import torch
import torch.nn.functional as functional

from hetero.errors import JobError

RowLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _binary_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def _squared_error(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (torch.sigmoid(logits) - labels).square()


_LOSSES: dict[str, RowLoss] = {"bce": _binary_cross_entropy, "mse": _squared_error}


def row_loss(name: str) -> RowLoss:
    """The loss per row: `bce` (binary cross entropy on logits) or `mse` (squared error of the probability).

    Raises JobError for any other name.
    """
    if name in _LOSSES:
        return _LOSSES[name]
    near = get_close_matches(name, _LOSSES, n=1)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    raise JobError(f"tower.loss: unknown name `{name}`{hint} (one of {', '.join(_LOSSES)})")


def batch_loss(
    loss: RowLoss,
    logits: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor | None,
    *,
    weight_sum: float,
) -> torch.Tensor:
    """One tower's share of the weighted mean over the joint batch. logits, labels, weights float32 [B]; scalar.

    weight_sum: over the rows of all towers, so that the shares of the towers add up to the mean. 0 counts as 1.
    """
    rows = loss(logits, labels)
    if weights is not None:
        rows = rows * weights
    return rows.sum() / (weight_sum or 1.0)
