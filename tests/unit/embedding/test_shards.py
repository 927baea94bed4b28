"""The shards' memory: room for what comes, bounds on what is idle, and an error with numbers when there is no more."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from hetero.embedding import shards as shards_module
from hetero.embedding.shards import SHARDS, Shards
from hetero.errors import CapacityError
from hetero.kernels import region as region_module
from hetero.kernels.index import CAPACITY, HEADER_BYTES, ROW_COUNT, SLOT_COUNT
from hetero.kernels.mix import mix64_reference
from hetero.records import U64

WIDTH = 17


def some_shards() -> Shards:
    return Shards(width=WIDTH, seeds=mix64_reference(np.array([1], np.uint64)))


def needed(rows: int, *, shard: int = 3) -> U64:
    counts = np.zeros(SHARDS, np.uint64)
    counts[shard] = rows
    return counts


def test_every_shard_has_room_for_what_was_asked() -> None:
    shards, random = some_shards(), np.random.default_rng(0)
    for most in (0, 3, 40, 1000, 30_000):
        asked = random.integers(0, most + 1, SHARDS).astype(np.uint64)
        shards.make_room(asked)
        rows = shards.description[:, ROW_COUNT] + asked
        assert (shards.description[:, CAPACITY] >= rows).all()
        assert (shards.description[:, SLOT_COUNT] * 0.8 >= rows).all()


def test_idle_slots_and_places_are_bounded() -> None:
    shards = some_shards()
    for rows in range(1000, 200_000, 777):
        shards.make_room(needed(rows))
        assert shards.description[3, SLOT_COUNT] <= 2 * rows
        assert shards.description[3, CAPACITY] <= 1.3 * rows + (1 << 21) // (HEADER_BYTES + 4 * WIDTH) + 1


def test_a_full_shard_is_an_error_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "MOST_ROWS", 1000)
    shards = some_shards()
    shards.make_room(needed(1000))
    with pytest.raises(CapacityError, match=r"would hold 1001 rows, at most 1000 .*64000 rows a server.*servers"):
        shards.make_room(needed(1001))


def test_no_memory_is_an_error_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = some_shards()
    before = shards.description.copy()

    def refuse(*_: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(region_module, "_mapped", refuse)
    monkeypatch.setattr(region_module, "_CAN_GROW", False)
    with pytest.raises(CapacityError, match=r"no memory for 50000 rows of 80 bytes, 0 are there .*allocate.*servers"):
        shards.make_room(needed(50_000))
    np.testing.assert_array_equal(shards.description, before)


def test_memory_counts_rows_in_use() -> None:
    shards = some_shards()
    slots = int(shards.description[:, SLOT_COUNT].sum())
    assert (shards.memory().index_bytes, shards.memory().row_bytes) == (4 * slots, 0)
    shards.description[:, ROW_COUNT] = 2
    assert shards.memory().row_bytes == 2 * SHARDS * 4 * WIDTH
    assert shards.memory().index_bytes == 4 * slots + 2 * SHARDS * HEADER_BYTES
    assert shards.memory().total_bytes == shards.memory().index_bytes + shards.memory().row_bytes
