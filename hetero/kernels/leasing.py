"""Rows handed out to towers and taken back, in one look each: a row's place is the costly part.

Contracts: lend      rows float32 [n, W] of keys that have rows, which `holder` has from then on; who is missing
           held      where the rows of a holder are; the first key that it lacks
           set_held  rows at those places are overwritten; who has them then, and the epoch of the change
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.address import floats_at, prefetch, uint16_at
from hetero.kernels.index import BLOCK, HEADER_BYTES, MOST_HOLDERS, locate_block
from hetero.kernels.jit import kernel
from hetero.records import F32, I32, U16, U64

_HEADER = np.uint64(HEADER_BYTES)
_FIELD = np.uint64(10)
_HOLDER = np.uint16(MOST_HOLDERS)
_AHEAD = 16


@kernel
def lend_kernel(
    tables: U16,
    keys: U64,
    seeds: U64,
    shards: U64,
    shift: np.uint64,
    width: int,
    holder: np.uint16,
    out: F32,
    missing: I32,
) -> tuple[int, int]:
    """Give the rows there are to `holder`, and copy them: out float32 [n, W]; what is missing is left as it is.

    Returns how many are missing, their positions in `missing`; and the position of the first row that is held already,
    with which it ends, or -1. Rows before that one are given.
    """
    stride = np.uint64(HEADER_BYTES + 4 * width)
    lines = (HEADER_BYTES + 4 * width + 63) // 64
    hashes, records = np.empty(2 * BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    absent = 0
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        locate_block(tables, keys, start, count, seeds, shards, shift, stride, lines, hashes, records)
        for i in range(count):
            record = records[i]
            if record == np.uint64(0):
                missing[absent] = start + i
                absent += 1
                continue
            field = uint16_at(record + _FIELD, 1)
            if field[0] & _HOLDER:
                return absent, start + i
            field[0] = field[0] | holder
            row = floats_at(record + _HEADER, width)
            for j in range(width):
                out[start + i, j] = row[j]
    return absent, -1


@kernel
def held_kernel(
    tables: U16, keys: U64, seeds: U64, shards: U64, shift: np.uint64, width: int, holder: np.uint16, places: U64
) -> int:
    """places[i] = address of a row's record, uint64 [n]; the position of the first that `holder` lacks, or -1."""
    stride = np.uint64(HEADER_BYTES + 4 * width)
    hashes, records = np.empty(2 * BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        locate_block(tables, keys, start, count, seeds, shards, shift, stride, 1, hashes, records)
        for i in range(count):
            record = records[i]
            if record == np.uint64(0) or uint16_at(record + _FIELD, 1)[0] & _HOLDER != holder:
                return start + i
            places[start + i] = record
    return -1


@kernel
def set_held_kernel(places: U64, width: int, rows_at: np.uint64, epoch: np.uint16, holder: np.uint16) -> None:
    """Overwrite the rows at places [n] with float32 [n, W] at `rows_at`.

    epoch: of this change, in its place in the field. holder: who has them from now on, 0 for nobody.
    """
    line = np.uint64(4 * width)
    lines = (HEADER_BYTES + 4 * width + 63) // 64
    given = rows_at
    for i in range(len(places)):
        if i + _AHEAD < len(places):
            for number in range(lines):
                prefetch(places[i + _AHEAD] + np.uint64(64 * number))
        record = places[i]
        source, row = floats_at(given, width), floats_at(record + _HEADER, width)
        for j in range(width):
            row[j] = source[j]
        uint16_at(record + _FIELD, 1)[0] = epoch | holder
        given += line
