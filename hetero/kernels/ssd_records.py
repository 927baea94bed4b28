"""Records of rows in segment files: written into chunks, read back by position, checked, scanned.

A record is a whole number of 8-byte words:

    checksum uint32 | table uint16 | kind uint8 | uses uint8 | sequence uint64 | key uint64 | row float32 [W], padded

kind is ROW or TOMBSTONE, which says that the row is no more. The checksum covers every other bit of the record, and
where the record lies: a page of another place does not pass. A position with nothing but zeros was never written.

A segment is a page of header and then chunks; a chunk holds `per_chunk` records one after the other, so that none
crosses into the next. A location is segment slot << position bits | position in the segment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from hetero.kernels.address import floats_at, prefetch, uint64_at
from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import GOLDEN, mix64
from hetero.records import F32, I64, U16, U64

U8 = npt.NDArray[np.uint8]

HEADER_BYTES = 24
PAGE = 4096
ROW, TOMBSTONE = 1, 2
# What became of a record that was asked for.
NOT_READ, FOUND, OTHER_ROW, DAMAGED, UNREADABLE = range(5)
# Where a kernel finds what in a layout, int64 [6].
WIDTH, RECORD_BYTES, PER_CHUNK, CHUNK_BYTES, POSITION_BITS, GAP_BYTES = range(6)

_FIRST = np.uint64(0x9E3779B185EBCA87)
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
_SEEN = np.uint64(0xFFFFFFFF00000000)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_AHEAD = 8
_BLOCK = 32
"""Records written before their checksums are taken, so that the words are in the cache and no longer under way."""

_pread: Any = types.ExternalFunction(
    "pread",
    types.int64(types.int32, types.uint64, types.uint64, types.int64),
)


@inline
def _round(state: np.uint64, word: np.uint64) -> Any:
    state ^= word * _SECOND
    return ((state << np.uint64(31)) | (state >> np.uint64(33))) * _FIRST


@inline
def _checksum(record: np.uint64, words: int, place: np.uint64) -> np.uint64:
    """32 bits over the record but for the checksum itself; one word's change always changes the 64 bits before the last
    step: each step is a bijection of the state (xxHash's round, with the state rotated)."""
    data = uint64_at(record, words)
    state = mix64(place + GOLDEN)
    for i in range(words):
        state = _round(state, data[i] & (_SEEN if i == 0 else _ALL))
    return mix64(state) >> np.uint64(32)


@inline
def _four_checksums(record: np.uint64, record_bytes: np.uint64, words: int, place: np.uint64) -> Any:
    """Of four records, one after the other, from positions that follow each other: a checksum is a chain of products
    that wait for each other, and four chains are done in little more than the time of one."""
    data0, data1 = uint64_at(record, words), uint64_at(record + record_bytes, words)
    data2 = uint64_at(record + np.uint64(2) * record_bytes, words)
    data3 = uint64_at(record + np.uint64(3) * record_bytes, words)
    state0, state1 = mix64(place + GOLDEN), mix64(place + _ONE + GOLDEN)
    state2, state3 = mix64(place + np.uint64(2) + GOLDEN), mix64(place + np.uint64(3) + GOLDEN)
    for i in range(words):
        seen = _SEEN if i == 0 else _ALL
        state0 = _round(state0, data0[i] & seen)
        state1 = _round(state1, data1[i] & seen)
        state2 = _round(state2, data2[i] & seen)
        state3 = _round(state3, data3[i] & seen)
    low = np.uint64(32)
    return mix64(state0) >> low, mix64(state1) >> low, mix64(state2) >> low, mix64(state3) >> low


@inline
def _place(segment: np.uint64, position: np.uint64) -> np.uint64:
    return (segment << np.uint64(32)) | position


@inline
def _sign(record: np.uint64, record_bytes: np.uint64, words: int, count: int, place: np.uint64) -> None:
    """Put checksums into records, one after the other, whose own are 0."""
    fours = count // 4
    for _ in range(fours):
        first, second, third, fourth = _four_checksums(record, record_bytes, words, place)
        for own in (first, second, third, fourth):
            uint64_at(record, 1)[0] |= own
            record += record_bytes
        place += np.uint64(4)
    for _ in range(count - 4 * fours):
        uint64_at(record, 1)[0] |= _checksum(record, words, place)
        record += record_bytes
        place += _ONE


@kernel
def encode_kernel(
    tables: U16,
    keys: U64,
    rows: F32,
    uses: U8,
    start: int,
    count: int,
    kind: int,
    chunk: np.uint64,
    segment: np.uint64,
    position: int,
    sequences: U64,
    layout: I64,
) -> None:
    """Write rows [start, start + count) as records into the chunk at an address, one after the other.

    segment: its number. position: of the first record in its segment.
    """
    width, record_bytes, per_chunk = layout[0], np.uint64(layout[1]), layout[2]
    words = layout[1] // 8
    record = chunk + np.uint64(position % per_chunk) * record_bytes
    for first in range(0, count, _BLOCK):
        stop = min(first + _BLOCK, count)
        place = _place(segment, np.uint64(position + first))
        begin = record
        for i in range(start + first, start + stop):
            head = uint64_at(record, words)
            head[words - 1] = np.uint64(0)
            head[1] = sequences[i]
            head[2] = keys[i]
            row = floats_at(record + np.uint64(24), width)
            for j in range(width):
                row[j] = rows[i, j]
            head[0] = (
                (np.uint64(tables[i]) << np.uint64(32))
                | (np.uint64(kind) << np.uint64(48))
                | (np.uint64(uses[i]) << np.uint64(56))
            )
            record += record_bytes
        _sign(begin, record_bytes, words, stop - first, place)


@inline
def _take(
    record: np.uint64,
    number: np.uint64,
    position: np.uint64,
    table: np.uint16,
    key: np.uint64,
    width: int,
    words: int,
    out: F32,
    uses: U8,
    at: int,
) -> int:
    """Copy a record's row to out[at] when it is the one asked for; what became of it."""
    head = uint64_at(record, 3)
    first = head[0]
    if (first & np.uint64(0xFFFFFFFF)) != _checksum(record, words, _place(number, position)):
        return 3
    stored = np.uint16((first >> np.uint64(32)) & np.uint64(0xFFFF))
    kind = (first >> np.uint64(48)) & np.uint64(0xFF)
    if head[2] != key or stored != table or kind != np.uint64(1):
        return 2
    uses[at] = np.uint8(first >> np.uint64(56))
    row = floats_at(record + np.uint64(24), width)
    for j in range(out.shape[1]):
        out[at, j] = row[j]
    return 1


@kernel
def read_kernel(
    order: I64,
    locations: I64,
    tables: U16,
    keys: U64,
    numbers: U64,
    files: I64,
    chunks: U64,
    layout: I64,
    scratch: np.uint64,
    scratch_bytes: int,
    out: F32,
    uses: U8,
    status: U8,
) -> tuple[int, int]:
    """Read the records of locations[order], which ascend, into out, uses and status at the places of `order`.

    Neighbours less than the layout's gap apart come with one read. numbers, files: of the segment slots. chunks:
    uint64 [slots, chunks], address of one that is in memory, 0 where it is in the file. scratch: an address on a page's
    boundary. Returns how many reads there were and the bytes they took; where one fails its records are UNREADABLE.
    """
    width, record_bytes, per_chunk, chunk_bytes = layout[0], layout[1], layout[2], layout[3]
    bits, gap = np.uint64(layout[4]), layout[5]
    mask = (np.uint64(1) << bits) - np.uint64(1)
    words = record_bytes // 8
    reads, read_bytes = 0, 0
    at = 0
    while at < len(order):
        location = np.uint64(locations[order[at]])
        slot, position = np.int64(location >> bits), np.int64(location & mask)
        part, offset = position // per_chunk, (position % per_chunk) * record_bytes
        if chunks[slot, part] != np.uint64(0):
            i = order[at]
            status[i] = _take(
                chunks[slot, part] + np.uint64(offset),
                numbers[slot],
                np.uint64(position),
                tables[i],
                keys[i],
                width,
                words,
                out,
                uses,
                i,
            )
            at += 1
            continue
        begin = (4096 + part * chunk_bytes + offset) & ~np.int64(4095)
        end = (4096 + part * chunk_bytes + offset + record_bytes + 4095) & ~np.int64(4095)
        stop = at + 1
        while stop < len(order):
            location = np.uint64(locations[order[stop]])
            position = np.int64(location & mask)
            part = position // per_chunk
            if np.int64(location >> bits) != slot or chunks[slot, part] != np.uint64(0):
                break
            offset = 4096 + part * chunk_bytes + (position % per_chunk) * record_bytes
            until = (offset + record_bytes + 4095) & ~np.int64(4095)
            if (offset & ~np.int64(4095)) > end + gap or until - begin > scratch_bytes:
                break
            end = max(end, until)
            stop += 1
        got = _pread(np.int32(files[slot]), scratch, np.uint64(end - begin), begin)
        reads += 1
        read_bytes += max(got, 0)
        for k in range(at, stop):
            i = order[k]
            position = np.int64(np.uint64(locations[i]) & mask)
            offset = 4096 + (position // per_chunk) * chunk_bytes + (position % per_chunk) * record_bytes - begin
            if offset + record_bytes > got:
                status[i] = 4
                continue
            status[i] = _take(
                scratch + np.uint64(offset),
                numbers[slot],
                np.uint64(position),
                tables[i],
                keys[i],
                width,
                words,
                out,
                uses,
                i,
            )
        at = stop
    return reads, read_bytes


@kernel
def scan_kernel(
    chunk: np.uint64,
    whole_bytes: int,
    segment: np.uint64,
    position: int,
    count: int,
    layout: I64,
    tables: U16,
    keys: U64,
    sequences: U64,
    kinds: U8,
    uses: U8,
    rows: F32,
) -> None:
    """Decode the records [position, position + count) of a segment from one chunk, of which whole_bytes are there.

    kinds: 0 never written, ROW, TOMBSTONE, or 255 where the record is damaged or cut off. rows: float32 [count, W], or
    [count, 0] to leave them out.
    """
    width, record_bytes, per_chunk = rows.shape[1], layout[1], layout[2]
    words = record_bytes // 8
    step, sums, summed = np.uint64(record_bytes), np.zeros(4, np.uint64), 0
    for i in range(count):
        offset = ((position + i) % per_chunk) * record_bytes
        record = chunk + np.uint64(offset)
        there = min(np.int64(words), max(np.int64(0), (whole_bytes - offset) // 8))
        data = uint64_at(record, words)
        empty = True
        for k in range(there):
            if data[k] != np.uint64(0):
                empty = False
                break
        if empty:
            kinds[i] = 0
            continue
        if there < words:
            kinds[i] = 255
            continue
        if i + _AHEAD < count:
            prefetch(record + np.uint64(_AHEAD * record_bytes))
        first, place = data[0], _place(segment, np.uint64(position + i))
        if i >= summed:
            if i + 4 <= count and offset + 4 * record_bytes <= whole_bytes:
                sums[0], sums[1], sums[2], sums[3] = _four_checksums(record, step, words, place)
                summed = i + 4
            else:
                sums[3] = _checksum(record, words, place)
                summed = i + 1
        if (first & np.uint64(0xFFFFFFFF)) != sums[4 - (summed - i)]:
            kinds[i] = 255
            continue
        tables[i] = np.uint16((first >> np.uint64(32)) & np.uint64(0xFFFF))
        kinds[i] = np.uint8((first >> np.uint64(48)) & np.uint64(0xFF))
        uses[i] = np.uint8(first >> np.uint64(56))
        sequences[i] = data[1]
        keys[i] = data[2]
        row = floats_at(record + np.uint64(24), width)
        for j in range(width):
            rows[i, j] = row[j]
