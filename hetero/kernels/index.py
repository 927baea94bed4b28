"""The index of a server's rows: open addressing over shards, one kernel call for all of them.

A shard is two arrays, known to the kernels by address:

    slots    uint32 [slots]    fingerprint (8 bits) << 24 | 1 + row number; 0 is empty; linear probing
    records  bytes [capacity, stride]    key uint64 | table uint16 | epoch, holder uint16 | row float32 [W]

The holder of a leased row is the tower's number plus 1, and 0 is none; it has the low 10 bits of its field. The 6 above
hold the epoch of the row's last change (`hetero.embedding.epochs`): beside the row, noting it costs a push nothing.

The key stands in the record, so that verifying it brings the row into the cache. Bits of a row's hash: the top
`64 - shift` are its bucket, whose low bits are its shard; the low 32 say where probing begins; 8 above them are the
fingerprint. Kernels work on blocks of rows, so that the memory's latency is hidden: probe all and ask for their
records, hash the next block and ask for its slots, then read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.kernels.address import floats_at, prefetch, uint16_at, uint32_at, uint64_at
from hetero.kernels.initial import first_values
from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import mix64
from hetero.kernels.optimizers import is_finite, update_row
from hetero.records import F32, I32, U16, U64

HEADER_BYTES = 12
MOST_ROWS = (1 << 24) - 1
EPOCH_SHIFT = 10
MOST_HOLDERS = (1 << EPOCH_SHIFT) - 1
# Columns of a shard's description, uint64 [shards, 5].
SLOTS_AT, SLOT_COUNT, RECORDS_AT, ROW_COUNT, CAPACITY = range(5)

BLOCK = 64  # a power of two
_AHEAD = 16
_LOW = np.uint64(0xFFFFFFFF)
_ROW_BITS = np.uint32(0xFFFFFF)
_HEADER = np.uint64(HEADER_BYTES)
_FIELD = np.uint64(10)
_HOLDER = np.uint16(MOST_HOLDERS)
_EPOCH = np.uint16(0xFFFF ^ MOST_HOLDERS)


@inline
def find_record(
    shards: U64, shard: np.uint64, hashed: np.uint64, table: np.uint16, key: np.uint64, stride: np.uint64
) -> Any:
    """Address of a row's record, or 0."""
    count = shards[shard, 1]
    slots = uint32_at(shards[shard, 0], np.int64(count))
    print_ = np.uint32((hashed >> np.uint64(32)) & np.uint64(0xFF))
    at = ((hashed & _LOW) * count) >> np.uint64(32)
    while True:
        slot = slots[at]
        if slot == np.uint32(0):
            return np.uint64(0)
        if slot >> np.uint32(24) == print_:
            record = shards[shard, 2] + np.uint64((slot & _ROW_BITS) - np.uint32(1)) * stride
            if uint64_at(record, 1)[0] == key and uint16_at(record + np.uint64(8), 1)[0] == table:
                return record
        at += np.uint64(1)
        if at == count:
            at = np.uint64(0)


@inline
def first_slot(shards: U64, shard: np.uint64, hashed: np.uint64) -> np.uint64:
    """Address of the slot where a row's probing begins."""
    return np.uint64(shards[shard, 0] + np.uint64(4) * (((hashed & _LOW) * shards[shard, 1]) >> np.uint64(32)))


@inline
def _ask_slots(tables: U16, keys: U64, start: int, seeds: U64, shards: U64, shift: np.uint64, hashes: U64) -> None:
    """Hash the rows of the block at `start`, and ask for the slots where their probing begins."""
    mask = np.uint64(len(shards) - 1)
    half = start & BLOCK
    for i in range(min(BLOCK, len(keys) - start)):
        hashed = mix64(keys[start + i] ^ seeds[tables[start + i]])
        hashes[half + i] = hashed
        prefetch(first_slot(shards, (hashed >> shift) & mask, hashed))


@inline
def locate_block(
    tables: U16,
    keys: U64,
    start: int,
    count: int,
    seeds: U64,
    shards: U64,
    shift: np.uint64,
    stride: np.uint64,
    lines: int,
    hashes: U64,
    records: U64,
) -> None:
    """records[i] = address of the record of row start + i, or 0, for count <= BLOCK rows; the record's first `lines`
    cache lines are on their way. Blocks come in order, from 0: hashes [2 * BLOCK] already holds those of the next one.
    """
    mask = np.uint64(len(shards) - 1)
    half = start & BLOCK
    if start == 0:
        _ask_slots(tables, keys, start, seeds, shards, shift, hashes)
    for i in range(count):
        hashed = hashes[half + i]
        shard = (hashed >> shift) & mask
        slots_count = shards[shard, 1]
        slots = uint32_at(shards[shard, 0], np.int64(slots_count))
        print_ = np.uint32((hashed >> np.uint64(32)) & np.uint64(0xFF))
        at = ((hashed & _LOW) * slots_count) >> np.uint64(32)
        record = np.uint64(0)
        while True:
            slot = slots[at]
            if slot == np.uint32(0):
                break
            if slot >> np.uint32(24) == print_:
                record = shards[shard, 2] + np.uint64((slot & _ROW_BITS) - np.uint32(1)) * stride
                for line in range(lines):
                    prefetch(record + np.uint64(64 * line))
                break
            at += np.uint64(1)
            if at == slots_count:
                at = np.uint64(0)
        records[i] = record
    _ask_slots(tables, keys, start + BLOCK, seeds, shards, shift, hashes)
    for i in range(count):
        record = records[i]
        if record != np.uint64(0):
            key, table = keys[start + i], tables[start + i]
            if uint64_at(record, 1)[0] != key or uint16_at(record + np.uint64(8), 1)[0] != table:
                hashed = hashes[half + i]
                records[i] = find_record(shards, (hashed >> shift) & mask, hashed, table, key, stride)


