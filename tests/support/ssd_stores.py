"""Small stores on SSD for tests: tiny segments, keys that collide, and rows that tell whose they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hetero.embedding.ssd.layout import Layout
from hetero.embedding.ssd.recovery import Recovered, recover
from hetero.embedding.ssd.references import Cut
from hetero.embedding.ssd.rows import SsdRows
from hetero.kernels.mix import mix64_reference
from hetero.records import F32, DiskIo, KeySet
from tests.support.crafted_keys import colliding_hashes, keys_with_hashes

WIDTH = 3
SEEDS = {0: 11, 1: 2**64 - 1, 2: 0}
MIXED = mix64_reference(np.array(list(SEEDS.values()), np.uint64))
SHIFT = np.uint64(52)
# 40 bytes a record: 102 a chunk, 204 a segment of 12 KiB.
LAYOUT = Layout(width=WIDTH, identity=99, chunk_bytes=4096, chunks=2, gap_bytes=256)


def new_store(*folders: Path, layout: Layout = LAYOUT, limit: int = 1 << 30, io: DiskIo = DiskIo.CACHED) -> SsdRows:
    return SsdRows(layout, folders=folders, seeds=MIXED, shift=SHIFT, limit_bytes=limit, io=io, threads=2)


def reopened(
    *folders: Path, layout: Layout = LAYOUT, cut: Cut | None = None, memory: int = 1 << 20
) -> tuple[SsdRows, Recovered]:
    return recover(
        layout,
        folders=folders,
        seeds=MIXED,
        shift=SHIFT,
        limit_bytes=1 << 30,
        cut=cut,
        io=DiskIo.CACHED,
        threads=2,
        memory_bytes=memory,
    )


def hard_keys(easy: int) -> KeySet:
    """Keys that share all the index knows of them, extremes, and easy ones, in all tables."""
    extremes = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    tables, keys = [], []
    for table, seed in SEEDS.items():
        crafted = np.concatenate([extremes, keys_with_hashes(colliding_hashes(6), seed=seed)])
        plain = mix64_reference(np.arange(easy, dtype=np.uint64))
        own = np.unique(np.concatenate([crafted, plain]))
        tables.append(np.full(len(own), table, np.uint16))
        keys.append(own)
    return KeySet(np.concatenate(tables), np.concatenate(keys))


def rows_for(count: int, *, version: int) -> F32:
    """Rows that differ by version and place, NaN and infinity among them; float32 [count, WIDTH]."""
    rows = np.random.default_rng(version).normal(size=(count, WIDTH)).astype(np.float32)
    rows[::7, 0] = np.nan
    rows[::11, 1] = np.inf
    rows[:, 2] = version
    return rows


def part_of(keys: KeySet, picked: np.ndarray) -> KeySet:
    return keys[picked]


def uses_of(keys: KeySet) -> np.ndarray:
    return (keys.keys % np.uint64(251)).astype(np.uint8)
