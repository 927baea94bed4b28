"""Which rows stay in memory: notes of their uses, the clock hand that picks victims, and taking rows out.

A row's note is one byte in an array beside the records: uses (4 bits, up to 15) | turn of the call that touched it last
(4 bits) << 4. A hand goes over the records of a shard: it halves the uses of a row it passes, and takes one without
uses; so how often counts, how long ago counts, and a row seen once goes first. Rows of the turn under way stay.

Records and slots are those of `hetero.kernels.index`. Records stay dense: the last one moves into the place of one
taken out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.address import floats_at, uint8_at, uint16_at, uint32_at, uint64_at
from hetero.kernels.index import HEADER_BYTES
from hetero.kernels.initial import first_values
from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import mix64
from hetero.records import F32, I32, U16, U64

U8 = Any

MOST_USES = 15
TURNS = 16

_LOW = np.uint64(0xFFFFFFFF)
_ROW_BITS = np.uint32(0xFFFFFF)
_ONE = np.uint64(1)


@inline
def _key_of(record: np.uint64, seeds: U64) -> np.uint64:
    """Hash of the row in a record."""
    return np.uint64(mix64(uint64_at(record, 1)[0] ^ seeds[uint16_at(record + np.uint64(8), 1)[0]]))


@inline
def _slot_of(slots: Any, count: np.uint64, hashed: np.uint64, number: np.uint64) -> Any:
    """Place of the slot that names a record by its number; it is there."""
    at = ((hashed & _LOW) * count) >> np.uint64(32)
    while np.uint64(slots[at] & _ROW_BITS) != number + _ONE:
        at += _ONE
        if at == count:
            at = np.uint64(0)
    return at


@inline
def _steps(start: np.uint64, stop: np.uint64, count: np.uint64) -> Any:
    return stop - start if stop >= start else stop + count - start


@inline
def _free_slot(shards: U64, shard: int, hole: np.uint64, stride: np.uint64, seeds: U64) -> None:
    """Empty a slot, and move those behind it up whose probing passes it."""
    count = shards[shard, 1]
    slots = uint32_at(shards[shard, 0], np.int64(count))
    at = hole
    while True:
        at += _ONE
        if at == count:
            at = np.uint64(0)
        if slots[at] == np.uint32(0):
            break
        record = shards[shard, 2] + (np.uint64(slots[at] & _ROW_BITS) - _ONE) * stride
        home = ((_key_of(record, seeds) & _LOW) * count) >> np.uint64(32)
        if _steps(hole, at, count) <= _steps(home, at, count):
            slots[hole] = slots[at]
            hole = at
    slots[hole] = np.uint32(0)


@kernel
def touch_kernel(
    tables: U16,
    keys: U64,
    seeds: U64,
    shards: U64,
    shift: np.uint64,
    width: int,
    notes_at: U64,
    turn: int,
    missing: I32,
) -> int:
    """Note a use of every row in memory; how many are not. missing: int32 [n], filled with their positions."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    mask = np.uint64(len(shards) - 1)
    absent = 0
    for i in range(len(keys)):
        shard = (mix64(keys[i] ^ seeds[tables[i]]) >> shift) & mask
        number = _number_of(shards, shard, tables[i], keys[i], seeds, stride)
        if number < 0:
            missing[absent] = i
            absent += 1
        else:
            note = uint8_at(notes_at[shard] + np.uint64(number), 1)
            uses = min((note[0] & np.uint8(15)) + 1, 15)
            note[0] = np.uint8(uses | (turn << 4))
    return absent


@inline
def _number_of(shards: U64, shard: np.uint64, table: np.uint16, key: np.uint64, seeds: U64, stride: np.uint64) -> Any:
    """Number of a row's record in its shard, or -1."""
    count = shards[shard, 1]
    slots = uint32_at(shards[shard, 0], np.int64(count))
    hashed = mix64(key ^ seeds[table])
    print_ = np.uint32((hashed >> np.uint64(32)) & np.uint64(0xFF))
    at = ((hashed & _LOW) * count) >> np.uint64(32)
    while slots[at] != np.uint32(0):
        if slots[at] >> np.uint32(24) == print_:
            number = np.int64(slots[at] & _ROW_BITS) - 1
            record = shards[shard, 2] + np.uint64(number) * stride
            if uint64_at(record, 1)[0] == key and uint16_at(record + np.uint64(8), 1)[0] == table:
                return number
        at += _ONE
        if at == count:
            at = np.uint64(0)
    return np.int64(-1)


