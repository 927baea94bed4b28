"""Pooled lookups on the CPU: from unique rows to a tower's inputs, and from gradients to one per unique row.

    rows [U, E]                      bags: local = [0, 2, 2], offsets = [0, 2, 2, 3]
    0    1.0 1.5                     bag   rows it pools   sum          mean
    1    0.5 0.5                     0     0 2             3.0 2.0      1.5 1.0
    2    2.0 0.5                     1     (none)          0.0 0.0      0.0 0.0
                                     2     2               2.0 0.5      2.0 0.5

The contract, which `hetero.kernels.pooling_torch` keeps on any device:

- forward: a bag is the sum of row * weight over its positions in order, begun at +0 and held in float32; a
  mean then divides by the number of positions (never by the sum of the weights); an empty bag is all zeros.
  Where `offsets` is None every bag holds one row and is a copy of it (times its weight).
- backward: a position's contribution is (gradient of its bag [/ positions of the bag]) * weight.
  Contributions to one row are summed in order of occurrence (bag after bag, position after position, the
  pooled lookups first, then each sequence) into one running float32 sum begun at +0. So the result depends
  neither on threads nor on how rows are numbered.

All operations are single IEEE operations in float32. Kernels release the GIL; pooling splits bags over threads.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hetero.errors import ProtocolError
from hetero.kernels.address import floats_at, prefetch
from hetero.kernels.jit import always_inline, kernel
from hetero.kernels.rows import over_rows
from hetero.kernels.vectors import LANES, add8, fill8, load8, multiply8, store8
from hetero.records import F32, I32, I64, Bags

Bool = npt.NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)

_NO_OFFSETS: I32 = np.empty(0, np.int32)
_NO_WEIGHTS: F32 = np.empty(0, np.float32)
_ONE = np.float32(1.0)
_AHEAD = 16
_BLOCK_BAGS = 2048
"""Fewer bags are not worth waking a thread for."""


def pool_forward(rows: F32, bags: Bags, *, mean: Bool, threads: int = 1) -> F32:
    """Pool rows into bags.

    rows: float32 [U, E]. mean: bool [F]; bag i is of column i % F, a mean where True, else a sum.
    Returns float32 [bags, E]. Raises ProtocolError when `bags` does not fit `rows` and `mean`.
    """
    check_bags(bags, unique=len(rows), columns=len(mean))
    out = np.empty((bag_count(bags), rows.shape[1]), np.float32)
    source, means = _frozen(rows), _frozen(mean)
    local, offsets, weights = _kernel_bags(bags)

    def part(start: int, stop: int) -> None:
        if len(offsets):
            _pool(source, local, offsets[start : stop + 1], weights, means, out[start:stop])
        else:
            _pool(source, local[start:stop], offsets, weights[start:stop], means, out[start:stop])

    columns = max(1, len(mean))
    over_rows(part, len(out), threads=threads, block=-(-_BLOCK_BAGS // columns) * columns)
    return out


def pool_backward(grad: F32, bags: Bags, *, mean: Bool, unique: int) -> F32:
    """Merge the gradients of pooled bags into one per unique row.

    grad: float32 [bags, E]. mean: as in `pool_forward`. Returns float32 [unique, E].
    Raises ProtocolError when `bags` does not fit `grad`, `mean` and `unique`.
    """
    check_bags(bags, unique=unique, columns=len(mean))
    _check_rows("gradients of pooled bags", len(grad), bag_count(bags))
    grad_rows = np.zeros((unique, grad.shape[1]), np.float32)
    _unpool(_frozen(grad), *_kernel_bags(bags), _frozen(mean), grad_rows)
    return grad_rows


def sequence_forward(rows: F32, bags: Bags) -> F32:
    """Lay out each bag's rows one after another, padded with zeros to the longest bag of this batch.

    rows: float32 [U, E]. Returns float32 [B, L, E] where L is the longest bag's length, at least 1.
    Raises ProtocolError when `bags` does not fit `rows`.
    """
    check_bags(bags, unique=len(rows), columns=1)
    counts = bag_lengths(bags)
    longest = max(1, int(counts.max(initial=0)))
    out = np.zeros((len(counts), longest, rows.shape[1]), np.float32)
    _pad(_frozen(rows), *_kernel_bags(bags), out)
    return out


def sequence_mask(bags: Bags) -> Bool:
    """Which cells of `sequence_forward`'s result hold a row: bool [B, L]."""
    counts = bag_lengths(bags)
    longest = max(1, int(counts.max(initial=0)))
    return np.arange(longest)[None, :] < counts[:, None]


