"""Routing: every row to exactly one server, by buckets that split in two when their number doubles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import JobError
from hetero.kernels.mix import mix64_reference
from hetero.keys.routing import Router, Routing, bucket_of, initial_owners, mixed_seeds, writable
from hetero.records import GroupSpec, InitSpec, KeySet, RowOptimizerSpec, TableSpec
from tests.support.crafted_keys import keys_with_hashes

EXTREMES = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
SEEDS = {0: 5, 1: 2**64 - 1, 3: 0}


def group(tables: list[int]) -> GroupSpec:
    return GroupSpec(
        dim=1,
        optimizer=RowOptimizerSpec(),
        init=InitSpec(),
        tables=tuple(TableSpec(index=index, name=f"t{index}", seed=SEEDS[index]) for index in tables),
    )


GROUPS = (group([3]), group([0, 1]))


def some_keys(rows: int, *, seed: int = 0) -> KeySet:
    random = np.random.default_rng(seed)
    keys = np.concatenate([np.array(EXTREMES, np.uint64), random.integers(0, 2**64, rows, dtype=np.uint64)])
    return KeySet(random.choice([0, 1, 3], len(keys)).astype(np.uint16), keys)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.sampled_from([16, 64, 4096]), st.integers(0, 300), st.integers(0, 2**32 - 1))
def test_every_row_goes_to_the_owner_of_its_bucket_in_order(servers: int, buckets: int, rows: int, seed: int) -> None:
    keys, owners = some_keys(rows, seed=seed), initial_owners(buckets, servers)
    routed = Router(GROUPS, buckets, owners).route(keys)
    assert len(routed) == servers
    where = owners[bucket_of(keys, seeds=mixed_seeds(GROUPS), buckets=buckets)]
    for server, part in enumerate(routed):
        np.testing.assert_array_equal(part.positions, np.flatnonzero(where == server))
        np.testing.assert_array_equal(part.keys.keys, keys.keys[part.positions])
        np.testing.assert_array_equal(part.keys.tables, keys.tables[part.positions])
        assert part.positions.dtype == np.int32


@pytest.mark.parametrize("servers", [1, 3])
def test_no_rows_at_all(servers: int) -> None:
    nothing = KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64))
    routed = Router(GROUPS, 64, initial_owners(64, servers)).route(nothing)
    assert [len(part.keys) for part in routed] == [0] * servers


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_doubling_the_buckets_splits_each_in_two(log_buckets: int, seed: int) -> None:
    keys, seeds, buckets = some_keys(500, seed=seed), mixed_seeds(GROUPS), 1 << log_buckets
    coarse = bucket_of(keys, seeds=seeds, buckets=buckets)
    assert ((coarse >= 0) & (coarse < buckets)).all()
    np.testing.assert_array_equal(bucket_of(keys, seeds=seeds, buckets=2 * buckets) // 2, coarse)


@pytest.mark.parametrize("servers", [2, 3, 7])
def test_doubling_the_buckets_moves_no_row_when_halves_stay_together(servers: int) -> None:
    keys, owners = some_keys(2000), initial_owners(64, servers)
    coarse = Router(GROUPS, 64, owners).route(keys)
    fine = Router(GROUPS, 128, np.repeat(owners, 2)).route(keys)
    for before, after in zip(coarse, fine, strict=True):
        np.testing.assert_array_equal(before.positions, after.positions)


def test_a_bucket_is_the_top_bits_of_the_hash() -> None:
    hashes = [0, 2**64 - 1, 1 << 63, (7 << 52) + 12345]
    keys = KeySet(np.zeros(4, np.uint16), keys_with_hashes(hashes, seed=SEEDS[0]))
    assert bucket_of(keys, seeds=mixed_seeds(GROUPS), buckets=4096).tolist() == [0, 4095, 2048, 7]
    assert bucket_of(keys, seeds=mixed_seeds(GROUPS), buckets=2).tolist() == [0, 1, 1, 0]


def test_rows_spread_evenly_over_servers() -> None:
    keys = KeySet(np.zeros(30_000, np.uint16), np.arange(30_000, dtype=np.uint64))
    counts = [len(part.keys) for part in Router(GROUPS, 4096, initial_owners(4096, 3)).route(keys)]
    assert max(counts) - min(counts) < 600


def test_the_same_key_of_two_tables_is_routed_apart() -> None:
    keys = np.arange(2000, dtype=np.uint64)
    seeds = mixed_seeds(GROUPS)
    first = bucket_of(KeySet(np.zeros(2000, np.uint16), keys), seeds=seeds, buckets=4096)
    second = bucket_of(KeySet(np.ones(2000, np.uint16), keys), seeds=seeds, buckets=4096)
    assert (first == second).mean() < 0.01


def test_seeds_stand_by_table_index_over_all_groups() -> None:
    want = mix64_reference(np.array([SEEDS[0], SEEDS[1], 0, SEEDS[3]], np.uint64))
    np.testing.assert_array_equal(mixed_seeds(GROUPS), want)
    assert len(mixed_seeds(())) == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(1, 300))
def test_owners_are_runs_of_nearly_equal_length(log_buckets: int, servers: int) -> None:
    buckets = 1 << log_buckets
    if servers > buckets:
        with pytest.raises(JobError, match=rf"{servers} servers for {buckets} buckets"):
            initial_owners(buckets, servers)
        return
    owners = initial_owners(buckets, servers)
    assert owners.dtype == np.int32
    assert (np.diff(owners) >= 0).all()
    counts = np.bincount(owners, minlength=servers)
    assert len(counts) == servers
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("buckets", [0, 1, 3, 12, 4095])
def test_buckets_are_a_power_of_two(buckets: int) -> None:
    with pytest.raises(JobError, match=f"buckets: {buckets} is no power of two"):
        initial_owners(buckets, 1)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_servers_change_balanced_with_every_bucket_owned_once_and_few_moved(
    log_buckets: int, counts: list[int]
) -> None:
    buckets = 1 << log_buckets
    counts = [min(count, buckets) for count in counts]
    routing = Routing.first(buckets=buckets, servers=counts[0])
    for version, servers in enumerate(counts[1:], start=1):
        then = routing.resized(servers)
        assert (then.version, then.servers, then.owners.dtype.name) == (version, servers, "int32")
        held = np.bincount(then.owners, minlength=servers)
        assert held.sum() == buckets  # of every bucket one owner
        assert held.max() - held.min() <= 1
        moved = int((then.owners != routing.owners).sum())
        assert moved == fewest_moves(np.bincount(routing.owners, minlength=servers), servers, buckets)
        np.testing.assert_array_equal(then.owners, routing.resized(servers).owners)
        routing = then


def fewest_moves(held: np.ndarray, servers: int, buckets: int) -> int:
    """Of all ways to say who has one bucket more, the one in which those that stay keep most."""
    base, extra = divmod(buckets, servers)
    one_more_helps = int((held[:servers] > base).sum())
    return buckets - int(np.minimum(held[:servers], base).sum()) - min(one_more_helps, extra)


def test_servers_that_stay_hand_buckets_to_new_ones_only() -> None:
    routing = Routing.first(buckets=64, servers=2).resized(4)
    assert [routing.owners[bucket] for bucket in (0, 15, 16, 31, 32, 47, 48, 63)] == [0, 0, 2, 2, 1, 1, 3, 3]
    assert set(routing.resized(1).owners.tolist()) == {0}


def test_owners_of_another_process_are_taken_as_kernels_take_them() -> None:
    owners = initial_owners(64, 3)
    owners.flags.writeable = False
    own = writable(owners)
    assert own.flags.writeable
    np.testing.assert_array_equal(own, owners)
    Router(GROUPS, 64, owners).route(some_keys(10))


@pytest.mark.parametrize("servers", [0, 65])
def test_servers_are_from_one_to_the_buckets(servers: int) -> None:
    with pytest.raises(JobError, match=rf"{servers} servers for 64 buckets; take 1 to 64"):
        Routing.first(buckets=64, servers=2).resized(servers)
