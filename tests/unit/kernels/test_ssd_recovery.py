"""Records on their way into an index against plain dictionaries: the newest of each row, where probing finds it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.ssd_index import HASH_BITS, MOST_ENTRIES
from hetero.kernels.ssd_records import ROW, TOMBSTONE
from hetero.kernels.ssd_recovery import fill_kernel, newest_kernel

BITS = 3  # of a location, say which record of its segment
RECORDS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 5), st.sampled_from([ROW, ROW, TOMBSTONE])),
    max_size=24,
)


def entry(location: int, hashed: int) -> int:
    return (location + 1) << HASH_BITS | hashed


@settings(max_examples=200, deadline=None)
@given(RECORDS, st.lists(st.integers(0, 2), min_size=10, max_size=10))
def test_the_newest_record_of_each_row_counts(told: list[tuple[int, int, int, int]], hashes: list[int]) -> None:
    """Rows share hashes, versions of a row come in any order, and of two with one number the first counts."""
    newest: dict[tuple[int, int], tuple[int, int, int]] = {}
    records = np.zeros((len(told), 3), np.uint64)
    tags = np.zeros(len(told), np.uint64)
    for location, (key, table, sequence, kind) in enumerate(told):
        records[location] = key, sequence, location << 24 | kind << 16 | table
        tags[location] = hashes[2 * key + table] << 32 | location
        if (key, table) not in newest or sequence > newest[key, table][0]:
            newest[key, table] = sequence, location, kind
    tags.sort()
    entries, of_tables, of_segments = np.zeros(len(told), np.uint64), np.zeros(2, np.int64), np.zeros(4, np.int64)
    found = entries[: newest_kernel(records, tags, BITS, entries, of_tables, of_segments)]
    rows = [(key, table, location) for (key, table), (_, location, kind) in newest.items() if kind == ROW]
    assert sorted(found.tolist()) == sorted(entry(location, hashes[2 * key + table]) for key, table, location in rows)
    assert [int(each) & MOST_ENTRIES for each in found] == sorted(int(each) & MOST_ENTRIES for each in found)
    assert of_tables.tolist() == [sum(table == each for _, table, _ in rows) for each in (0, 1)]
    assert of_segments.tolist() == [sum(at >> BITS == each for *_, at in rows) for each in range(4)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, MOST_ENTRIES) | st.integers(MOST_ENTRIES - 40, MOST_ENTRIES), max_size=20),
    st.integers(0, 20),
)
def test_entries_lie_where_probing_finds_them(hashes: list[int], before: int) -> None:
    """Some are there before; those that the end leaves no place for lie at the beginning."""
    count = max(8, int(len(hashes) / 0.85) + 2)
    places = np.zeros(count, np.uint64)
    shard = np.array([places.ctypes.data, count, 0], np.uint64)
    entries = np.array([entry(number, hashed) for number, hashed in enumerate(hashes)], np.uint64)
    for part in (entries[:before], entries[before:]):
        fill_kernel(part[np.argsort(part & np.uint64(MOST_ENTRIES), kind="stable")], shard)
    assert int(shard[2]) == len(hashes) == np.count_nonzero(places)
    for number, hashed in enumerate(hashes):
        at = hashed * count >> HASH_BITS
        while places[at] != entry(number, hashed):
            assert places[at] != 0
            at = (at + 1) % count
