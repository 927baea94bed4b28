"""Rows leased by a tower, in one array by slot: gather, merge of gradients, update. Slots are known: no index.

Contracts, in numpy:  gather    out = buffer[slots, :E]
                      scatter   buffer[slots] = rows
                      merge     for i in order: merged[local[i]] += gradients[i]
                      update    buffer[slots[i]] = optimizer(buffer[slots[i]], gradients[i])   (`hetero.optim`)
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.address import prefetch_bytes
from hetero.kernels.jit import always_inline, kernel
from hetero.kernels.optimizers import ROWWISE_ADAGRAD, USUAL_DIM, is_finite, update_row
from hetero.records import F32, I32

_AHEAD = 16


@kernel
def gather_kernel(buffer: F32, slots: I32, out: F32) -> None:
    """buffer float32 [slots, W], slots int32 [n], out float32 [n, E] or [n, W]."""
    columns = out.shape[1]
    stride = np.uint64(4 * buffer.shape[1])
    first = np.uint64(buffer.ctypes.data)
    for i in range(len(slots)):
        if i + _AHEAD < len(slots):
            prefetch_bytes(first + np.uint64(slots[i + _AHEAD]) * stride, columns * 4)
        slot = slots[i]
        for j in range(columns):
            out[i, j] = buffer[slot, j]


def scatter_rows(buffer: F32, slots: I32, rows: F32) -> None:
    """buffer[slots] = rows, float32 [n, W], which may be read-only."""
    frozen = np.ascontiguousarray(rows).view()
    frozen.flags.writeable = False  # for the kernel to be compiled for one kind of array and no more
    _scatter(buffer, slots, frozen)


@kernel
def _scatter(buffer: F32, slots: I32, rows: F32) -> None:
    size = 4 * buffer.shape[1]
    first = np.uint64(buffer.ctypes.data)
    for i in range(len(slots)):
        if i + _AHEAD < len(slots):
            prefetch_bytes(first + np.uint64(slots[i + _AHEAD]) * np.uint64(size), size)
        slot = slots[i]
        for j in range(rows.shape[1]):
            buffer[slot, j] = rows[i, j]


@kernel
def merge_kernel(local: I32, gradients: F32, merged: F32) -> None:
    """merged float32 [M, E], zeros at first; local int32 [S]; gradients float32 [S, E]."""
    for i in range(len(local)):
        to = local[i]
        for j in range(gradients.shape[1]):
            merged[to, j] += gradients[i, j]


@kernel
def update_slots_kernel(
    buffer: F32, slots: I32, gradients: F32, kind: int, hyper: F32, rejected: I32, room: F32
) -> int:
    """Apply gradients float32 [n, E] to distinct slots [n]; returns how many were not finite, positions in `rejected`.

    room: `hetero.kernels.optimizers.update_room`, overwritten.
    """
    dim = gradients.shape[1]
    if kind == ROWWISE_ADAGRAD and dim == USUAL_DIM:  # code of its own, without loops over a row
        return _update_slots(buffer, slots, gradients, ROWWISE_ADAGRAD, USUAL_DIM, hyper, rejected, room)
    return _update_slots(buffer, slots, gradients, kind, dim, hyper, rejected, room)


@always_inline
def _update_slots(
    buffer: F32, slots: I32, gradients: F32, kind: int, dim: int, hyper: F32, rejected: I32, room: F32
) -> int:
    stride = np.uint64(4 * buffer.shape[1])
    first, given = np.uint64(buffer.ctypes.data), np.uint64(gradients.ctypes.data)
    hyper_at, scratch = np.uint64(hyper.ctypes.data), np.uint64(room.ctypes.data)
    bad = 0
    for i in range(len(slots)):
        if i + _AHEAD < len(slots):
            ask = first + np.uint64(slots[i + _AHEAD]) * stride
            prefetch_bytes(ask, 4 * (dim + 1))
        gradient = given + np.uint64(4 * dim * i)
        if is_finite(gradient, dim):
            update_row(kind, hyper_at, first + np.uint64(slots[i]) * stride, dim, gradient, scratch)
        else:
            rejected[bad] = i
            bad += 1
    return bad