def add_sequence_backward(grad: F32, bags: Bags, *, grad_rows: F32) -> None:
    """Add the gradients of a sequence to the running sums of its rows, in place; padding is not read.

    grad: float32 [B, L, E]. grad_rows: float32 [U, E], changed.
    Raises ProtocolError when the shapes do not fit.
    """
    check_bags(bags, unique=len(grad_rows), columns=1)
    _check_rows("gradients of a sequence", len(grad), bag_count(bags))
    _unpad(_frozen(grad), *_kernel_bags(bags), grad_rows)


def bag_count(bags: Bags) -> int:
    """How many bags there are."""
    return len(bags.local) if bags.offsets is None else len(bags.offsets) - 1


def bag_lengths(bags: Bags) -> I64:
    """Positions of each bag: int64 [bags]."""
    if bags.offsets is None:
        return np.ones(len(bags.local), np.int64)
    return np.diff(bags.offsets).astype(np.int64)


def check_bags(bags: Bags, *, unique: int, columns: int) -> None:
    """Raise ProtocolError unless positions lie in [0, unique) and offsets rise from 0 to the last of them."""
    local, offsets = bags.local, bags.offsets
    if len(local) and not int(local.view(np.uint32).max()) < unique:  # unsigned, negative ones are the largest
        raise ProtocolError(
            f"pooled lookup: positions run from {local.min()} to {local.max()}, but the batch has {unique} "
            "unique rows; rows and batch do not belong together"
        )
    if offsets is not None and not (
        len(offsets) and offsets[0] == 0 and offsets[-1] == len(local) and bool((offsets[1:] >= offsets[:-1]).all())
    ):
        raise ProtocolError(f"pooled lookup: offsets do not rise from 0 to {len(local)}, the number of positions")
    if bags.weights is not None:
        _check_rows("weights of a pooled lookup", len(bags.weights), len(local))
    count = bag_count(bags)
    if (columns == 0 and count) or (columns and count % columns):
        raise ProtocolError(f"pooled lookup: {count} bags are not a whole number of rows of {columns} lookups")


def _check_rows(what: str, actual: int, expected: int) -> None:
    if actual != expected:
        raise ProtocolError(f"{what}: {actual} given, {expected} expected; they do not belong to this batch")


