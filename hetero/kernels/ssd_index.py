"""The index of rows in segment files: 8 bytes an entry, open addressing over shards; keys stand in the records only.

An entry is (1 + location) << 28 | the low 28 bits of the row's hash; 0 is empty. Where probing begins follows from
those 28 bits, at any size of the shard, so entries move (growth, removal) without a look at a record. What else shares
28 bits within a shard is told apart by the key in the record: a search goes on from where the last candidate stood.

The top `64 - shift` bits of a hash are the row's bucket, whose low bits are its shard, as in `hetero.kernels.index`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.kernels.address import prefetch, uint64_at
from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import mix64
from hetero.records import I32, I64, U8, U16, U64

HASH_BITS = 28
MOST_LOCATIONS = (1 << 36) - 1
MOST_ENTRIES = (1 << HASH_BITS) - 1
# Columns of a shard's description, uint64 [shards, 3].
ENTRIES_AT, ENTRY_COUNT, ROWS_IN = range(3)

_BITS = np.uint64(HASH_BITS)
_HASH = np.uint64(MOST_ENTRIES)
_ONE = np.uint64(1)
_AHEAD = 16


@inline
def home(hashed: np.uint64, count: np.uint64) -> np.uint64:
    """Where probing begins in a shard of so many places, of a hash or an entry."""
    return np.uint64(((hashed & _HASH) * count) >> _BITS)


@inline
def _ask(tables: U16, keys: U64, row: int, seeds: U64, index: U64, shift: np.uint64) -> None:
    hashed = mix64(keys[row] ^ seeds[tables[row]])
    shard = (hashed >> shift) & np.uint64(len(index) - 1)
    prefetch(index[shard, 0] + np.uint64(8) * home(hashed, index[shard, 1]))


@inline
def _where(entries: U64, count: np.uint64, hashed: np.uint64, location: np.int64) -> Any:
    """Place of the entry with this location, or `count`."""
    wanted = (np.uint64(location + 1) << _BITS) | (hashed & _HASH)
    at = home(hashed, count)
    while entries[at] != wanted:
        if entries[at] == np.uint64(0):
            return count
        at += _ONE
        if at == count:
            at = np.uint64(0)
    return at


@inline
def _steps(start: np.uint64, stop: np.uint64, count: np.uint64) -> Any:
    """From one place to another, going round."""
    return stop - start if stop >= start else stop + count - start


@inline
def _flag(location: np.int64, bits: int, starts: I64, flags: U8) -> None:
    at = starts[location >> bits] + (location & ((np.int64(1) << bits) - 1))
    flags[at >> 3] |= np.uint8(1 << (at & 7))


@kernel
def candidates_kernel(
    tables: U16, keys: U64, picked: I32, seeds: U64, index: U64, shift: np.uint64, cursors: I64, locations: I64
) -> int:
    """locations[row] = where the row may lie, -1 where it does not; for the picked rows. How many may lie somewhere.

    cursors: int64 [n]; -1 begins a row's search, later calls go on behind the last candidate.
    """
    found = 0
    mask = np.uint64(len(index) - 1)
    for i in range(len(picked)):
        if i + _AHEAD < len(picked):
            _ask(tables, keys, picked[i + _AHEAD], seeds, index, shift)
        row = picked[i]
        hashed = mix64(keys[row] ^ seeds[tables[row]])
        shard = (hashed >> shift) & mask
        count = index[shard, 1]
        entries = uint64_at(index[shard, 0], np.int64(count))
        at = home(hashed, count)
        if cursors[row] >= 0:
            at = np.uint64(cursors[row]) + _ONE
            if at == count:
                at = np.uint64(0)
        locations[row] = -1
        while entries[at] != np.uint64(0):
            if (entries[at] & _HASH) == (hashed & _HASH):
                locations[row] = np.int64(entries[at] >> _BITS) - 1
                cursors[row] = np.int64(at)
                found += 1
                break
            at += _ONE
            if at == count:
                at = np.uint64(0)
    return found


@kernel
def needed_kernel(tables: U16, keys: U64, seeds: U64, shift: np.uint64, needed: I64) -> None:
    """needed[shard] += rows that belong to it. needed: int64 [shards]."""
    mask = np.uint64(len(needed) - 1)
    for i in range(len(keys)):
        needed[(mix64(keys[i] ^ seeds[tables[i]]) >> shift) & mask] += 1


@inline
def enter_one(entries: U64, count: np.uint64, entry: np.uint64) -> None:
    """Put an entry that is not there where probing finds it; there is room."""
    at = home(entry, count)
    while entries[at] != np.uint64(0):
        at += _ONE
        if at == count:
            at = np.uint64(0)
    entries[at] = entry


@kernel
def enter_kernel(tables: U16, keys: U64, locations: I64, seeds: U64, index: U64, shift: np.uint64) -> None:
    """Add rows that are not there; every shard has room for its part."""
    mask = np.uint64(len(index) - 1)
    for i in range(len(keys)):
        if i + _AHEAD < len(keys):
            _ask(tables, keys, i + _AHEAD, seeds, index, shift)
        hashed = mix64(keys[i] ^ seeds[tables[i]])
        shard = (hashed >> shift) & mask
        entries = uint64_at(index[shard, 0], np.int64(index[shard, 1]))
        enter_one(entries, index[shard, 1], (np.uint64(locations[i] + 1) << _BITS) | (hashed & _HASH))
        index[shard, 2] += _ONE


@kernel
def drop_kernel(
    tables: U16,
    keys: U64,
    picked: I32,
    locations: I64,
    seeds: U64,
    index: U64,
    shift: np.uint64,
    live: I64,
    bits: int,
) -> int:
    """Forget the picked rows at their locations, and count them off live[segment slot]. Returns how many were there."""
    mask = np.uint64(len(index) - 1)
    dropped = 0
    for i in range(len(picked)):
        if i + _AHEAD < len(picked):
            _ask(tables, keys, picked[i + _AHEAD], seeds, index, shift)
        row = picked[i]
        hashed = mix64(keys[row] ^ seeds[tables[row]])
        shard = (hashed >> shift) & mask
        count = index[shard, 1]
        entries = uint64_at(index[shard, 0], np.int64(count))
        hole = _where(entries, count, hashed, locations[row])
        if hole == count:
            continue
        live[locations[row] >> bits] -= 1
        index[shard, 2] -= _ONE
        dropped += 1
        at = hole
        while True:
            at += _ONE
            if at == count:
                at = np.uint64(0)
            if entries[at] == np.uint64(0):
                break
            begins = home(entries[at], count)
            if _steps(hole, at, count) <= _steps(begins, at, count):  # its probing passes the hole
                entries[hole] = entries[at]
                hole = at
        entries[hole] = np.uint64(0)
    return dropped


@kernel
def move_kernel(
    tables: U16,
    keys: U64,
    old: I64,
    new: I64,
    seeds: U64,
    index: U64,
    shift: np.uint64,
) -> None:
    """Let entries at `old` locations say `new`; all of them are there."""
    mask = np.uint64(len(index) - 1)
    for i in range(len(keys)):
        if i + _AHEAD < len(keys):
            _ask(tables, keys, i + _AHEAD, seeds, index, shift)
        hashed = mix64(keys[i] ^ seeds[tables[i]])
        shard = (hashed >> shift) & mask
        entries = uint64_at(index[shard, 0], np.int64(index[shard, 1]))
        at = _where(entries, index[shard, 1], hashed, old[i])
        entries[at] = (np.uint64(new[i] + 1) << _BITS) | (hashed & _HASH)


@kernel
def live_kernel(
    tables: U16,
    keys: U64,
    locations: I64,
    seeds: U64,
    index: U64,
    shift: np.uint64,
    live: npt.NDArray[np.bool_],
) -> None:
    """live[i] = whether the index says that the row lies at locations[i]."""
    mask = np.uint64(len(index) - 1)
    for i in range(len(keys)):
        if i + _AHEAD < len(keys):
            _ask(tables, keys, i + _AHEAD, seeds, index, shift)
        hashed = mix64(keys[i] ^ seeds[tables[i]])
        shard = (hashed >> shift) & mask
        count = index[shard, 1]
        live[i] = _where(uint64_at(index[shard, 0], np.int64(count)), count, hashed, locations[i]) != count


@kernel
def regrow_kernel(old: np.uint64, old_count: int, new: np.uint64, new_count: int) -> None:
    """Enter all entries of one array of slots into another, which is empty. Arrays by their addresses."""
    before, after = uint64_at(old, old_count), uint64_at(new, new_count)
    for i in range(old_count):
        if before[i] != np.uint64(0):
            enter_one(after, np.uint64(new_count), before[i])


@kernel
def flag_rows_kernel(index: U64, bits: int, starts: I64, flags: U8) -> None:
    """Flag the records at the locations of all rows. starts: int64 [slots], place of a segment's first record in flags,
    one bit a record."""
    for shard in range(len(index)):
        entries = uint64_at(index[shard, 0], np.int64(index[shard, 1]))
        for at in range(len(entries)):
            if entries[at] != np.uint64(0):
                _flag(np.int64(entries[at] >> _BITS) - 1, bits, starts, flags)


@kernel
def flag_kernel(locations: I64, bits: int, starts: I64, flags: U8) -> None:
    """Flag the records at these locations; see `flag_rows_kernel`."""
    for i in range(len(locations)):
        _flag(locations[i], bits, starts, flags)
