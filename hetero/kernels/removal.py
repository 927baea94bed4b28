"""Taking rows out of an index: the last record of the shard fills the gap, and probe sequences close up.

Closing up after a deletion in linear probing: Knuth, The Art of Computer Programming 3, section 6.4, algorithm R. An
entry further on moves into the gap unless its probing begins after the gap.
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.address import uint16_at, uint32_at, uint64_at
from hetero.kernels.cut import keep
from hetero.kernels.index import HEADER_BYTES, find_record
from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import mix64
from hetero.records import I32, I64, U16, U64

_LOW = np.uint64(0xFFFFFFFF)
_NUMBER = np.uint32(0xFFFFFF)


@inline
def _hash_of(record: np.uint64, seeds: U64) -> np.uint64:
    return mix64(uint64_at(record, 1)[0] ^ seeds[uint16_at(record + np.uint64(8), 1)[0]])


@inline
def _slot_of(shards: U64, shard: np.int64, hashed: np.uint64, number: np.int64) -> np.int64:
    """Where the slot of a row stands, by its hash and number; it is there."""
    count = np.int64(shards[shard, 1])
    slots = uint32_at(shards[shard, 0], count)
    at = np.int64(((hashed & _LOW) * shards[shard, 1]) >> np.uint64(32))
    while np.int64(slots[at] & _NUMBER) != number + 1:
        at += 1
        if at == count:
            at = np.int64(0)
    return at


@inline
def _close_gap(shards: U64, shard: np.int64, seeds: U64, stride: np.uint64, gap: np.int64) -> None:
    count = np.int64(shards[shard, 1])
    slots = uint32_at(shards[shard, 0], count)
    at = gap
    while True:
        at += 1
        if at == count:
            at = np.int64(0)
        slot = slots[at]
        if slot == np.uint32(0):
            break
        record = shards[shard, 2] + np.uint64((slot & _NUMBER) - np.uint32(1)) * stride
        first = np.int64(((_hash_of(record, seeds) & _LOW) * shards[shard, 1]) >> np.uint64(32))
        # Distances are taken around the end. It may move when its probing begins no later than the gap.
        if (at - first) % count >= (at - gap) % count:
            slots[gap] = slot
            gap = at
    slots[gap] = np.uint32(0)


@kernel
def remove_kernel(
    tables: U16,
    keys: U64,
    seeds: U64,
    shards: U64,
    shift: np.uint64,
    width: int,
    epoch: np.uint16,
    keeping: bool,
    ends: I64,
    nexts: I64,
    first_chunks: I64,
    nodes_at: np.uint64,
    heads: I32,
    counters: I64,
    chunk_rows: int,
    removed: I32,
) -> int:
    """Take rows out; returns how many there were, their positions in `removed`, int32 [n].

    keeping: whether a cut keeps what it has not read (`hetero.kernels.cut`); there is room for two nodes a key.
    """
    stride = np.uint64(HEADER_BYTES + 4 * width)
    words = np.int64(stride) // 4
    mask = np.uint64(len(shards) - 1)
    count = 0
    for i in range(len(keys)):
        hashed = mix64(keys[i] ^ seeds[tables[i]])
        shard = np.int64((hashed >> shift) & mask)
        record = find_record(shards, np.uint64(shard), hashed, tables[i], keys[i], stride)
        if record == np.uint64(0):
            continue
        number = np.int64((record - shards[shard, 2]) // stride)
        last = np.int64(shards[shard, 3]) - 1
        if keeping:
            keep(record, stride, number, shard, epoch, ends, nexts, first_chunks, nodes_at, heads, counters, chunk_rows)
        _close_gap(shards, shard, seeds, stride, _slot_of(shards, shard, hashed, number))
        if last != number:
            moved = shards[shard, 2] + np.uint64(last) * stride
            if keeping:
                keep(
                    moved, stride, last, shard, epoch, ends, nexts, first_chunks, nodes_at, heads, counters, chunk_rows
                )
            slots = uint32_at(shards[shard, 0], np.int64(shards[shard, 1]))
            at = _slot_of(shards, shard, _hash_of(moved, seeds), last)
            slots[at] = (slots[at] & ~_NUMBER) | np.uint32(number + 1)
            source, target = uint32_at(moved, words), uint32_at(record, words)
            for word in range(words):
                target[word] = source[word]
        shards[shard, 3] = np.uint64(last)
        removed[count] = i
        count += 1
    return count
