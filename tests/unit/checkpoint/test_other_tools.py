"""Files that others read: rows in pyarrow, DuckDB and Polars; snapshots on a filesystem that renames no folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

from hetero.checkpoint import parquet_rows
from hetero.checkpoint.manifest import FileKind, merge_held
from hetero.checkpoint.parquet_rows import RowFiles
from hetero.checkpoint.retention import retain
from hetero.checkpoint.rows import read_rows, write_rows
from hetero.checkpoint.search import Damage, latest_good, verify
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft, list_snapshots, snapshot_name
from hetero.checkpoint.state import read_state, write_state
from hetero.checkpoint.storage import Storage
from hetero.embedding.cut import RowChunk
from hetero.keys.routing import initial_owners
from hetero.records import F32, KeySet
from tests.support.row_updates import assert_same_bits
from tests.support.snapshots import JOB, assert_equal, contents, new_stores, save, trained

GROUP = 1
WIDTH = 5


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return save(trained(2), tmp_path_factory.mktemp("run") / "model")


def files_of(snapshot: Snapshot) -> list[str]:
    return [snapshot.file(entry.file) for entry in snapshot.manifest.of_kind(FileKind.ROWS) if entry.group == GROUP]


def assert_those_trained(tables: np.ndarray, keys: np.ndarray, rows: F32) -> None:
    want = contents(trained(2), GROUP)
    identities = list(zip(tables.tolist(), keys.tolist(), strict=True))
    assert len(identities) == len(want)
    assert_same_bits(rows, np.array([want[identity] for identity in identities]))


def test_pyarrow(snapshot: Snapshot) -> None:
    table = dataset.dataset(files_of(snapshot)).to_table()
    assert table.schema.field("row").type == pa.binary(4 * WIDTH)
    assert table.schema.metadata[b"row"] == b"5 little-endian float32: weights, then the optimizer's state"
    rows = np.frombuffer(table["row"].combine_chunks().buffers()[1], "<f4").reshape(-1, WIDTH)
    assert_those_trained(table["table"].to_numpy(), table["key"].to_numpy(), rows)


def test_duckdb(snapshot: Snapshot) -> None:
    import duckdb

    found = duckdb.execute(f'select "table", key, row from read_parquet({files_of(snapshot)})').fetchnumpy()
    rows = np.frombuffer(b"".join(bytes(row) for row in found["row"]), "<f4").reshape(-1, WIDTH)
    assert_those_trained(found["table"], found["key"], rows)
    [(count, largest)] = duckdb.execute(
        f'select count(*), max(key) from read_parquet({files_of(snapshot)}) where "table" = 4'
    ).fetchall()
    assert (count, largest) == (sum(identity[0] == 4 for identity in contents(trained(2), GROUP)), 2**64 - 1)


def test_polars(snapshot: Snapshot) -> None:
    import polars

    frame = polars.read_parquet(files_of(snapshot))
    rows = np.frombuffer(b"".join(frame["row"].to_list()), "<f4").reshape(-1, WIDTH)
    assert_those_trained(frame["table"].to_numpy(), frame["key"].to_numpy(), rows)


def test_statistics_are_columns_of_their_own(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    dtypes: dict[str, np.dtype[Any]] = {"show": np.dtype(np.float32), "last_seen": np.dtype(np.int64)}
    keys = KeySet(np.ones(100, np.uint16), np.arange(100, dtype=np.uint64))
    statistics: dict[str, np.ndarray[Any, Any]] = {
        "show": np.linspace(0, 1, 100, dtype=np.float32),
        "last_seen": np.arange(100),
    }
    with storage.writing("rows.parquet") as sink:
        seeds, part_of = np.zeros(2, np.uint64), np.zeros(16, np.int32)
        with RowFiles(
            lambda *_: sink,
            parts=1,
            width=2,
            statistics=dtypes,
            seeds=seeds,
            part_of=part_of,
            file_bytes=1 << 20,
        ) as files:
            files.add(RowChunk(keys, np.ones((100, 2), np.float32), statistics))
    [chunk] = parquet_rows.chunks_of(storage.read("rows.parquet"))
    assert list(chunk.statistics) == ["show", "last_seen"]
    for name, values in statistics.items():
        np.testing.assert_array_equal(chunk.statistics[name], values)
        assert chunk.statistics[name].dtype == dtypes[name]
    np.testing.assert_array_equal(chunk.keys.keys, keys.keys)


def test_snapshots_on_a_filesystem_without_renames() -> None:
    """Arrow's in-memory filesystem: a snapshot is there once its manifest is, and not before."""
    folder = f"mock://bucket-{os.getpid()}/run/snapshots"
    [stores] = one = trained(1)
    owners = initial_owners(JOB.buckets, 1)

    def write(draft: SnapshotDraft, step: int) -> Snapshot:
        written = write_rows(stores, JOB, folder=draft.path, server=0, owners=owners)
        state = write_state({"step": step}, folder=draft.path)
        return draft.commit(JOB, files=[*written.files, state], held=merge_held([written.held]))

    for step in (1, 2, 2):
        with SnapshotDraft.begin(folder, name=snapshot_name(step), step=step) as draft:
            assert latest_good(folder).good is None or step == 2
            write(draft, step)
    found = latest_good(folder, job=JOB)
    assert found.good is not None
    assert (found.good.name, found.findings) == (snapshot_name(2), ())
    loaded = new_stores()
    read_rows(loaded, JOB, found.good, server=0, owners=owners)
    assert_equal([loaded], one)
    assert read_state(found.good) == {"step": 2}
    entry = found.good.manifest.files[0]
    Storage(found.good.path).write(entry.file, b"?")
    assert [finding.damage for finding in verify(found.good.path)] == [Damage.SIZE]
    with SnapshotDraft.begin(folder, name=snapshot_name(3), step=3) as draft:
        write_state({}, folder=draft.path)
    assert list_snapshots(folder) == (snapshot_name(1), snapshot_name(2))
    with SnapshotDraft.begin(folder, name=snapshot_name(3), step=3) as draft:
        write(draft, 3)
    assert retain(folder, keep=1) == (snapshot_name(2), snapshot_name(1))
    assert latest_good(folder, job=JOB).good is not None
