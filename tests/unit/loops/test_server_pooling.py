"""Lists pooled on servers give the numbers of lists pooled on towers, and move less where lists are long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.exchange.server_pooling import can_be_pooled, parts_of_bags, pooled, pooled_groups
from hetero.kernels.pooling import pool_backward, pool_forward
from hetero.keys.routing import Router, initial_owners
from hetero.records import Bags, JobSpec, KeySet, LookupSpec, Pooling, RoleSpec
from tests.support.jobs import DEEP, WIDE, data_spec, small_job, write_data
from tests.support.thread_towers import train_towers

STEPS = 12


def job_of(folder: Path, *, servers: int, towers: int = 1) -> JobSpec:
    """Without the sequence, which stays on towers; a list in the wide group too, summed."""
    path = folder / "data.parquet"
    data = data_spec(path if path.exists() else write_data(path, rows=STEPS * 64, seed=5))
    job = small_job(data, servers=RoleSpec(count=servers), towers=RoleSpec(count=towers), window=0)
    lookups = [lookup for lookup in job.lookups if lookup.pooling is not Pooling.NONE]
    tags = LookupSpec(name="tags@wide", feature=2, group=WIDE, table=1, dim=1, pooling=Pooling.SUM)
    return replace(job, lookups=(*lookups[:2], tags, *lookups[2:]))


@pytest.mark.parametrize("towers", [1, 2])
def test_one_server_gives_the_same_bits(tmp_path: Path, towers: int) -> None:
    job = job_of(tmp_path, servers=1, towers=towers)
    plain, on_server = train_towers(job), train_towers(replace(job, pool_on_servers=True))
    for ours, theirs in zip(on_server.logs, plain.logs, strict=True):
        np.testing.assert_array_equal(ours.losses, theirs.losses)


@pytest.mark.parametrize("towers", [1, 2])
def test_several_servers_give_the_same_numbers(tmp_path: Path, towers: int) -> None:
    job = job_of(tmp_path, servers=3, towers=towers)
    plain, on_server = train_towers(job), train_towers(replace(job, pool_on_servers=True))
    assert len(plain.logs[0].losses) == STEPS
    for ours, theirs in zip(on_server.logs, plain.logs, strict=True):
        np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-6)
    for ours_tower, theirs_tower in zip(on_server.towers, plain.towers, strict=True):
        for mine, other in zip(ours_tower.module.parameters(), theirs_tower.module.parameters(), strict=True):
            np.testing.assert_allclose(mine.detach(), other.detach(), rtol=1e-4, atol=1e-6)


def test_groups_that_towers_must_see_stay_with_them(tmp_path: Path) -> None:
    whole = small_job(data_spec(write_data(tmp_path / "data.parquet", rows=64, seed=5)), pool_on_servers=True)
    assert pooled_groups(whole) == (False, False)  # the wide one has no list, the deep one has a sequence
    assert pooled_groups(replace(job_of(tmp_path, servers=1), pool_on_servers=True)) == (True, True)
    assert pooled_groups(job_of(tmp_path, servers=1)) == (False, False)
    assert not can_be_pooled(whole, DEEP)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), servers=st.integers(1, 5), unique=st.integers(1, 40), weighted=st.booleans())
def test_sums_of_parts_are_the_sums_of_all(data: st.DataObject, servers: int, unique: int, weighted: bool) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=20))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    local = random.integers(0, unique, sum(lengths)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    weights = random.uniform(0.5, 2, len(local)).astype(np.float32) if weighted else None
    bags = Bags(local, offsets, weights)
    job = small_job(data_spec(Path("none")))
    keys = KeySet(np.zeros(unique, np.uint16), random.choice(10_000, unique, replace=False).astype(np.uint64))
    routed = Router(job.groups, 64, initial_owners(64, servers)).route(keys)
    parts = [part for (part,) in parts_of_bags([bags], [routed], servers=servers)]
    rows = random.normal(size=(unique, 3)).astype(np.float32)
    sums = np.zeros(1, np.bool_)
    by_server = [pooled((rows[own.positions],), (part,))[0] for own, part in zip(routed, parts, strict=True)]
    np.testing.assert_allclose(np.sum(by_server, axis=0), pool_forward(rows, bags, mean=sums), rtol=1e-5, atol=1e-6)
    gradients = random.normal(size=(len(lengths), 3)).astype(np.float32)
    whole = pool_backward(gradients, bags, mean=sums, unique=unique)
    for own, part in zip(routed, parts, strict=True):
        assert part is not None
        found = pool_backward(gradients, part, mean=sums, unique=len(own.keys))
        np.testing.assert_array_equal(found, whole[own.positions])


def test_long_lists_move_less(tmp_path: Path) -> None:
    """Unlike keys in lists of many: rows of all of them, or one sum."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    table = {
        "user": pa.array([f"u{n}" for n in range(128)]),
        "item": pa.array(random.integers(0, 9, 128)),
        "tags": pa.array([random.integers(0, 1 << 40, 60).tolist() for _ in range(128)], pa.list_(pa.int64())),
        "history": pa.array([[1]] * 128, pa.list_(pa.int64())),
        **{name: pa.array(random.normal(size=128)) for name in ("x", "y")},
        "label": pa.array(random.integers(0, 2, 128).astype(np.float32)),
    }
    pq.write_table(pa.table(table), tmp_path / "data.parquet")
    job = replace(job_of(tmp_path, servers=2), train=data_spec(tmp_path / "data.parquet", weights=False))
    moved = [train_towers(replace(job, pool_on_servers=on)).traffic[0].pulled for on in (False, True)]
    assert moved[1] < 0.8 * moved[0]
