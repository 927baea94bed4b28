"""A record on disk: every flipped byte shows, as does a record of another place; the index against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.embedding.ssd.index import SsdIndex
from hetero.kernels.region import Region
from hetero.kernels.ssd_records import ROW, encode_kernel, scan_kernel
from hetero.records import KeySet
from tests.support.ssd_stores import LAYOUT, MIXED, SHIFT, WIDTH, hard_keys, part_of, rows_for, uses_of

COUNT = 5
KEYS = part_of(hard_keys(3), np.arange(COUNT))
ROWS = rows_for(COUNT, version=1)


def encoded(segment: int = 4, position: int = 7) -> Region:
    chunk = Region(LAYOUT.chunk_bytes)
    shape, address = LAYOUT.for_kernels(), np.uint64(chunk.address)
    number, first = np.uint64(segment), np.arange(50, 50 + COUNT, dtype=np.uint64)
    encode_kernel(KEYS.tables, KEYS.keys, ROWS, uses_of(KEYS), 0, COUNT, ROW, address, number, position, first, shape)
    return chunk


def kinds_in(chunk: Region, *, segment: int = 4, position: int = 7, size: int = 4096) -> list[int]:
    tables, keys, sequences = np.zeros(COUNT, np.uint16), np.zeros(COUNT, np.uint64), np.zeros(COUNT, np.uint64)
    kinds, uses, rows = np.zeros(COUNT, np.uint8), np.zeros(COUNT, np.uint8), np.zeros((COUNT, WIDTH), np.float32)
    scan_kernel(
        np.uint64(chunk.address),
        size,
        np.uint64(segment),
        position,
        COUNT,
        LAYOUT.for_kernels(),
        tables,
        keys,
        sequences,
        kinds,
        uses,
        rows,
    )
    whole = kinds == ROW
    np.testing.assert_array_equal(tables[whole], KEYS.tables[whole])
    np.testing.assert_array_equal(keys[whole], KEYS.keys[whole])
    np.testing.assert_array_equal(sequences[whole], np.arange(50, 50 + COUNT)[whole])
    np.testing.assert_array_equal(uses[whole], uses_of(KEYS)[whole])
    np.testing.assert_array_equal(rows[whole].view(np.uint32), ROWS[whole].view(np.uint32))
    return [int(kind) for kind in kinds]


def test_records_come_back_as_they_were() -> None:
    assert kinds_in(encoded()) == [ROW] * COUNT


def test_every_flipped_bit_of_a_record_shows() -> None:
    chunk = encoded()
    second = 8 * LAYOUT.record_bytes
    with chunk.view(LAYOUT.chunk_bytes) as data:
        for at in range(second, second + LAYOUT.record_bytes):
            for bit in range(8):
                data[at] ^= 1 << bit
                assert kinds_in(chunk) == [ROW, 255, ROW, ROW, ROW], (at, bit)
                data[at] ^= 1 << bit


def test_a_record_of_another_place_does_not_pass() -> None:
    chunk = encoded()
    assert kinds_in(chunk, segment=5) == [255] * COUNT
    with chunk.view(LAYOUT.chunk_bytes) as data:
        first, third = 7 * LAYOUT.record_bytes, 9 * LAYOUT.record_bytes
        data[third : third + LAYOUT.record_bytes] = data[first : first + LAYOUT.record_bytes]
    assert kinds_in(chunk) == [ROW, ROW, 255, ROW, ROW]


def test_a_record_cut_off_is_damaged_and_one_never_written_is_not() -> None:
    chunk = encoded()
    assert kinds_in(chunk, size=9 * LAYOUT.record_bytes + 16)[:3] == [ROW, ROW, 255]
    assert kinds_in(Region(4096)) == [0] * COUNT


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["enter", "drop", "move"]), st.integers(0, 10**6)), max_size=12),
    st.integers(0, 40),
)
def test_an_index_finds_what_a_dictionary_does(operations: list[tuple[str, int]], easy: int) -> None:
    pool = hard_keys(easy)
    index, where = SsdIndex(seeds=MIXED, shift=SHIFT, position_bits=8), dict[int, int]()
    live = np.zeros(1 << 16, np.int64)
    location = 0
    for operation, seed in operations:
        random = np.random.default_rng(seed)
        among = [at for at in range(len(pool)) if (at in where) == (operation != "enter")]
        picked = random.permutation(among)[: len(among) // 2].astype(np.int64)
        keys = part_of(pool, picked)
        new = np.arange(location, location + len(keys))
        location += len(keys)
        old = np.array([where.get(int(at), -1) for at in picked], np.int64)
        if operation == "enter":
            index.enter(keys, new)
            where.update(zip(picked.tolist(), new.tolist(), strict=True))
        elif operation == "move":
            index.move(keys, old, new)
            where.update(zip(picked.tolist(), new.tolist(), strict=True))
        else:
            every = np.arange(len(keys), dtype=np.int32)
            assert index.drop(keys, every, old, live) == len(keys)
            assert index.drop(keys, every, old, live) == 0
            for at in picked.tolist():
                del where[at]
        _assert_same(index, where, pool)


def _assert_same(index: SsdIndex, where: dict[int, int], keys: KeySet) -> None:
    count = len(keys)
    assert index.row_count == len(where)
    locations, cursors = np.empty(count, np.int64), np.full(count, -1, np.int64)
    left, seen = np.arange(count, dtype=np.int32), [set[int]() for _ in range(count)]
    while index.candidates(keys, left, cursors, locations):
        left = left[locations[left] >= 0]
        for at in left.tolist():
            assert int(locations[at]) not in seen[at]
            seen[at].add(int(locations[at]))
    for at in range(count):
        assert at not in where or where[at] in seen[at]
        assert len(seen[at]) <= 18  # six keys a table share all that the index knows of them


def test_an_entry_takes_at_most_twelve_bytes() -> None:
    count = 400_000
    keys = part_of(hard_keys(count), np.arange(count))
    index = SsdIndex(seeds=MIXED, shift=SHIFT, position_bits=20)
    worst = 0.0
    for start in range(0, count, 10_000):
        part = part_of(keys, np.arange(start, start + 10_000))
        index.enter(part, np.arange(start, start + 10_000))
        if start > 100_000:
            worst = max(worst, index.memory_bytes / index.row_count)
    assert worst <= 12.0
