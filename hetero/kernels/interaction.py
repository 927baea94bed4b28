"""All dot products of unlike fields on the CPU, straight into the rows that feed the next layer, and back.

    fields [B, F, E]: `first` [B, E], where there is one, then `block` [B, F - 1, E] (or all F of them)
    out    [B, S]:    first (E columns, where there is one), then the strictly lower triangle row by row,
                      (1,0) (2,0) (2,1) (3,0) ... (F * (F - 1) / 2 columns); columns from there to S are not touched

The contract, which `hetero.kernels.interaction_torch` keeps on any device to 1e-6:

- forward: (i, j) is sum over e of fields[i, e] * fields[j, e].
- backward: d fields[i] = sum over j != i of d out[i, j] * fields[j]; plus, for `first`, the gradient of its copy.

Rows are independent, and the order of additions depends on F and E alone: neither on B nor on threads.

Floor for B = 4096, F = 27, E = 16 (with a first field): forward reads 7.1 MB, writes 6.0 MB and takes 46 MFLOP of
products and sums that are needed (351 pairs * 2 E); backward reads 13.1 MB, writes 7.1 MB and takes 92 MFLOP. At
10 GB/s and 50 GFLOP/s that is 1.3 ms and 2.0 ms, memory more than arithmetic.

Forward: a row's fields are laid out transposed, and eight j of a triangle's row are one vector; four rows i share its
loads. Backward: eight e are one vector; two rows i of the triangle share the loads and stores of field j.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.kernels.address import floats_at
from hetero.kernels.jit import inline, kernel
from hetero.kernels.rows import aligned_floats
from hetero.kernels.vectors import LANES, load8, multiply_add8, splat8, store8, zero8
from hetero.records import F32

_ROWS = 4
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """fields: F, the first one included. dim: E. has_first: whether one field comes apart and is copied to `out`."""

    fields: int
    dim: int
    has_first: bool

    @property
    def copied(self) -> int:
        """Columns of `out` before the products."""
        return self.dim if self.has_first else 0

    @property
    def columns(self) -> int:
        """Columns of `out` that are written."""
        return self.copied + self.fields * (self.fields - 1) // 2

    def room(self) -> F32:
        """Scratch memory for one thread, overwritten by both kernels."""
        padded_fields = _up(self.fields, LANES)
        padded_dim = _up(self.dim, LANES)
        forward = self.dim * padded_fields + _ROWS * padded_fields
        backward = 2 * self.fields * padded_dim
        return aligned_floats(max(forward, backward) + LANES)


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


# ---------------------------------------------------------------------------------------------- kernels
# Memory is passed by address: `first` [B, E] or 0, `block` [B, F or F - 1, E], both contiguous; `out` [B, stride].


@kernel
def forward_kernel(
    first: int, block: int, out: int, start: int, stop: int, fields: int, dim: int, stride: int, room: int
) -> None:
    """Rows [start, stop) of `out`."""
    four, lanes, width = np.uint64(4), np.uint64(LANES), np.uint64(dim)
    padded = (np.uint64(fields) + np.uint64(LANES - 1)) // lanes * lanes
    turned = np.uint64(room)
    found = turned + four * width * padded
    apart = first != 0
    own = np.uint64(fields - 1 if apart else fields)
    for row in range(start, stop):
        at = np.uint64(row)
        to = np.uint64(out) + four * at * np.uint64(stride)
        field = np.uint64(0)
        if apart:
            source = np.uint64(first) + four * at * width
            _turn(source, width, turned, field, padded)
            _copy(source, to, width, False)
            to += four * width
            field += np.uint64(1)
        source = np.uint64(block) + four * at * own * width
        while field < np.uint64(fields):
            _turn(source, width, turned, field, padded)
            source += four * width
            field += np.uint64(1)
        _triangle(turned, padded, width, np.uint64(fields), found, to)


@inline
def _turn(source: np.uint64, width: np.uint64, turned: np.uint64, field: np.uint64, padded: np.uint64) -> None:
    """Write one field [E] as a column of `turned` [E, padded]."""
    values = floats_at(source, width)
    columns = floats_at(turned, width * padded)
    place = field
    for e in range(width):
        columns[place] = values[np.uint64(e)]
        place += padded


@inline
def _copy(source: np.uint64, to: np.uint64, count: np.uint64, beyond: bool) -> None:
    """Copy floats. beyond: up to 7 floats behind the last may be overwritten."""
    four, lanes = np.uint64(4), np.uint64(LANES)
    whole = count // lanes * lanes
    if beyond and whole < count:
        whole += lanes
    done = np.uint64(0)
    while done < whole:
        store8(to + four * done, load8(source + four * done))
        done += lanes
    values, written = floats_at(source, count), floats_at(to, count)
    while done < count:
        written[done] = values[done]
        done += np.uint64(1)


@inline
def _triangle(
    turned: np.uint64, padded: np.uint64, width: np.uint64, fields: np.uint64, found: np.uint64, to: np.uint64
) -> None:
    """All products of one batch row, four rows of the triangle at a time. found: scratch [4, padded]."""
    four, lanes, one, zero = np.uint64(4), np.uint64(LANES), np.uint64(1), np.uint64(0)
    pairs = fields * (fields - one) // np.uint64(2)
    line = four * padded
    done = zero
    i = zero
    while i < fields:
        last = min(i + np.uint64(3), fields - one)
        chunk = zero
        while chunk < last:
            products0, products1, products2, products3 = zero8(), zero8(), zero8(), zero8()
            others, mine = turned + four * chunk, turned + four * i
            for _ in range(width):
                values = load8(others)
                products0 = multiply_add8(values, splat8(mine), products0)
                products1 = multiply_add8(values, splat8(mine + four), products1)
                products2 = multiply_add8(values, splat8(mine + np.uint64(8)), products2)
                products3 = multiply_add8(values, splat8(mine + np.uint64(12)), products3)
                others += line
                mine += line
            at = found + four * chunk
            store8(at, products0)
            store8(at + line, products1)
            store8(at + line + line, products2)
            store8(at + line + line + line, products3)
            chunk += lanes
        source = found
        while i <= last:
            # what is overwritten behind this row of the triangle is written later, by its following rows
            beyond = bool(done + (i + lanes - one) // lanes * lanes <= pairs)
            _copy(source, to + four * done, i, beyond)
            done += i
            source += line
            i += one


@kernel
def backward_kernel(
    first: int,
    block: int,
    grad: int,
    grad_first: int,
    grad_block: int,
    start: int,
    stop: int,
    fields: int,
    dim: int,
    stride: int,
    room: int,
) -> None:
    """Rows [start, stop) of the fields' gradients. grad: of `out` [B, stride]; the other two like `first`, `block`."""
    four, lanes, width, one = np.uint64(4), np.uint64(LANES), np.uint64(dim), np.uint64(1)
    padded = (width + lanes - one) // lanes * lanes
    line = four * padded
    values = np.uint64(room)
    changes = values + line * np.uint64(fields)
    apart = first != 0
    own = np.uint64(fields - 1 if apart else fields)
    for row in range(start, stop):
        at = np.uint64(row)
        given = np.uint64(grad) + four * at * np.uint64(stride)
        held = values
        if apart:
            _copy(np.uint64(first) + four * at * width, held, width, False)
            _copy(given, changes, width, False)
            held += line
            given += four * width
        else:
            chunk = np.uint64(0)
            while chunk < padded:
                store8(changes + four * chunk, zero8())
                chunk += lanes
        source = np.uint64(block) + four * at * own * width
        for _ in range(own):
            _copy(source, held, width, False)
            source += four * width
            held += line
        chunk = np.uint64(0)
        while chunk < padded:
            _untriangle(given, values + four * chunk, changes + four * chunk, line, np.uint64(fields))
            chunk += lanes
        held = changes
        if apart:
            _copy(held, np.uint64(grad_first) + four * at * width, width, False)
            held += line
        to = np.uint64(grad_block) + four * at * own * width
        for _ in range(own):
            _copy(held, to, width, False)
            to += four * width
            held += line


