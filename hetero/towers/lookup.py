"""One group's lookup as an autograd function: unique rows to pooled block and padded sequences, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hetero.errors import ProtocolError
from hetero.kernels import pooling, pooling_torch
from hetero.kernels.pooling import Bool
from hetero.records import GroupBatch


class Backend(Enum):
    """What computes a lookup. AUTO: NUMBA for rows on the CPU, TORCH elsewhere; both keep one contract."""

    AUTO = "auto"
    NUMBA = "numba"
    TORCH = "torch"


@dataclass(frozen=True, slots=True)
class GroupEmbeddings:
    """block float32 [B, F, E]; per sequence float32 [B, L, E] and its mask bool [B, L]."""

    block: Tensor
    sequences: tuple[Tensor, ...]
    masks: tuple[Tensor, ...]


class _Lookup(Protocol):
    """Both directions of one group's lookup, on one backend."""

    masks: tuple[Tensor, ...]

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]: ...

    def backward(self, grads: Sequence[Tensor | None]) -> Tensor: ...


def lookup_group(
    rows: Tensor,
    group: GroupBatch,
    *,
    rows_in_batch: int,
    mean: Bool,
    dim: int,
    backend: Backend = Backend.AUTO,
) -> GroupEmbeddings:
    """Look up a group of a batch of B rows. rows: float32 [U, dim]. mean: bool [F].

    Raises ProtocolError when `rows` or the bags do not fit the batch.
    """
    if rows.shape != (len(group.unique), dim) or rows.dtype != torch.float32:
        raise ProtocolError(
            f"embed: the batch needs float32 rows of shape {(len(group.unique), dim)}, got {rows.dtype} "
            f"{tuple(rows.shape)}; pull the rows of this batch's keys, weights only"
        )
    _check_bag_counts(group, rows=rows_in_batch, columns=len(mean))
    if backend is Backend.AUTO:
        backend = Backend.NUMBA if rows.device.type == "cpu" else Backend.TORCH
    lookup: _Lookup
    if backend is Backend.NUMBA:
        lookup = _NumbaLookup(group, mean=mean, unique=len(rows))
    else:
        lookup = _TorchLookup(group, mean=mean, unique=len(rows), device=rows.device)
    apply: Callable[[Tensor, _Lookup], tuple[Tensor, ...]] = _LookupFunction.apply
    pooled, *sequences = apply(rows, lookup)
    block = pooled.view(rows_in_batch, len(mean), dim)
    return GroupEmbeddings(block, tuple(sequences), lookup.masks)


def _check_bag_counts(group: GroupBatch, *, rows: int, columns: int) -> None:
    for bags, expected in [(group.pooled, rows * columns), *((bags, rows) for bags in group.sequences)]:
        if pooling.bag_count(bags) != expected:
            raise ProtocolError(
                f"embed: a lookup of the batch has {pooling.bag_count(bags)} bags where {rows} rows need "
                f"{expected}; batch and job do not belong together"
            )


class _LookupFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, lookup: _Lookup) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.lookup = lookup
        return lookup.forward(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None]:
        lookup: _Lookup = ctx.lookup
        return lookup.backward(grads), None


class _NumbaLookup:
    def __init__(self, group: GroupBatch, *, mean: Bool, unique: int) -> None:
        self.group, self.mean, self.unique = group, mean, unique
        self.masks = tuple(torch.from_numpy(pooling.sequence_mask(bags)) for bags in group.sequences)

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        source = rows.detach().numpy()
        self.width = rows.shape[1]
        threads = torch.get_num_threads()
        pooled = pooling.pool_forward(source, self.group.pooled, mean=self.mean, threads=threads)
        sequences = [pooling.sequence_forward(source, bags) for bags in self.group.sequences]
        return tuple(torch.from_numpy(array) for array in (pooled, *sequences))

    def backward(self, grads: Sequence[Tensor | None]) -> Tensor:
        pooled, *sequences = grads
        if pooled is None:
            merged = np.zeros((self.unique, self.width), np.float32)
        else:
            merged = pooling.pool_backward(pooled.numpy(), self.group.pooled, mean=self.mean, unique=self.unique)
        for grad, bags in zip(sequences, self.group.sequences, strict=True):
            if grad is not None:
                pooling.add_sequence_backward(grad.numpy(), bags, grad_rows=merged)
        return torch.from_numpy(merged)


class _TorchLookup:
    def __init__(self, group: GroupBatch, *, mean: Bool, unique: int, device: torch.device) -> None:
        for bags, columns in [(group.pooled, len(mean)), *((bags, 1) for bags in group.sequences)]:
            pooling.check_bags(bags, unique=unique, columns=columns)
        self.mean, self.unique = mean, unique
        self.pooled = pooling_torch.to_device(group.pooled, device=device)
        self.sequences = [pooling_torch.to_device(bags, device=device) for bags in group.sequences]
        self.masks = tuple(
            pooling_torch.tensor_of(pooling.sequence_mask(bags), device=device) for bags in group.sequences
        )

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        self.width = rows.shape[1]
        pooled = pooling_torch.pool_forward(rows, self.pooled, mean=self.mean)
        sequences = [
            pooling_torch.sequence_forward(rows, bags, mask=mask)
            for bags, mask in zip(self.sequences, self.masks, strict=True)
        ]
        return pooled, *sequences

    def backward(self, grads: Sequence[Tensor | None]) -> Tensor:
        pooled, *sequences = grads
        parts: list[tuple[Tensor, Tensor]] = []
        if pooled is not None:
            parts.append((self.pooled.local, pooling_torch.pool_contributions(pooled, self.pooled, mean=self.mean)))
        for grad, bags, mask in zip(sequences, self.sequences, self.masks, strict=True):
            if grad is not None:
                parts.append((bags.local, pooling_torch.sequence_contributions(grad, bags, mask=mask)))
        if not parts:
            return torch.zeros(self.unique, self.width, device=self.pooled.local.device)
        return pooling_torch.merge_contributions(parts, unique=self.unique, width=self.width)
