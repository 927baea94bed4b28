"""Cross-entropy where every tensor-parallel rank holds the logits of its share of the vocabulary (Shoeybi et al. 2019).

Each rank reduces its own columns; three numbers a token are exchanged instead of its logits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hetero.towers.transformer import IGNORED


class _VocabularyParallelLoss(torch.autograd.Function):
    """logits [N, V / tp], targets [N] -> sum of cross-entropies, equal on all ranks."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        columns = logits.shape[-1]
        first = dist.get_rank(group) * columns
        highest = logits.amax(dim=-1)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - highest[:, None]
        counted = targets != IGNORED
        here = counted & (targets >= first) & (targets < first + columns)
        local = torch.where(here, targets - first, 0)
        own = torch.where(here, shifted.gather(1, local[:, None])[:, 0], 0.0)
        weights = shifted.exp_()
        sums = torch.stack((weights.sum(dim=-1), own))
        dist.all_reduce(sums, group=group)
        losses = torch.where(counted, sums[0].log() - sums[1], 0.0)
        weights.div_(sums[0][:, None])
        ctx.save_for_backward(weights, local, here, counted)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *above: Any) -> tuple[Tensor, None, None]:
        softmax, local, here, counted = ctx.saved_tensors
        gradient = softmax * (above[0] * counted)[:, None]
        gradient.scatter_add_(1, local[:, None], -(above[0] * here)[:, None].to(gradient.dtype))
        return gradient, None, None


def vocabulary_parallel_loss(logits: Tensor, targets: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """What `token_loss` gives for the whole vocabulary, from this rank's columns of it.

    logits [B, T, V / tp], in the order of ranks; targets int64 [B, T].
    """
    work = logits.dtype if logits.dtype == torch.float64 else torch.float32
    flat = logits.reshape(-1, logits.shape[-1]).to(work)
    loss: Tensor = _VocabularyParallelLoss.apply(flat, targets.reshape(-1), group)  # type: ignore[no-untyped-call]
    return loss