@kernel
def note_kernel(
    tables: U16,
    keys: U64,
    seeds: U64,
    shards: U64,
    shift: np.uint64,
    width: int,
    notes_at: U64,
    turn: int,
    uses: U8,
) -> None:
    """Set the uses (uint8 [n]) of rows in memory, as of this turn."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    mask = np.uint64(len(shards) - 1)
    for i in range(len(keys)):
        shard = (mix64(keys[i] ^ seeds[tables[i]]) >> shift) & mask
        number = _number_of(shards, shard, tables[i], keys[i], seeds, stride)
        uint8_at(notes_at[shard] + np.uint64(number), 1)[0] = np.uint8(min(uses[i], 15) | (turn << 4))


@kernel
def victims_kernel(
    shards: U64, shard: int, notes_at: U64, turn: int, hand: int, rounds: int, numbers: I32
) -> tuple[int, int]:
    """Fill numbers with records of a shard that may go, none of this turn, in at most so many rounds of the hand.

    Returns how many there are, and where the hand is.
    """
    count = int(shards[shard, 3])
    notes = uint8_at(notes_at[shard], count)
    found = 0
    if count == 0:
        return 0, 0
    at = hand % count
    for _ in range(rounds * count):
        if found == len(numbers):
            break
        note = np.int64(notes[at])
        if (note >> 4) != turn:
            if note & 15 == 0:
                numbers[found] = at
                found += 1
                notes[at] = np.uint8(turn << 4)  # not twice
            else:
                notes[at] = np.uint8((note & 0xF0) | ((note & 15) >> 1))
        at += 1
        if at == count:
            at = 0
    return found, at


@kernel
def take_out_kernel(
    shards: U64,
    shard: int,
    width: int,
    seeds: U64,
    notes_at: U64,
    numbers: I32,
    start: int,
    tables: U16,
    keys: U64,
    rows: F32,
    uses: U8,
) -> None:
    """Move records of a shard out of it, into tables, keys, rows [., W], uses from `start` on. numbers: descending."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    words = np.int64(stride) // 4
    count = shards[shard, 1]
    slots = uint32_at(shards[shard, 0], np.int64(count))
    notes = uint8_at(notes_at[shard], np.int64(shards[shard, 4]))
    for i in range(len(numbers)):
        number = np.uint64(numbers[i])
        record = shards[shard, 2] + number * stride
        at = start + i
        keys[at] = uint64_at(record, 1)[0]
        tables[at] = uint16_at(record + np.uint64(8), 1)[0]
        uses[at] = notes[number] & np.uint8(15)
        row = floats_at(record + np.uint64(HEADER_BYTES), width)
        for j in range(width):
            rows[at, j] = row[j]
        _free_slot(shards, shard, _slot_of(slots, count, _key_of(record, seeds), number), stride, seeds)
        last = shards[shard, 3] - _ONE
        shards[shard, 3] = last
        if number != last:
            moved = shards[shard, 2] + last * stride
            slot = _slot_of(slots, count, _key_of(moved, seeds), last)
            slots[slot] = (slots[slot] & ~_ROW_BITS) | np.uint32(number + _ONE)
            source, target = uint32_at(moved, words), uint32_at(record, words)
            for j in range(words):
                target[j] = source[j]
            notes[number] = notes[last]


@kernel
def numbers_kernel(
    tables: U16, keys: U64, seeds: U64, shards: U64, shift: np.uint64, width: int, of_shard: I32, numbers: I32
) -> None:
    """Shard and number of every row's record, int32 [n] each; number -1 where there is none."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    mask = np.uint64(len(shards) - 1)
    for i in range(len(keys)):
        shard = (mix64(keys[i] ^ seeds[tables[i]]) >> shift) & mask
        of_shard[i] = np.int32(shard)
        numbers[i] = np.int32(_number_of(shards, shard, tables[i], keys[i], seeds, stride))


@kernel
def words_kernel(tables: U16, keys: U64, seeds: U64, shards: U64, shift: np.uint64, width: int, words: U16) -> None:
    """words[i] = the uint16 beside a row's table, 0 where there is no row."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    mask = np.uint64(len(shards) - 1)
    for i in range(len(keys)):
        shard = (mix64(keys[i] ^ seeds[tables[i]]) >> shift) & mask
        number = _number_of(shards, shard, tables[i], keys[i], seeds, stride)
        words[i] = np.uint16(0)
        if number >= 0:
            words[i] = uint16_at(shards[shard, 2] + np.uint64(number) * stride + np.uint64(10), 1)[0]


@kernel
def set_words_kernel(tables: U16, keys: U64, seeds: U64, shards: U64, shift: np.uint64, width: int, words: U16) -> None:
    """Set the uint16 beside the table of rows, all of which are there."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    mask = np.uint64(len(shards) - 1)
    for i in range(len(keys)):
        shard = (mix64(keys[i] ^ seeds[tables[i]]) >> shift) & mask
        number = _number_of(shards, shard, tables[i], keys[i], seeds, stride)
        uint16_at(shards[shard, 2] + np.uint64(number) * stride + np.uint64(10), 1)[0] = words[i]


@kernel
def first_rows_kernel(
    tables: U16,
    keys: U64,
    picked: I32,
    seeds: U64,
    dim: int,
    kind: int,
    hyper: F32,
    first: int,
    scale: np.float32,
    accumulator: np.float32,
    rows: F32,
) -> None:
    """rows[picked] = first values of rows that are nowhere yet. rows: float32 [n, W]."""
    width = rows.shape[1]
    start = np.uint64(rows.ctypes.data)
    for i in range(len(picked)):
        at = picked[i]
        row = floats_at(start + np.uint64(4 * width * at), width)
        first_values(seeds[tables[at]], keys[at], row, dim, kind, hyper, first, scale, accumulator)
