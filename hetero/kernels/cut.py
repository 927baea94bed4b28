"""Reading a store's rows as they were at a cut, while they change: pre-images kept before, rows copied out in chunks.

A chunk is `chunk_rows` consecutive rows of a shard. A row of the cut that has not been read yet is kept, as it is, in a
node before its first change; from then on its record has the epoch after the cut. So the rows of a chunk are those of
its records that do not have that epoch, and its nodes.

    nodes    bytes [nodes, 4 + stride]    the next node of its chunk, or of the free ones, int32 | record
    heads    int32 [chunks]               each chunk's first node, -1 is none
    counters int64 [4]                    first free node (-1: none), nodes ever used, nodes in use, most in use
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.address import floats_at, uint16_at, uint32_at, uint64_at
from hetero.kernels.index import BLOCK, EPOCH_SHIFT, HEADER_BYTES, MOST_HOLDERS, locate_block
from hetero.kernels.jit import inline, kernel
from hetero.records import F32, I32, I64, U8, U16, U64

NODE_BYTES = 4
FREE, USED, IN_USE, MOST = range(4)

_NODE = np.uint64(NODE_BYTES)
_FIELD = np.uint64(10)
_SHIFT = np.uint16(EPOCH_SHIFT)
_HOLDER = np.uint16(MOST_HOLDERS)
_HEADER = np.uint64(HEADER_BYTES)


@inline
def keep(
    record: np.uint64,
    stride: np.uint64,
    number: np.int64,
    shard: np.int64,
    epoch: np.uint16,
    ends: I64,
    nexts: I64,
    first_chunks: I64,
    nodes_at: np.uint64,
    heads: I32,
    counters: I64,
    chunk_rows: int,
) -> None:
    """Keep a record that is about to change, if the cut holds it and has not read it; give it the epoch now."""
    field = uint16_at(record + _FIELD, 1)
    if field[0] >> _SHIFT == epoch >> _SHIFT:
        return
    if nexts[shard] <= number < ends[shard]:
        node = counters[FREE]
        if node >= 0:
            counters[FREE] = np.int64(np.int32(uint32_at(nodes_at + np.uint64(node) * (_NODE + stride), 1)[0]))
        else:
            node = counters[USED]
            counters[USED] = node + 1
        counters[IN_USE] += 1
        counters[MOST] = max(counters[MOST], counters[IN_USE])
        at = nodes_at + np.uint64(node) * (_NODE + stride)
        chunk = first_chunks[shard] + number // chunk_rows
        uint32_at(at, 1)[0] = np.uint32(heads[chunk])
        heads[chunk] = np.int32(node)
        words = np.int64(stride) // 4
        source, target = uint32_at(record, words), uint32_at(at + _NODE, words)
        for word in range(words):
            target[word] = source[word]
    field[0] = (field[0] & _HOLDER) | epoch


@kernel
def keep_kernel(
    tables: U16,
    keys: U64,
    seeds: U64,
    shards: U64,
    shift: np.uint64,
    width: int,
    epoch: np.uint16,
    ends: I64,
    nexts: I64,
    first_chunks: I64,
    nodes_at: np.uint64,
    heads: I32,
    counters: I64,
    chunk_rows: int,
) -> None:
    """Keep those of these rows that a cut holds and has not read, before they change.

    epoch: the one after the cut, in its place in the field. ends, nexts, first_chunks: int64 [shards], how many rows
    of a shard the cut holds, how many it has read, and the number of the shard's first chunk.
    """
    stride = np.uint64(HEADER_BYTES + 4 * width)
    mask = np.uint64(len(shards) - 1)
    lines = (HEADER_BYTES + 4 * width + 63) // 64
    hashes, records = np.empty(2 * BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        locate_block(tables, keys, start, count, seeds, shards, shift, stride, lines, hashes, records)
        half = start & BLOCK
        for i in range(count):
            if records[i] != np.uint64(0):
                shard = np.int64((hashes[half + i] >> shift) & mask)
                number = np.int64((records[i] - shards[shard, 2]) // stride)
                keep(
                    records[i],
                    stride,
                    number,
                    shard,
                    epoch,
                    ends,
                    nexts,
                    first_chunks,
                    nodes_at,
                    heads,
                    counters,
                    chunk_rows,
                )


@kernel
def read_chunk_kernel(
    shards: U64,
    shard: int,
    start: int,
    stop: int,
    width: int,
    epoch: np.uint16,
    changed: U8,
    forget: bool,
    nodes_at: np.uint64,
    chunk: int,
    heads: I32,
    counters: I64,
    tables: U16,
    keys: U64,
    rows: F32,
) -> int:
    """Copy the rows of the chunk [start, stop) out as they were at the cut; returns how many, and frees its nodes.

    Only rows whose epoch's value is marked in `changed`, uint8 [64]. forget: whether rows lose their epochs.
    tables, keys [n]; rows [n, W], of room for the chunk.
    """
    stride = np.uint64(HEADER_BYTES + 4 * width)
    out = 0
    end = np.int64(shards[shard, 3])
    for number in range(start, stop if stop < end else end):
        record = shards[shard, 2] + np.uint64(number) * stride
        field = uint16_at(record + _FIELD, 1)
        value = field[0] >> _SHIFT
        if value != epoch >> _SHIFT:
            if changed[value]:
                _copy_out(record, width, tables, keys, rows, out)
                out += 1
            if forget:
                field[0] &= _HOLDER
    node = np.int64(heads[chunk])
    while node >= 0:
        at = nodes_at + np.uint64(node) * (_NODE + stride)
        if changed[uint16_at(at + _NODE + _FIELD, 1)[0] >> _SHIFT]:
            _copy_out(at + _NODE, width, tables, keys, rows, out)
            out += 1
        link = uint32_at(at, 1)
        after = np.int64(np.int32(link[0]))
        link[0] = np.uint32(np.int32(counters[FREE]))
        counters[FREE] = node
        counters[IN_USE] -= 1
        node = after
    heads[chunk] = np.int32(-1)
    return out


@inline
def _copy_out(record: np.uint64, width: int, tables: U16, keys: U64, rows: F32, out: int) -> None:
    keys[out] = uint64_at(record, 1)[0]
    tables[out] = uint16_at(record + np.uint64(8), 1)[0]
    row = floats_at(record + _HEADER, width)
    for j in range(width):
        rows[out, j] = row[j]


@kernel
def forget_epochs_kernel(shards: U64, width: int) -> None:
    """Let every row lose its epoch."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    for shard in range(len(shards)):
        for number in range(np.int64(shards[shard, 3])):
            uint16_at(shards[shard, 2] + np.uint64(number) * stride + _FIELD, 1)[0] &= _HOLDER