@inline
def _untriangle(given: np.uint64, values: np.uint64, changes: np.uint64, line: np.uint64, fields: np.uint64) -> None:
    """Eight columns e of one batch row's gradients: changes[0] holds its share already, the others are written."""
    four, one, two = np.uint64(4), np.uint64(1), np.uint64(2)
    i = one
    while i + one < fields:
        own0, own1 = values + line * i, values + line * (i + one)
        mine0, mine1 = load8(own0), load8(own1)
        share0 = given + four * (i * (i - one) // two)
        share1 = share0 + four * i
        sum0, sum1 = zero8(), zero8()
        other, change = values, changes
        for _ in range(i):
            value, scale0, scale1 = load8(other), splat8(share0), splat8(share1)
            sum0 = multiply_add8(scale0, value, sum0)
            sum1 = multiply_add8(scale1, value, sum1)
            store8(change, multiply_add8(scale1, mine1, multiply_add8(scale0, mine0, load8(change))))
            other += line
            change += line
            share0 += four
            share1 += four
        between = splat8(share1)
        store8(changes + line * i, multiply_add8(between, mine1, sum0))
        store8(changes + line * (i + one), multiply_add8(between, mine0, sum1))
        i += two
    if i < fields:
        mine0, sum0 = load8(values + line * i), zero8()
        share0 = given + four * (i * (i - one) // two)
        other, change = values, changes
        for _ in range(i):
            scale0 = splat8(share0)
            sum0 = multiply_add8(scale0, load8(other), sum0)
            store8(change, multiply_add8(scale0, mine0, load8(change)))
            other += line
            change += line
            share0 += four
        store8(changes + line * i, sum0)


# ---------------------------------------------------------------------------------------------- references


def forward_reference(first: F32 | None, block: F32) -> F32:
    """What the kernel's first `Shape.columns` columns must equal, in plain numpy, in the precision of its arguments."""
    fields = block if first is None else np.concatenate([first[:, None], block], 1)
    row, column = np.tril_indices(fields.shape[1], -1)
    products: F32 = np.einsum("bpe,bpe->bp", fields[:, row], fields[:, column])
    return products if first is None else np.concatenate([first, products], 1)


def backward_reference(first: F32 | None, block: F32, grad: F32) -> tuple[F32 | None, F32]:
    """What the backward kernel must equal, in plain numpy: gradients of `first` and `block`."""
    fields = block if first is None else np.concatenate([first[:, None], block], 1)
    copied = 0 if first is None else first.shape[1]
    row, column = np.tril_indices(fields.shape[1], -1)
    square = np.zeros((len(fields), fields.shape[1], fields.shape[1]), grad.dtype)
    square[:, row, column] = square[:, column, row] = grad[:, copied : copied + len(row)]
    changes = np.einsum("bij,bje->bie", square, fields)
    if first is None:
        return None, changes
    return changes[:, 0] + grad[:, :copied], changes[:, 1:]
