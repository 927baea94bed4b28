"""Many rows into an index at once, most of them new: one look-up a row, and records written as they come."""

from __future__ import annotations

import numpy as np

from hetero.kernels.address import floats_at, prefetch, uint16_at, uint64_at
from hetero.kernels.index import (
    CAPACITY,
    HEADER_BYTES,
    MOST_HOLDERS,
    RECORDS_AT,
    ROW_COUNT,
    SLOT_COUNT,
    find_record,
    first_slot,
    is_full,
    take_slot,
)
from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import mix64
from hetero.kernels.vectors import LANES, load8, store8
from hetero.records import F32, U16, U64

_BLOCK = 64
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
    begin: int,
) -> int:
    """Add rows float32 [n, W] or overwrite those there are, of shards [first_shard, last_shard), from position `begin`.

    epoch: of this change, in its place in the field. Returns n, or the first position whose shard has no room.
    """
    stride = np.uint64(HEADER_BYTES + 4 * width)
    mask = np.uint64(len(shards) - 1)
    first_row = np.uint64(rows.ctypes.data)
    hashes = np.empty(_BLOCK, np.uint64)
    for start in range(begin, len(keys), _BLOCK):
        count = min(_BLOCK, len(keys) - start)
        for i in range(count):
            at = np.uint64(start + i)
            hashed = mix64(keys[at] ^ seeds[tables[at]])
            hashes[np.uint64(i)] = hashed
            prefetch(first_slot(shards, (hashed >> shift) & mask, hashed))
        for i in range(count):
            at, hashed = np.uint64(start + i), hashes[np.uint64(i)]
            shard = (hashed >> shift) & mask
            if not first_shard <= np.int64(shard) < last_shard:
                continue
            record = find_record(shards, shard, hashed, tables[at], keys[at], stride)
            if record == np.uint64(0):
                number = shards[shard, ROW_COUNT]
                if number >= shards[shard, CAPACITY] or is_full(number + np.uint64(1), shards[shard, SLOT_COUNT]):
                    return start + i
                shards[shard, ROW_COUNT] = number + np.uint64(1)
                record = shards[shard, RECORDS_AT] + number * stride
                uint64_at(record, 1)[0] = keys[at]
                uint16_at(record + np.uint64(8), 1)[0] = tables[at]
                uint16_at(record + _FIELD, 1)[0] = epoch
                take_slot(shards, shard, hashed, number)
            else:
                field = uint16_at(record + _FIELD, 1)
                field[0] = (field[0] & _HOLDER) | epoch
            copy_floats(first_row + np.uint64(4 * width) * at, record + _HEADER, width)
    return len(keys)
