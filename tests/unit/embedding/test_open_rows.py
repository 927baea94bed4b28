"""A server's stores by its job: budgets over groups, directories of their own, what killed servers left."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hetero.embedding.open_rows import budget_parts, open_rows
from hetero.embedding.store import RowStore
from hetero.embedding.tier_budget import budget_for
from hetero.embedding.tiered import TieredStore
from hetero.errors import CapacityError, UserError
from hetero.records import StorageSpec
from tests.support.jobs import data_spec, small_job
from tests.support.tiered_jobs import tiered

JOB = small_job(data_spec(Path("none")))


def test_without_budgets_rows_are_in_memory_alone() -> None:
    assert all(isinstance(store, RowStore) for store in open_rows(JOB))


def test_every_group_has_a_directory_of_its_own_and_takes_it_along(tmp_path: Path) -> None:
    stores = open_rows(tiered(JOB, tmp_path))
    assert all(isinstance(store, TieredStore) for store in stores)
    assert len(list((tmp_path / "ssd").iterdir())) == len(JOB.groups)
    for store in stores:
        store.close()
    assert list((tmp_path / "ssd").iterdir()) == []


def test_a_budget_is_split_by_the_bytes_of_equally_many_rows() -> None:
    parts = budget_parts(JOB.groups, 100 << 20)
    assert sum(parts) <= 100 << 20
    assert sum(parts) >= (100 << 20) - 2
    wide, deep = (part - (2 << 20) for part in parts)
    # 2 tables of 3 floats against 3 tables of 5, each row with 20.5 bytes beside it
    assert deep / wide == pytest.approx(3 * (20 + 20.5) / (2 * (12 + 20.5)), rel=1e-4)


def test_a_budget_for_so_many_rows_holds_them(tmp_path: Path) -> None:
    group = JOB.groups[1]
    memory = budget_for(group, rows=5000, ssd_rows=10_000, leased_rows=1000, ssd_bytes=1 << 28)
    storage = StorageSpec(memory_bytes=memory, directories=(str(tmp_path),), ssd_bytes=1 << 28)
    (store,) = open_rows(replace(JOB, groups=(group,), storage=storage))
    assert isinstance(store, TieredStore)
    # 10,000 rows on SSD and 1000 leased ones are still to come: 140,000 bytes, and pages begun; 40.5 a row.
    assert 5000 <= store.tiers.capacity() <= 5000 + (140_000 + 64 * 256) / 40.5
    store.close()


def test_what_a_killed_server_left_is_deleted_and_what_is_in_use_stays(tmp_path: Path) -> None:
    old, used, young = (tmp_path / "ssd" / f"hetero-rows-{name}" for name in ("old", "used", "young"))
    for folder in (old, used, young):
        folder.mkdir(parents=True)
        (folder / "lock").touch()
        (folder / "segment-0000000000.rows").touch()
    for folder in (old, used):
        os.utime(folder, (0, 0))
    lock = os.open(used / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for store in open_rows(tiered(JOB, tmp_path)):
        store.close()
    assert not old.exists()
    assert used.exists()
    assert young.exists()
    os.close(lock)


def test_directories_and_budgets_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "ssd").touch()
    with pytest.raises(UserError, match=r"storage.directories: .*ssd cannot be used"):
        open_rows(tiered(JOB, tmp_path))
    small = StorageSpec(memory_bytes=1 << 20, directories=(str(tmp_path / "other"),), ssd_bytes=1 << 28)
    with pytest.raises(CapacityError, match=r"raise storage\.memory_bytes"):
        open_rows(replace(JOB, storage=small))
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.slow
def test_the_process_grows_by_the_budget_and_a_tenth_at_most(tmp_path: Path) -> None:
    """Twice as many rows as it holds go through it."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.memory_watch", str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    told = json.loads(ended.stdout)
    assert told["memory_rows"] + told["ssd_rows"] == 1_200_000
    assert told["ssd_rows"] > told["memory_rows"]
    assert 0.5 * told["budget"] <= told["grown"] <= 1.1 * told["budget"]
