"""Owners of rows and the stable partition by owner, against plain numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.mix import mix64_reference
from hetero.kernels.partition import owners_kernel, partition_kernel


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 200), st.sampled_from([1, 2, 5]), st.sampled_from([1, 4, 12]), st.integers(0, 2**32 - 1))
def test_rows_go_to_the_owner_of_their_bucket_in_their_own_order(
    rows: int, servers: int, log_buckets: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    seeds = random.integers(0, 2**64, 3, dtype=np.uint64)
    tables = random.integers(0, 3, rows).astype(np.uint16)
    keys = random.integers(0, 2**64, rows, dtype=np.uint64)
    owner_of = random.integers(0, servers, 1 << log_buckets).astype(np.int32)

    owners = np.empty(rows, np.int32)
    owners_kernel(tables, keys, seeds, np.uint64(64 - log_buckets), owner_of, owners)
    buckets = mix64_reference(keys ^ seeds[tables]) >> np.uint64(64 - log_buckets)
    np.testing.assert_array_equal(owners, owner_of[buckets.astype(np.int64)])

    ends = np.cumsum(np.bincount(owners, minlength=servers))
    starts = np.concatenate([[0], ends[:-1]])
    positions, out_tables, out_keys = np.empty(rows, np.int32), np.empty(rows, np.uint16), np.empty(rows, np.uint64)
    partition_kernel(tables, keys, owners, starts, positions, out_tables, out_keys)
    np.testing.assert_array_equal(positions, np.argsort(owners, kind="stable"))
    np.testing.assert_array_equal(out_tables, tables[positions])
    np.testing.assert_array_equal(out_keys, keys[positions])
    np.testing.assert_array_equal(starts, ends)