def _frozen(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """A read-only C-contiguous view, so that each kernel is compiled for one kind of array and no more."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _kernel_bags(bags: Bags) -> tuple[I32, I32, F32]:
    offsets = _NO_OFFSETS if bags.offsets is None else bags.offsets
    weights = _NO_WEIGHTS if bags.weights is None else bags.weights
    return _frozen(bags.local), _frozen(offsets), _frozen(weights)


# ---------------------------------------------------------------------------------------------- kernels
# An empty `offsets` stands for "one position in every bag", an empty `weights` for "all 1" (x * 1 is exact).


@always_inline
def _write_row(source: np.uint64, to: np.uint64, width: int, weight: np.float32) -> None:
    """to = source * weight, floats [width]."""
    columns, lanes, column = np.uint64(width), np.uint64(LANES), np.uint64(0)
    factor = fill8(weight)
    while column + lanes <= columns:
        place = np.uint64(4) * column
        store8(to + place, multiply8(load8(source + place), factor))
        column += lanes
    values, written = floats_at(source, width), floats_at(to, width)
    while column < columns:
        written[column] = values[column] * weight
        column += np.uint64(1)


@always_inline
def _add_row(source: np.uint64, to: np.uint64, width: int, weight: np.float32) -> None:
    """to += source * weight, floats [width], rounded twice."""
    columns, lanes, column = np.uint64(width), np.uint64(LANES), np.uint64(0)
    factor = fill8(weight)
    while column + lanes <= columns:
        place = np.uint64(4) * column
        store8(to + place, add8(load8(to + place), multiply8(load8(source + place), factor)))
        column += lanes
    values, written = floats_at(source, width), floats_at(to, width)
    while column < columns:
        written[column] += values[column] * weight
        column += np.uint64(1)


@kernel
def _pool(rows: F32, local: I32, offsets: I32, weights: F32, mean: Bool, out: F32) -> None:
    width = rows.shape[1]
    weighted = len(weights) > 0
    line = np.uint64(4 * width)
    first, to = np.uint64(rows.ctypes.data), np.uint64(out.ctypes.data)
    if len(offsets) == 0:
        for bag in range(out.shape[0]):
            if bag + _AHEAD < out.shape[0]:
                prefetch(first + line * np.uint64(local[bag + _AHEAD]))
            weight = weights[bag] if weighted else _ONE
            _write_row(first + line * np.uint64(local[bag]), to, width, weight)
            to += line
        return
    columns = len(mean)
    for bag in range(out.shape[0]):
        start, stop = offsets[bag], offsets[bag + 1]
        for e in range(width):
            out[bag, e] = 0.0
        for position in range(start, stop):
            weight = weights[position] if weighted else _ONE
            _add_row(first + line * np.uint64(local[position]), to + line * np.uint64(bag), width, weight)
        if stop - start > 1 and mean[bag % columns]:
            count = np.float32(stop - start)
            for e in range(width):
                out[bag, e] /= count


@kernel
def _unpool(grad: F32, local: I32, offsets: I32, weights: F32, mean: Bool, grad_rows: F32) -> None:
    width = grad.shape[1]
    weighted = len(weights) > 0
    line = np.uint64(4 * width)
    source, first = np.uint64(grad.ctypes.data), np.uint64(grad_rows.ctypes.data)
    if len(offsets) == 0:
        for bag in range(grad.shape[0]):
            if bag + _AHEAD < grad.shape[0]:
                prefetch(first + line * np.uint64(local[bag + _AHEAD]))
            weight = weights[bag] if weighted else _ONE
            _add_row(source, first + line * np.uint64(local[bag]), width, weight)
            source += line
        return
    columns = len(mean)
    for bag in range(grad.shape[0]):
        start, stop = offsets[bag], offsets[bag + 1]
        count = np.float32(stop - start) if mean[bag % columns] else _ONE
        for position in range(start, stop):
            row = local[position]
            weight = weights[position] if weighted else _ONE
            if count == _ONE:
                _add_row(source + line * np.uint64(bag), first + line * np.uint64(row), width, weight)
            else:
                for e in range(width):
                    grad_rows[row, e] += grad[bag, e] / count * weight


@kernel
def _pad(rows: F32, local: I32, offsets: I32, weights: F32, out: F32) -> None:
    width = rows.shape[1]
    single, weighted = len(offsets) == 0, len(weights) > 0
    for bag in range(out.shape[0]):
        start = bag if single else offsets[bag]
        stop = bag + 1 if single else offsets[bag + 1]
        for position in range(start, stop):
            row = local[position]
            weight = weights[position] if weighted else _ONE
            for e in range(width):
                out[bag, position - start, e] = rows[row, e] * weight


@kernel
def _unpad(grad: F32, local: I32, offsets: I32, weights: F32, grad_rows: F32) -> None:
    width = grad_rows.shape[1]
    single, weighted = len(offsets) == 0, len(weights) > 0
    for bag in range(grad.shape[0]):
        start = bag if single else offsets[bag]
        stop = bag + 1 if single else offsets[bag + 1]
        for position in range(start, stop):
            row = local[position]
            weight = weights[position] if weighted else _ONE
            for e in range(width):
                grad_rows[row, e] += grad[bag, position - start, e] * weight


# ---------------------------------------------------------------------------------------------- references


def pool_forward_reference(rows: F32, bags: Bags, *, mean: Bool) -> F32:
    """What `pool_forward` must equal, in plain numpy (`np.add.at` adds one position after another)."""
    counts = bag_lengths(bags)
    bag = np.repeat(np.arange(len(counts)), counts)
    out = np.zeros((len(counts), rows.shape[1]), np.float32)
    np.add.at(out, bag, _weighted(rows[bags.local], bags))
    return out / _divisors(counts, mean)[:, None]


def pool_backward_reference(grad: F32, bags: Bags, *, mean: Bool, unique: int) -> F32:
    """What `pool_backward` must equal, in plain numpy."""
    counts = bag_lengths(bags)
    bag = np.repeat(np.arange(len(counts)), counts)
    grad_rows = np.zeros((unique, grad.shape[1]), np.float32)
    np.add.at(grad_rows, bags.local, _weighted((grad / _divisors(counts, mean)[:, None])[bag], bags))
    return grad_rows


def sequence_forward_reference(rows: F32, bags: Bags) -> F32:
    """What `sequence_forward` must equal, in plain numpy."""
    mask = sequence_mask(bags)
    out = np.zeros((*mask.shape, rows.shape[1]), np.float32)
    out[mask] = _weighted(rows[bags.local], bags)
    return out


def add_sequence_backward_reference(grad: F32, bags: Bags, *, grad_rows: F32) -> None:
    """What `add_sequence_backward` must equal, in plain numpy."""
    np.add.at(grad_rows, bags.local, _weighted(grad[sequence_mask(bags)], bags))


def _weighted(terms: F32, bags: Bags) -> F32:
    return terms if bags.weights is None else terms * bags.weights[:, None]


def _divisors(counts: I64, mean: Bool) -> F32:
    is_mean = np.resize(mean, len(counts)) if len(mean) else np.zeros(len(counts), np.bool_)
    return np.where(is_mean, np.maximum(counts, 1), 1).astype(np.float32)
