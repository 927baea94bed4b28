"""A job whose rows do not fit the memory its servers are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hetero.records import DiskIo, JobSpec, StorageSpec
from tests.support.jobs import data_spec, small_job, write_data

ROWS = 16_000
# Two groups, of which each keeps 0.9 MB of pages and buffers beside its rows.
MEMORY = 3_180_000


def job_of(folder: Path, **changes: object) -> JobSpec:
    """Rows of which most have a user and an item of their own: some 48,000 rows in the tables."""
    path = write_data(folder / "data.parquet", rows=ROWS, seed=1, row_group=1000)
    random = np.random.default_rng(2)
    table = pq.read_table(path)
    users = pa.array([f"u{value}" for value in random.zipf(1.1, ROWS) % 10**6])
    items = pa.array((random.zipf(1.1, ROWS) % 10**6).astype(np.int64))
    table = table.set_column(0, "user", users).set_column(1, "item", items)
    pq.write_table(table, path, row_group_size=1000)
    return small_job(data_spec(path, shuffle=True), batch_size=256, **changes)


def tiered(job: JobSpec, folder: Path) -> JobSpec:
    storage = StorageSpec(memory_bytes=MEMORY, directories=(str(folder / "ssd"),), ssd_bytes=1 << 28, io=DiskIo.CACHED)
    return replace(job, storage=storage)
