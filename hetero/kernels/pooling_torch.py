"""Pooled lookups on any torch device: the contract of `hetero.kernels.pooling` in ordinary tensor operations.

Sums run over segments whose positions are in order of occurrence. `torch.segment_reduce` adds a segment's
rows one after another (on CUDA one thread a segment and column), so on the CPU the results equal the numba
kernels' to the bit. Devices without it fall back to `index_add_`, whose order of additions is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hetero.kernels.pooling import Bool, bag_lengths
from hetero.records import Bags

_SEGMENT_REDUCE_DEVICES = frozenset({"cpu", "cuda"})


@dataclass(frozen=True, slots=True)
class DeviceBags:
    """`Bags` on a device. local: int64 [N]. bag: int64 [N], the bag of each position, or None: that of its number.

    counts: int64 [bags], or None when every bag holds exactly one. weights: float32 [N] or None.
    """

    local: Tensor
    bag: Tensor | None
    counts: Tensor | None
    weights: Tensor | None


def to_device(bags: Bags, *, device: torch.device) -> DeviceBags:
    """Copy bags to `device`."""
    counts = None if bags.offsets is None else tensor_of(bag_lengths(bags), device=device).long()
    return DeviceBags(
        local=tensor_of(bags.local, device=device).long(),
        bag=None if counts is None else torch.repeat_interleave(counts, output_size=len(bags.local)),
        counts=counts,
        weights=None if bags.weights is None else tensor_of(bags.weights, device=device),
    )


def tensor_of(array: npt.NDArray[np.generic], *, device: torch.device) -> Tensor:
    """The array as a tensor on `device`; on the CPU it shares memory unless the array is read-only.

    To CUDA it goes through pinned memory: the host does not wait for the copy, and may reuse the array at once.
    """
    if device.type != "cuda":
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    pinned = torch.empty(array.shape, dtype=dtype, pin_memory=True)
    pinned.numpy()[...] = array
    return pinned.to(device, non_blocking=True)


def pool_forward(rows: Tensor, bags: DeviceBags, *, mean: Bool) -> Tensor:
    """rows float32 [U, E] -> pooled bags float32 [bags, E]; mean: bool [F]."""
    terms = _weighted(rows.index_select(0, bags.local), bags)
    if bags.counts is None:
        return terms
    sums = segment_sum(terms, lengths=bags.counts)
    if not mean.any():
        return sums
    return sums / _divisors(bags.counts, mean)[:, None]


def pool_contributions(grad: Tensor, bags: DeviceBags, *, mean: Bool) -> Tensor:
    """grad float32 [bags, E] -> what each position adds to its row: float32 [N, E]."""
    if bags.counts is None:
        return _weighted(grad, bags)
    assert bags.bag is not None
    if mean.any():
        grad = grad / _divisors(bags.counts, mean)[:, None]
    return _weighted(grad.index_select(0, bags.bag), bags)


def sequence_forward(rows: Tensor, bags: DeviceBags, *, mask: Tensor) -> Tensor:
    """rows float32 [U, E], mask bool [B, L] -> float32 [B, L, E], padded with zeros."""
    out = rows.new_zeros((*mask.shape, rows.shape[1]))
    out[mask] = _weighted(rows.index_select(0, bags.local), bags)
    return out


def sequence_contributions(grad: Tensor, bags: DeviceBags, *, mask: Tensor) -> Tensor:
    """grad float32 [B, L, E] -> what each position adds to its row: float32 [N, E]."""
    return _weighted(grad[mask], bags)


def merge_contributions(parts: Sequence[tuple[Tensor, Tensor]], *, unique: int, width: int) -> Tensor:
    """Sum contributions per unique row, in order of occurrence.

    parts: pairs (local int64 [N], contributions float32 [N, E]), earlier ones first, at least one.
    Returns float32 [unique, width].
    """
    local = torch.cat([local for local, _ in parts])
    terms = torch.cat([terms for _, terms in parts])
    if terms.device.type not in _SEGMENT_REDUCE_DEVICES:
        return terms.new_zeros((unique, width)).index_add_(0, local, terms)
    order = torch.argsort(local, stable=True)
    return segment_sum(terms.index_select(0, order), lengths=torch.bincount(local, minlength=unique))


def segment_sum(terms: Tensor, *, lengths: Tensor) -> Tensor:
    """Sum consecutive rows. terms float32 [N, E], lengths int64 [S] with sum N -> float32 [S, E]."""
    if terms.device.type in _SEGMENT_REDUCE_DEVICES:
        return torch.segment_reduce(terms, "sum", lengths=lengths, axis=0, unsafe=True, initial=0.0)
    segment = torch.repeat_interleave(torch.arange(len(lengths), device=terms.device), lengths)
    return terms.new_zeros((len(lengths), terms.shape[1])).index_add_(0, segment, terms)


def _weighted(terms: Tensor, bags: DeviceBags) -> Tensor:
    return terms if bags.weights is None else terms * bags.weights[:, None]


def _divisors(counts: Tensor, mean: Bool) -> Tensor:
    is_mean = torch.from_numpy(np.resize(mean, len(counts))).to(counts.device)
    return torch.where(is_mean, counts.clamp(min=1), 1).to(torch.float32)
