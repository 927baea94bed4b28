"""Losses of a batch: sums of weighted row losses divided by the sum of weights over all towers' rows.

    label      bce, mse, pairwise, or bce+pairwise       tower.loss
    tasks      bce of each further label, weighted       data.tasks
    side       the tower's own, row by row               such as a masked language model's
    parts      the label's, of parts of the model alone  such as the halves of a joint tower

Sums over rows add up over towers; a pairwise loss compares rows of one batch, so it is for one tower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from hetero.errors import JobError
from hetero.kernels.pooling_torch import tensor_of
from hetero.records import Batch, JobSpec, TaskSpec
from hetero.towers.outputs import TowerOutput

RowLoss = Callable[[Tensor, Tensor], Tensor]
PAIRWISE = "pairwise"


def _binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def _squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    return (torch.sigmoid(logits) - labels).square()


_LOSSES: dict[str, RowLoss] = {"bce": _binary_cross_entropy, "mse": _squared_error}
LOSSES = (*_LOSSES, PAIRWISE, f"bce+{PAIRWISE}")


class TowerLoss:
    """The loss of a tower's batch, by the job. Raises JobError for a loss that there is not, and for a pairwise one
    without groups (data.gauc) or with several towers."""

    def __init__(self, job: JobSpec) -> None:
        name = job.tower.loss
        if name not in LOSSES:
            near = get_close_matches(name, LOSSES, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise JobError(f"tower.loss: unknown name `{name}`{hint} (one of {', '.join(LOSSES)})")
        parts = name.split("+")
        self._row_loss = next((_LOSSES[part] for part in parts if part in _LOSSES), None)
        self._is_pairwise = PAIRWISE in parts
        self._tasks = job.train.tasks
        if self._is_pairwise:
            _check_pairwise(job)

    def __call__(self, output: TowerOutput, batch: Batch, *, weight_sum: float) -> Tensor:
        """This tower's share of the loss of the joint batch, a scalar. weight_sum: over the rows of all towers, so that
        the shares add up to the weighted mean; 0 counts as 1."""
        logits = output.logits.float()
        weights = None if batch.weights is None else _beside(logits, batch.weights)
        labels = _beside(logits, batch.labels)
        rows = self._of_rows(logits, labels)
        parts = [] if output.parts is None else list(output.parts.float().unbind(1))
        for part in parts:
            rows = rows + output.part_weight * self._of_rows(part, labels)
        if output.tasks is not None and batch.tasks is not None:
            rows = rows + task_losses(output.tasks.float(), _beside(logits, batch.tasks), self._tasks)
        if output.side is not None:
            rows = rows + output.side
        if weights is not None:
            rows = rows * weights
        loss = rows.sum() / (weight_sum or 1.0)
        if self._is_pairwise and batch.gauc_ids is not None:
            groups = _beside(logits, batch.gauc_ids.view("int64"))
            loss = loss + pairwise_loss(logits, labels, groups, weights)
            for part in parts:
                loss = loss + output.part_weight * pairwise_loss(part, labels, groups, weights)
        return loss

    def _of_rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Losses of the label, [B]; zeros where rows are ranked alone."""
        return torch.zeros_like(logits) if self._row_loss is None else self._row_loss(logits, labels)


def _beside(logits: Tensor, values: np.ndarray) -> Tensor:
    """An array of the batch on the device of the logits."""
    return tensor_of(values, device=logits.device)


def task_losses(logits: Tensor, labels: Tensor, tasks: Sequence[TaskSpec]) -> Tensor:
    """Weighted binary cross entropy of further labels, summed over them: [B]. logits, labels float [B, K], NaN where a
    label is missing, which costs nothing."""
    known = ~torch.isnan(labels)
    losses = functional.binary_cross_entropy_with_logits(logits, labels.nan_to_num(0.0), reduction="none")
    return torch.where(known, losses, 0.0) @ torch.tensor([task.weight for task in tasks], device=logits.device)


def pairwise_loss(logits: Tensor, labels: Tensor, groups: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of ln(1 + exp(s_negative - s_positive)) over pairs of a positive and a negative row of one group, weighted
    by the product of their weights (Burges et al. 2005, RankNet); 0 without such a pair. All [B], groups int64.

    Rows are sorted by group and each positive meets the negatives of its group alone, so memory goes with the pairs.
    """
    order = torch.argsort(groups, stable=True)
    positive = order[labels[order] > 0]
    negative = order[labels[order] <= 0]
    begins = torch.searchsorted(groups[negative], groups[positive])
    counts = torch.searchsorted(groups[negative], groups[positive], right=True) - begins
    winner = torch.repeat_interleave(positive, counts)
    within = torch.arange(len(winner), device=winner.device) - torch.repeat_interleave(
        counts.cumsum(0) - counts, counts
    )
    loser = negative[torch.repeat_interleave(begins, counts) + within]
    losses = functional.softplus(logits[loser] - logits[winner])
    if weights is None:
        return losses.sum() / max(len(losses), 1)
    pairs = weights[winner] * weights[loser]
    return (losses * pairs).sum() / pairs.sum().clamp(min=torch.finfo(pairs.dtype).tiny)


def _check_pairwise(job: JobSpec) -> None:
    if job.train.gauc_column is None:
        raise JobError("tower.loss: `pairwise` compares rows of one group; say in data.gauc which column groups them")
    if job.towers.count > 1:
        raise JobError(
            f"tower.loss: `pairwise` compares rows of one tower's batch, so {job.towers.count} towers would not equal "
            "one; set roles.towers to 1, or take `bce`"
        )
