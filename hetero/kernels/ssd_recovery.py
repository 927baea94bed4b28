"""Records found by a scan, on their way into an index: dealt out to shards, the newest of each row found and entered.

A record is three words: its key, its sequence number, and location << 24 | kind << 16 | table. Kinds are those of
`hetero.kernels.ssd_records`, locations and shards those of `hetero.kernels.ssd_index`. A shard's records are sorted by
the bits of the hash that the index goes by: versions of a row are neighbours then, and entries come in the order in
which they lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.kernels.address import prefetch, uint64_at
from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import mix64
from hetero.kernels.ssd_index import HASH_BITS, MOST_ENTRIES, enter_one, home
from hetero.kernels.ssd_records import ROW, TOMBSTONE
from hetero.records import I64, U8, U16, U64

I16 = npt.NDArray[np.int16]

WORDS = 3
_KEY, _SEQUENCE, _HEAD = range(WORDS)
_TABLE = np.uint64(0xFFFF)
_KIND_AT = np.uint64(16)
_KIND = np.uint64(0xFF)
_LOCATION_AT = np.uint64(24)
_BITS = np.uint64(HASH_BITS)
_HASH = np.uint64(MOST_ENTRIES)
_TAG_AT = np.uint64(32)
_NUMBER = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)
_AHEAD = 16


@inline
def _number(tag: np.uint64) -> Any:
    return np.int64(tag & _NUMBER)


@kernel
def shards_kernel(
    tables: U16,
    keys: U64,
    sequences: U64,
    kinds: U8,
    seeds: U64,
    shift: np.uint64,
    first: int,
    stop: int,
    shard_of: I16,
    starts: I64,
) -> Any:
    """To which shard of [first, stop) a whole record belongs, -1 for the others; how many of all records are whole, and
    the newest sequence number among them.

    starts: int64 [shards + 1], zeros at first; what `deal_kernel` deals out to shard s goes to
    [starts[s], starts[s + 1]).
    """
    shards = len(starts) - 1
    mask = np.uint64(shards - 1)
    whole, newest = 0, np.uint64(0)
    for i in range(len(keys)):
        shard_of[i] = -1
        if kinds[i] == ROW or kinds[i] == TOMBSTONE:
            whole += 1
            newest = max(newest, sequences[i])
            shard = np.int64((mix64(keys[i] ^ seeds[tables[i]]) >> shift) & mask)
            if first <= shard < stop:
                shard_of[i] = shard
                starts[shard + 1] += 1
    for number in range(shards):
        starts[number + 1] += starts[number]
    return whole, newest


@kernel
def deal_kernel(
    tables: U16, keys: U64, sequences: U64, kinds: U8, base: np.uint64, shard_of: I16, starts: I64, records: U64
) -> None:
    """Copy the records that belong to a shard, shard after shard, each in order. base: the location of the first
    record, which the others follow. records: uint64 [starts[-1], 3]."""
    next_ = starts[:-1].copy()
    for i in range(len(keys)):
        if shard_of[i] < 0:
            continue
        at = next_[shard_of[i]]
        next_[shard_of[i]] += 1
        records[at, _KEY] = keys[i]
        records[at, _SEQUENCE] = sequences[i]
        head = (base + np.uint64(i)) << _LOCATION_AT
        records[at, _HEAD] = head | (np.uint64(kinds[i]) << _KIND_AT) | np.uint64(tables[i])


@kernel
def tags_kernel(records: U64, seeds: U64, tags: U64) -> None:
    """tags[i] = the index's bits of the hash << 32 | i, of fewer than 2^32 records. To be sorted."""
    for i in range(len(records)):
        hashed = mix64(records[i, _KEY] ^ seeds[np.int64(records[i, _HEAD] & _TABLE)])
        tags[i] = ((hashed & _HASH) << _TAG_AT) | np.uint64(i)


@kernel
def newest_kernel(records: U64, tags: U64, bits: int, entries: U64, of_tables: I64, of_segments: I64) -> int:
    """Entries of the rows among a shard's records, by the newest record of each, without those that it says were
    dropped; how many there are. The first of two records with one sequence number counts.

    tags: sorted, and not what they were afterwards. bits: of a location, say which record of its segment. entries:
    uint64 [n], filled with what the index holds, sorted by its bits of the hash. Rows are counted by table and by
    segment slot.
    """
    rows, start, address = 0, 0, np.uint64(records.ctypes.data)
    while start < len(tags):
        hashed, stop, rivals = tags[start] >> _TAG_AT, start, 0
        while stop < len(tags) and tags[stop] >> _TAG_AT == hashed:
            if stop + _AHEAD < len(tags):
                prefetch(address + np.uint64(8 * WORDS * _number(tags[stop + _AHEAD])))
            own, is_known = _number(tags[stop]), False
            for rival in range(start, start + rivals):
                there = _number(tags[rival])
                if records[there, _KEY] == records[own, _KEY] and (
                    (records[there, _HEAD] ^ records[own, _HEAD]) & _TABLE == np.uint64(0)
                ):
                    is_known = True
                    if records[own, _SEQUENCE] > records[there, _SEQUENCE]:
                        tags[rival] = tags[stop]
                    break
            if not is_known:
                tags[start + rivals] = tags[stop]
                rivals += 1
            stop += 1
        for rival in range(start, start + rivals):
            head = records[_number(tags[rival]), _HEAD]
            if (head >> _KIND_AT) & _KIND == np.uint64(ROW):
                location = head >> _LOCATION_AT
                entries[rows] = ((location + _ONE) << _BITS) | hashed
                rows += 1
                of_tables[np.int64(head & _TABLE)] += 1
                of_segments[np.int64(location) >> bits] += 1
        start = stop
    return rows


@kernel
def fill_kernel(sorted_: U64, shard: U64) -> None:
    """Add entries that are not there to a shard, which has room. sorted_: by the index's bits of the hash. shard: its
    line of the index's description."""
    count = shard[1]
    entries = uint64_at(shard[0], np.int64(count))
    next_ = count if shard[2] else np.uint64(0)  # where the last one lies, others may lie behind it
    for i in range(len(sorted_)):
        at = max(home(sorted_[i], count), next_)
        if at < count:
            entries[at] = sorted_[i]
            next_ = at + _ONE
        else:
            enter_one(entries, count, sorted_[i])
    shard[2] += np.uint64(len(sorted_))
