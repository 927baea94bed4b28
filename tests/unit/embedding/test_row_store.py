"""A store of rows against a dictionary, bit for bit: growth, adversarial keys, threads, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.embedding import store as store_module
from hetero.embedding.answers import Create
from hetero.embedding.store import RowStore
from hetero.kernels.index import read_kernel, update_kernel, write_kernel
from hetero.records import (
    GroupSpec,
    Initializer,
    InitSpec,
    KeySet,
    RowOptimizer,
    RowOptimizerSpec,
    TableSpec,
)
from tests.support.crafted_keys import colliding_hashes, keys_with_hashes
from tests.support.row_oracle import RowOracle, pairs
from tests.support.row_stores import (
    EXTREMES,
    SEEDS,
    assert_same_rows,
    everything,
    group_of,
    key_pool,
    some_gradients,
    some_of,
)
from tests.support.row_updates import assert_same_bits


def run_operations(
    store: RowStore, oracle: RowOracle, pool: KeySet, sizes: list[tuple[str, int]], *, seed: int
) -> None:
    """The same calls on both, each answer compared."""
    random, dim = (
        np.random.default_rng(seed),
        oracle.pull(pool[:0], create=Create.NO).shape[1],
    )
    for operation, size in sizes:
        keys = some_of(pool, size, random)
        if operation == "push":
            gradients = some_gradients(keys, dim, random)
            assert store.push(keys, gradients) == oracle.push(keys, gradients)
        elif operation == "write":
            rows = random.normal(size=(len(keys), oracle.width)).astype(np.float32) ** 2
            store.write_rows(keys, rows)
            oracle.write_rows(keys, rows)
        elif operation == "load":
            rows = random.normal(size=(len(keys), oracle.width)).astype(np.float32) ** 2
            store.load_rows(keys, rows)
            oracle.write_rows(keys, rows)
        elif operation == "read":
            got, want = store.read_rows(keys), oracle.read_rows(keys)
            np.testing.assert_array_equal(got.found, want.found)
            assert_same_bits(got.rows, want.rows)
        else:
            create = Create.YES if operation == "create" else Create.NO
            assert_same_bits(store.pull(keys, create=create), oracle.pull(keys, create=create))


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["push", "write", "load", "read", "create", "score"]), st.sampled_from([0, 1, 5, 60, 400])
    ),
    max_size=8,
)


@pytest.mark.parametrize("kind", RowOptimizer)
def test_any_sequence_of_calls_does_what_a_dictionary_does(kind: RowOptimizer) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        st.sampled_from([1, 3, 16]),
        st.sampled_from(Initializer),
        st.sampled_from([0.0, 0.1]),
        OPERATIONS,
        st.integers(0, 2**32 - 1),
    )
    def check(dim: int, first: Initializer, extra: float, operations: list[tuple[str, int]], seed: int) -> None:
        group = group_of(kind, dim=dim, first=first, l1=extra, l2=extra, initial_accumulator=extra)
        store, oracle = RowStore(group), RowOracle(group)
        run_operations(store, oracle, key_pool(300, seed=seed), operations, seed=seed)
        assert_same_rows(store, oracle)

    check()


def test_rows_stay_what_they_were_while_shards_grow() -> None:
    group = group_of(RowOptimizer.FTRL, dim=2)
    store, oracle, pool = RowStore(group), RowOracle(group), key_pool(12_000, seed=5)
    calls = [("create", 1000), ("push", 2500), ("write", 1500), ("push", 6000), ("create", 4000), ("push", 9000)]
    run_operations(store, oracle, pool, calls, seed=6)
    assert store.count() > 11_000
    assert_same_rows(store, oracle)


def test_all_keys_of_one_shard() -> None:
    """Rows that all fall into one shard of 64, one bucket, and finally one slot."""
    group = group_of(dim=2)
    store, oracle = RowStore(group), RowOracle(group)
    hashes = [5 << 52 | number << 20 for number in range(3000)]
    keys = np.concatenate([keys_with_hashes(hashes, seed=11), keys_with_hashes(colliding_hashes(300), seed=11)])
    pool = KeySet(np.zeros(len(keys), np.uint16), keys)
    run_operations(store, oracle, pool, [("create", 900), ("push", 2000), ("push", 3300), ("score", 3300)], seed=1)
    assert_same_rows(store, oracle)


@pytest.mark.parametrize("kind", RowOptimizer)
def test_two_threads_give_the_bits_of_one(kind: RowOptimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_SMALLEST_PART", 16)
    group, pool = group_of(kind, dim=5), key_pool(4000, seed=8)
    one, two, random = RowStore(group), RowStore(group, threads=2), np.random.default_rng(9)
    for _ in range(4):
        keys = some_of(pool, 2501, random)
        assert_same_bits(one.pull(keys, create=Create.YES), two.pull(keys, create=Create.YES))
        keys = some_of(pool, 3000, random)
        gradients = some_gradients(keys, 5, random)
        report = one.push(keys, gradients)
        assert report == two.push(keys, gradients)
        assert report.rejected > 8
    for (keys, rows), (other_keys, other_rows) in zip(one.scan(), two.scan(), strict=True):
        assert pairs(keys) == pairs(other_keys)
        assert_same_bits(rows, other_rows)
    two.close()


def test_the_order_of_keys_and_the_cuts_between_calls_change_no_bit() -> None:
    group, pool, random = group_of(RowOptimizer.ADAM), key_pool(500, seed=3), np.random.default_rng(3)
    gradients = some_gradients(pool, 3, random, bad=0)
    at_once, in_parts = RowStore(group), RowStore(group)
    at_once.push(pool, gradients)
    for part in np.array_split(random.permutation(len(pool)), 7):
        in_parts.push(pool[part], gradients[part])
    assert_same_bits(at_once.read_rows(pool).rows, in_parts.read_rows(pool).rows)


def test_first_values_do_not_depend_on_the_tables_beside_or_the_buckets() -> None:
    keys = np.array(EXTREMES, np.uint64)
    alone = GroupSpec(
        dim=3,
        optimizer=RowOptimizerSpec(),
        init=InitSpec(scale=0.1),
        tables=(TableSpec(index=0, name="t7", seed=SEEDS[7]),),
    )
    want = RowStore(alone).pull(KeySet(np.zeros(5, np.uint16), keys), create=Create.YES)
    for buckets in (2, 64, 4096, 1 << 20):
        got = RowStore(group_of(), buckets=buckets).pull(KeySet(np.full(5, 7, np.uint16), keys), create=Create.YES)
        assert_same_bits(got, want)
    assert len(np.unique(want)) == want.size


def test_scoring_creates_nothing() -> None:
    store, pool = RowStore(group_of()), key_pool(50, seed=1)
    assert not store.pull(pool, create=Create.NO).any()
    assert not store.read_rows(pool).found.any()
    assert store.count() == 0
    assert list(store.scan()) == []


def test_arrays_that_kernels_cannot_take_as_they_are() -> None:
    """Strided, read-only, Fortran-ordered and float64 arrays mean what they say, and nothing is compiled for them."""
    group, pool, random = group_of(dim=4), key_pool(200, seed=2), np.random.default_rng(2)
    store, oracle = RowStore(group), RowOracle(group)
    store.push(pool, some_gradients(pool, 4, random, bad=0))
    oracle.push(pool, some_gradients(pool, 4, np.random.default_rng(2), bad=0))
    store.write_rows(pool, store.read_rows(pool).rows)
    kernels: list[Any] = [read_kernel, update_kernel, write_kernel]
    compiled = [len(kernel.signatures) for kernel in kernels]

    fresh = key_pool(200, seed=3)
    doubled = KeySet(np.repeat(fresh.tables, 2)[::2], np.repeat(fresh.keys, 2)[::2])
    read_only = KeySet(fresh.tables.copy(), fresh.keys.copy())
    for array in (read_only.tables, read_only.keys):
        array.flags.writeable = False
    plain = some_gradients(fresh, 4, random, bad=0)
    frozen = plain.copy()
    frozen.flags.writeable = False
    cases: list[tuple[KeySet, Any]] = [
        (doubled, np.asfortranarray(plain)),
        (read_only, frozen),
        (fresh, np.repeat(plain, 2, axis=1)[:, ::2]),
        (fresh, plain.astype(np.float64)),
    ]
    for keys, gradients in cases:
        assert store.push(keys, gradients) == oracle.push(fresh, plain)
        assert_same_bits(store.pull(keys, create=Create.NO), oracle.pull(fresh, create=Create.NO))
    rows = np.asfortranarray(random.normal(size=(len(fresh), 5)).astype(np.float32))
    store.write_rows(read_only, rows)
    oracle.write_rows(fresh, rows)
    assert_same_rows(store, oracle)
    assert [len(kernel.signatures) for kernel in kernels] == compiled


def test_arrays_given_and_taken_are_the_callers_own() -> None:
    store, pool, random = RowStore(group_of()), key_pool(50, seed=2), np.random.default_rng(2)
    keys = KeySet(pool.tables.copy(), pool.keys.copy())
    gradients = some_gradients(pool, 3, random, bad=0.1)
    given_gradients = gradients.copy()
    store.push(keys, gradients)
    pulled = store.pull(keys, create=Create.NO)
    kept = pulled.copy()
    pulled[:] = 99
    store.read_rows(keys).rows[:] = 99
    for _, rows in store.scan():
        rows[:] = 99
    assert_same_bits(store.pull(keys, create=Create.NO), kept)
    assert pairs(keys) == pairs(pool)
    np.testing.assert_array_equal(gradients, given_gradients)


def test_a_key_given_twice_makes_one_row() -> None:
    """Callers give unique keys; one that does not must not leave two rows of one key behind."""
    group = group_of()
    store, once = RowStore(group), RowStore(group)
    twice = KeySet(np.zeros(4, np.uint16), np.array([5, 6, 5, 5], np.uint64))
    pulled = store.pull(twice, create=Create.YES)
    assert store.count() == 2
    assert len(everything(store)) == 2
    assert_same_bits(pulled[[0, 0]], pulled[2:])
    assert_same_bits(pulled[:2], once.pull(twice[:2], create=Create.YES))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_closed_store_still_holds_its_rows(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_SMALLEST_PART", 16)
    group, pool = group_of(), key_pool(200, seed=1)
    store, oracle = RowStore(group, threads=threads), RowOracle(group)
    store.pull(pool, create=Create.YES)
    oracle.pull(pool, create=Create.YES)
    store.close()
    store.close()
    gradients = np.ones((len(pool), 3), np.float32)
    assert store.push(pool, gradients) == oracle.push(pool, gradients)
    assert_same_rows(store, oracle)


def test_memory_follows_the_rows() -> None:
    store, pool = RowStore(group_of(dim=16)), key_pool(20_000, seed=1)
    empty = store.memory().total_bytes
    store.pull(pool, create=Create.YES)
    memory = store.memory()
    assert memory.row_bytes == 4 * 17 * len(pool)
    assert memory.index_bytes <= 20 * len(pool)
    assert memory.total_bytes > empty


def test_a_scan_gives_large_shards_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_ROWS_AT_ONCE", 7)
    store, pool = RowStore(group_of()), key_pool(900, seed=1)
    store.pull(pool, create=Create.YES)
    parts = [len(keys) for keys, _ in store.scan()]
    assert max(parts) == 7
    assert sum(parts) == len(pool)
    assert everything(store).keys() == set(pairs(pool))