@kernel
def read_kernel(
    tables: U16,
    keys: U64,
    seeds: U64,
    shards: U64,
    shift: np.uint64,
    width: int,
    out: F32,
    missing: I32,
) -> int:
    """out[i] = first columns of row (tables[i], keys[i]), zeros where there is none; returns how many are missing.

    out: float32 [n, E] or [n, W]. missing: int32 [n], filled with the positions of missing rows.
    """
    stride = np.uint64(HEADER_BYTES + 4 * width)
    columns = out.shape[1]
    lines = (HEADER_BYTES + 4 * columns + 63) // 64
    hashes, records = np.empty(2 * BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    absent = 0
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        locate_block(tables, keys, start, count, seeds, shards, shift, stride, lines, hashes, records)
        for i in range(count):
            if records[i] == np.uint64(0):
                missing[absent] = start + i
                absent += 1
                for j in range(columns):
                    out[start + i, j] = np.float32(0)
            else:
                row = floats_at(records[i] + _HEADER, columns)
                for j in range(columns):
                    out[start + i, j] = row[j]
    return absent


@kernel
def update_kernel(
    tables: U16,
    keys: U64,
    seeds: U64,
    shards: U64,
    shift: np.uint64,
    width: int,
    kind: int,
    hyper: F32,
    gradients: F32,
    missing: I32,
    rejected: I32,
    room: F32,
    epoch: np.uint16,
) -> tuple[int, int]:
    """Apply gradients float32 [n, E] to rows; returns how many rows are missing, and how many gradients not finite.

    missing, rejected: int32 [n], filled with their positions; those rows are left as they are. room: `update_room`.
    epoch: of this change, in its place in the field.
    """
    stride = np.uint64(HEADER_BYTES + 4 * width)
    dim = gradients.shape[1]
    lines = (HEADER_BYTES + 4 * width + 63) // 64
    hashes, records = np.empty(2 * BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    scratch, hyper_at = np.uint64(room.ctypes.data), np.uint64(hyper.ctypes.data)
    first_gradient = np.uint64(gradients.ctypes.data)
    absent, bad = 0, 0
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        locate_block(tables, keys, start, count, seeds, shards, shift, stride, lines, hashes, records)
        for i in range(count):
            if records[i] == np.uint64(0):
                missing[absent] = start + i
                absent += 1
                continue
            given = first_gradient + np.uint64(4 * dim * (start + i))
            if is_finite(given, dim):
                update_row(kind, hyper_at, records[i] + _HEADER, dim, given, scratch)
                field = uint16_at(records[i] + _FIELD, 1)
                field[0] = (field[0] & _HOLDER) | epoch
            else:
                rejected[bad] = start + i
                bad += 1
    return absent, bad


@kernel
def write_kernel(
    tables: U16, keys: U64, seeds: U64, shards: U64, shift: np.uint64, width: int, rows: F32, epoch: np.uint16
) -> None:
    """Overwrite existing rows with float32 [n, W]. epoch: of this change, in its place in the field."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    lines = (HEADER_BYTES + 4 * width + 63) // 64
    hashes, records = np.empty(2 * BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        locate_block(tables, keys, start, count, seeds, shards, shift, stride, lines, hashes, records)
        for i in range(count):
            row = floats_at(records[i] + _HEADER, width)
            for j in range(width):
                row[j] = rows[start + i, j]
            field = uint16_at(records[i] + _FIELD, 1)
            field[0] = (field[0] & _HOLDER) | epoch


@kernel
def holders_kernel(tables: U16, keys: U64, seeds: U64, shards: U64, shift: np.uint64, width: int, holders: U16) -> None:
    """holders[i] = who holds a row, 0 where nobody does or there is none."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    hashes, records = np.empty(2 * BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        locate_block(tables, keys, start, count, seeds, shards, shift, stride, 1, hashes, records)
        for i in range(count):
            holders[start + i] = np.uint16(0)
            if records[i] != np.uint64(0):
                holders[start + i] = uint16_at(records[i] + _FIELD, 1)[0] & _HOLDER


@kernel
def hold_kernel(
    tables: U16, keys: U64, seeds: U64, shards: U64, shift: np.uint64, width: int, holder: np.uint16
) -> None:
    """Note who holds the rows there are; 0 frees them."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    hashes, records = np.empty(2 * BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        locate_block(tables, keys, start, count, seeds, shards, shift, stride, 1, hashes, records)
        for i in range(count):
            if records[i] != np.uint64(0):
                field = uint16_at(records[i] + _FIELD, 1)
                field[0] = (field[0] & _EPOCH) | holder


@kernel
def count_kernel(tables: U16, keys: U64, picked: I32, seeds: U64, shift: np.uint64, needed: U64) -> None:
    """needed[shard] += rows among the picked positions that belong to it. needed: uint64 [shards]."""
    mask = np.uint64(len(needed) - 1)
    for position in picked:
        needed[(mix64(keys[position] ^ seeds[tables[position]]) >> shift) & mask] += np.uint64(1)


@kernel
def insert_kernel(
    tables: U16,
    keys: U64,
    picked: I32,
    seeds: U64,
    shards: U64,
    shift: np.uint64,
    width: int,
    dim: int,
    kind: int,
    hyper: F32,
    first: int,
    scale: np.float32,
    accumulator: np.float32,
    field: np.uint16,
    out: F32,
) -> None:
    """Add the picked rows that do not exist, with their first values; every shard has room for its part.

    field: of the new records, the epoch of this change and who holds them. out: float32 [n, E], [n, W] or [n, 0], gets
    the first columns of the picked rows.
    """
    stride = np.uint64(HEADER_BYTES + 4 * width)
    mask = np.uint64(len(shards) - 1)
    columns = out.shape[1]
    for i in range(len(picked)):
        if i + _AHEAD < len(picked):
            later = picked[i + _AHEAD]
            hashed = mix64(keys[later] ^ seeds[tables[later]])
            prefetch(first_slot(shards, (hashed >> shift) & mask, hashed))
        key, table = keys[picked[i]], tables[picked[i]]
        hashed = mix64(key ^ seeds[table])
        shard = (hashed >> shift) & mask
        record = find_record(shards, shard, hashed, table, key, stride)
        if record == np.uint64(0):  # else picked twice
            number = shards[shard, 3]
            shards[shard, 3] = number + np.uint64(1)
            record = shards[shard, 2] + number * stride
            uint64_at(record, 1)[0] = key
            uint16_at(record + np.uint64(8), 2)[0] = table
            uint16_at(record + _FIELD, 1)[0] = field
            values = floats_at(record + _HEADER, width)
            first_values(seeds[table], key, values, dim, kind, hyper, first, scale, accumulator)
            take_slot(shards, shard, hashed, number)
        row = floats_at(record + _HEADER, columns)
        for j in range(columns):
            out[picked[i], j] = row[j]


@inline
def is_full(rows: np.uint64, slots: np.uint64) -> Any:
    """Whether so many rows are more than four fifths of the slots: then probing takes long."""
    return np.uint64(5) * rows > np.uint64(4) * slots


@inline
def take_slot(shards: U64, shard: np.uint64, hashed: np.uint64, number: np.uint64) -> None:
    """Enter a row into the first free slot of its probe sequence."""
    count = shards[shard, 1]
    slots = uint32_at(shards[shard, 0], np.int64(count))
    at = ((hashed & _LOW) * count) >> np.uint64(32)
    while slots[at] != np.uint32(0):
        at += np.uint64(1)
        if at == count:
            at = np.uint64(0)
    print_ = np.uint32((hashed >> np.uint64(32)) & np.uint64(0xFF))
    slots[at] = (print_ << np.uint32(24)) | np.uint32(number + np.uint64(1))


@kernel
def rehash_kernel(shards: U64, shard: int, seeds: U64, width: int) -> None:
    """Enter all rows of one shard into its slots, which are empty."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    row_count = np.int64(shards[shard, 3])
    for number in range(row_count):
        record = shards[shard, 2] + np.uint64(number) * stride
        key = uint64_at(record, 1)[0]
        table = uint16_at(record + np.uint64(8), 1)[0]
        take_slot(shards, np.uint64(shard), mix64(key ^ seeds[table]), np.uint64(number))


@kernel
def copy_kernel(shards: U64, shard: int, width: int, start: int, tables: U16, keys: U64, rows: F32) -> None:
    """Copy rows [start, start + n) of a shard out, in the order they were added. tables, keys [n]; rows [n, W]."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    for i in range(len(keys)):
        record = shards[shard, 2] + np.uint64(start + i) * stride
        keys[i] = uint64_at(record, 1)[0]
        tables[i] = uint16_at(record + np.uint64(8), 1)[0]
        row = floats_at(record + _HEADER, width)
        for j in range(width):
            rows[i, j] = row[j]


@kernel
def tally_kernel(shards: U64, width: int, rows_of: npt.NDArray[np.int64]) -> None:
    """rows_of[table] += its rows. int64, by table index."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    for shard in range(len(shards)):
        for number in range(np.int64(shards[shard, 3])):
            rows_of[uint16_at(shards[shard, 2] + np.uint64(number) * stride + np.uint64(8), 1)[0]] += 1
