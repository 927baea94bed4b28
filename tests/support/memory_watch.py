"""Fills a tiered store far beyond its memory, leases and returns rows, and writes out what the process grew by."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from hetero.embedding.answers import Create
from hetero.embedding.open_rows import open_rows
from hetero.embedding.tiered import TieredStore
from hetero.kernels.mix import mix64_reference
from hetero.loops.warm import warm_kernels
from hetero.records import DiskIo, KeySet, StorageSpec
from tests.support.jobs import data_spec, small_job

BUDGET = 64 << 20
ROWS, BATCH = 1_200_000, 10_000


def main(folder: Path) -> None:
    """Writes {"grown": bytes, "budget": bytes, "memory_rows": ..., "ssd_rows": ...}."""
    job = small_job(data_spec(Path("none")))
    storage = StorageSpec(memory_bytes=BUDGET, directories=(str(folder),), ssd_bytes=1 << 31, io=DiskIo.CACHED)
    job = replace(job, groups=(replace(job.groups[1], dim=16),), lookups=(), storage=storage)
    warm_kernels(small_job(data_spec(Path("none")), storage=storage))
    process = psutil.Process()
    before, most = process.memory_info().rss, 0
    (store,) = open_rows(job)
    assert isinstance(store, TieredStore)
    for start in range(0, ROWS, BATCH):
        store.pull(_keys(np.arange(start, start + BATCH)), create=Create.YES)
        most = max(most, process.memory_info().rss)
    random = np.random.default_rng(0)
    for _ in range(20):
        keys = _keys(np.unique((ROWS * random.random(BATCH) ** 3).astype(np.int64)))
        store.give_back(keys, store.lease(keys, holder=1), holder=1)
        most = max(most, process.memory_info().rss)
    use = store.use()
    store.close()
    told = {"grown": most - before, "budget": BUDGET, "memory_rows": use.memory_rows, "ssd_rows": use.ssd.rows}
    sys.stdout.write(json.dumps(told) + "\n")


def _keys(numbers: np.ndarray) -> KeySet:
    return KeySet(np.full(len(numbers), 2, np.uint16), mix64_reference(numbers.astype(np.uint64)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
