"""Many rows into an index at once, most of them new: one look-up a row, and records written as they come."""

from __future__ import annotations

import numpy as np

from hetero.kernels.address import floats_at, prefetch, uint16_at, uint64_at
from hetero.kernels.index import HEADER_BYTES, MOST_HOLDERS, find_record, first_slot, take_slot
from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import mix64
from hetero.kernels.vectors import LANES, load8, store8
from hetero.records import F32, U16, U64

_AHEAD = 16
_HEADER = np.uint64(HEADER_BYTES)
_FIELD = np.uint64(10)
_HOLDER = np.uint16(MOST_HOLDERS)


@inline
def copy_floats(source: np.uint64, to: np.uint64, count: int) -> None:
    """`count` float32 from one address to another."""
    at, lanes, floats = np.uint64(0), np.uint64(LANES), np.uint64(count)
    while at + lanes <= floats:
        store8(to + np.uint64(4) * at, load8(source + np.uint64(4) * at))
        at += lanes
    given, taken = floats_at(source, count), floats_at(to, count)
    while at < floats:
        taken[at] = given[at]
        at += np.uint64(1)


@kernel
def load_kernel(
    tables: U16,
    keys: U64,
    seeds: U64,
    shards: U64,
    shift: np.uint64,
    width: int,
    rows: F32,
    epoch: np.uint16,
    first_shard: int,
    last_shard: int,
) -> None:
    """Add rows float32 [n, W] or overwrite those there are, of shards [first_shard, last_shard); each has room for all.

    epoch: of this change, in its place in the field.
    """
    stride = np.uint64(HEADER_BYTES + 4 * width)
    mask = np.uint64(len(shards) - 1)
    first_row = np.uint64(rows.ctypes.data)
    for i in range(len(keys)):
        if i + _AHEAD < len(keys):
            later = mix64(keys[i + _AHEAD] ^ seeds[tables[i + _AHEAD]])
            prefetch(first_slot(shards, (later >> shift) & mask, later))
        hashed = mix64(keys[i] ^ seeds[tables[i]])
        shard = (hashed >> shift) & mask
        if not first_shard <= np.int64(shard) < last_shard:
            continue
        record = find_record(shards, shard, hashed, tables[i], keys[i], stride)
        if record == np.uint64(0):
            number = shards[shard, 3]
            shards[shard, 3] = number + np.uint64(1)
            record = shards[shard, 2] + number * stride
            uint64_at(record, 1)[0] = keys[i]
            uint16_at(record + np.uint64(8), 1)[0] = tables[i]
            uint16_at(record + _FIELD, 1)[0] = epoch
            take_slot(shards, shard, hashed, number)
        else:
            field = uint16_at(record + _FIELD, 1)
            field[0] = (field[0] & _HOLDER) | epoch
        copy_floats(first_row + np.uint64(4 * width) * np.uint64(i), record + _HEADER, width)
