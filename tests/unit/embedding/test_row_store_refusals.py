"""What a store of rows refuses, by name, and that it holds afterwards what it held before."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.embedding import shards as shards_module
from hetero.embedding.answers import Create
from hetero.embedding.store import RowStore
from hetero.errors import CapacityError, LeaseError, ProtocolError
from hetero.records import (
    U64,
    KeySet,
)
from tests.support.row_oracle import RowOracle
from tests.support.row_stores import (
    BAD,
    assert_same_rows,
    group_of,
    key_pool,
)
from tests.support.row_updates import assert_same_bits


@pytest.mark.parametrize("bad", BAD)
def test_a_gradient_that_is_not_finite_is_named_and_leaves_its_row(bad: float) -> None:
    store, pool = RowStore(group_of(dim=2)), key_pool(60, seed=4)
    half = pool[::2]
    store.pull(half, create=Create.YES)
    before = store.read_rows(pool)
    gradients = np.ones((len(pool), 2), np.float32)
    rows = [3, 4, 20, 31]
    gradients[rows, [0, 1, 0, 1]] = bad
    report = store.push(pool, gradients)
    assert (report.applied, report.rejected) == (len(pool) - 4, 4)
    assert report.examples == tuple((f"t{pool.tables[row]}", int(pool.keys[row])) for row in rows)
    after = store.read_rows(pool)
    assert after.found.all()
    existed = [row for row in rows if before.found[row]]
    assert existed
    assert_same_bits(after.rows[existed], before.rows[existed])
    fresh = RowStore(group_of(dim=2))
    fresh.pull(pool, create=Create.YES)
    assert_same_bits(after.rows[rows], fresh.read_rows(pool).rows[rows])


def test_at_most_eight_rejected_rows_are_named() -> None:
    store, pool = RowStore(group_of(dim=2)), key_pool(60, seed=4)
    report = store.push(pool, np.full((len(pool), 2), np.nan, np.float32))
    assert (report.applied, report.rejected) == (0, len(pool))
    assert report.examples == tuple((f"t{pool.tables[row]}", int(pool.keys[row])) for row in range(8))


@pytest.mark.parametrize("table", [1, 3, 8, 65535])
def test_a_table_of_another_group_is_refused(table: int) -> None:
    store = RowStore(group_of())
    keys = KeySet(np.array([0, table], np.uint16), np.array([1, 2], np.uint64))
    for call in (
        lambda: store.pull(keys, create=Create.YES),
        lambda: store.push(keys, np.ones((2, 3), np.float32)),
        lambda: store.read_rows(keys),
        lambda: store.write_rows(keys, np.ones((2, 4), np.float32)),
        lambda: store.lease(keys, holder=1),
    ):
        with pytest.raises(
            ProtocolError, match=rf"rows of table {table} were asked of the group of \['t0', 't2', 't7'\]"
        ):
            call()
    assert store.count() == 0


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (1, 3), (3, 3), (2,), (6,), (2, 3, 1)])
def test_gradients_and_rows_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """By address, a kernel would read past their end."""
    store = RowStore(group_of())
    keys = KeySet(np.zeros(2, np.uint16), np.array([1, 2], np.uint64))
    with pytest.raises(ProtocolError, match=r"gradients: got shape .* expected \(2, 3\)"):
        store.push(keys, np.ones(shape, np.float32))
    with pytest.raises(ProtocolError, match=r"rows: got shape .* expected \(2, 4\)"):
        store.write_rows(keys, np.ones((*shape[:-1], shape[-1] + 3), np.float32))
    assert store.count() == 0


@pytest.mark.parametrize(
    ("tables", "keys"),
    [
        (np.zeros(2, np.uint16), np.array([1, 2], np.int64)),
        (np.zeros(2, np.int64), np.array([1, 2], np.uint64)),
        (np.zeros(2, np.uint16), np.array([1, 2], np.float64)),
        (np.zeros(1, np.uint16), np.array([1, 2], np.uint64)),
        (np.zeros((2, 1), np.uint16), np.array([1, 2], np.uint64)),
    ],
)
def test_keys_of_another_type_or_length_are_refused(tables: np.ndarray, keys: U64) -> None:
    """A signed key would be hashed by another shift and never be found again."""
    with pytest.raises(ProtocolError, match="expected uint16 and uint64 of one length"):
        RowStore(group_of()).pull(KeySet(tables, keys), create=Create.YES)


def test_a_full_store_says_so_and_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of()
    store, oracle, pool = RowStore(group), RowOracle(group), key_pool(3000, seed=7)
    first, rest = pool[:500], pool[500:]
    gradients = np.ones((500, 3), np.float32)
    store.push(first, gradients)
    oracle.push(first, gradients)
    monkeypatch.setattr(shards_module, "MOST_ROWS", 40)
    with pytest.raises(CapacityError, match="at most 40 are possible"):
        store.pull(rest, create=Create.YES)
    with pytest.raises(CapacityError, match="at most 40 are possible"):
        store.write_rows(rest, np.ones((len(rest), 4), np.float32))
    assert_same_rows(store, oracle)
    assert store.push(first, gradients) == oracle.push(first, gradients)
    assert_same_rows(store, oracle)


def test_rows_begin_on_lease_as_by_pull_and_a_failed_lease_holds_nothing() -> None:
    group, pool = group_of(), key_pool(200, seed=1)
    store, oracle = RowStore(group), RowOracle(group)
    first, rest = pool[:90], pool[89:]
    oracle.pull(first, create=Create.YES)
    assert_same_bits(store.lease(first, holder=3), oracle.read_rows(first).rows)
    with pytest.raises(LeaseError, match=rf"key {first.keys[89]} of table t{first.tables[89]} is held by tower 2"):
        store.lease(rest, holder=4)
    store.lease(rest[1:], holder=4)
    with pytest.raises(LeaseError, match="is held by tower 2"):
        store.give_back(pool, np.ones((len(pool), 4), np.float32), holder=4)


@pytest.mark.parametrize("held_at", [0, 2500, 5999])
def test_a_lease_that_fails_in_one_threads_part_holds_nothing_of_the_others(held_at: int) -> None:
    store, pool = RowStore(group_of(), threads=2), key_pool(6000, seed=5)
    store.pull(pool, create=Create.YES)
    held = pool[held_at : held_at + 1]
    store.lease(held, holder=7)
    with pytest.raises(LeaseError, match=rf"key {held.keys[0]} of table t{held.tables[0]} is held by tower 6"):
        store.lease(pool, holder=2)
    store.give_back(held, store.read_rows(held).rows, holder=7)
    store.check_free(pool)
    store.close()


def test_a_lease_that_finds_no_room_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store, pool = RowStore(group_of()), key_pool(3000, seed=7)
    store.pull(pool[:500], create=Create.YES)
    monkeypatch.setattr(shards_module, "MOST_ROWS", 40)
    with pytest.raises(CapacityError, match="at most 40 are possible"):
        store.lease(pool, holder=1)
    store.check_free(pool)
    assert store.count() == 500
