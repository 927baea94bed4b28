"""Rows on disk: 1 server's rows load into 3 and theirs into 2, bit for bit, and what is not whole is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from hetero.checkpoint import parquet_rows
from hetero.checkpoint import rows as rows_module
from hetero.checkpoint.manifest import MANIFEST
from hetero.checkpoint.rows import read_rows
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft
from hetero.checkpoint.tensors import read_module, write_module
from hetero.embedding.answers import Create
from hetero.embedding.store import RowStore
from hetero.errors import DataError
from hetero.keys.routing import Router, initial_owners
from hetero.records import GroupSpec, KeySet, RowOptimizer, RowOptimizerSpec, TableSpec
from tests.support.row_client import some_gradients, some_keys
from tests.support.row_updates import assert_same_bits
from tests.support.snapshots import JOB, assert_equal, load, new_stores, row_files, save, trained


def test_rows_go_from_one_server_to_three_to_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "MOST_ROWS_AT_ONCE", 50)
    monkeypatch.setattr(parquet_rows, "_FEWEST_ROWS_AT_ONCE", 50)
    monkeypatch.setattr(rows_module, "FILE_BYTES", 1 << 10)
    one = trained(1)
    save(one, tmp_path / "one")
    three, loaded = load(tmp_path / "one", 3)
    assert loaded == sum(store.count() for store in one[0])
    assert_equal(three, one)
    assert_equal(three, trained(3))
    save(three, tmp_path / "three")
    two, _ = load(tmp_path / "three", 2)
    assert_equal(two, one)
    owners = initial_owners(JOB.buckets, 2)
    for server, mine in enumerate(two):
        router = Router(JOB.groups, JOB.buckets, owners)
        for store in mine:
            for keys, _ in store.scan():
                assert len(router.route(keys)[server].keys) == len(keys)


def test_a_file_that_is_full_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are, a loader has two files of bounded size in memory."""
    monkeypatch.setattr(parquet_rows, "MOST_ROWS_AT_ONCE", 10)
    monkeypatch.setattr(parquet_rows, "_FEWEST_ROWS_AT_ONCE", 10)
    monkeypatch.setattr(rows_module, "FILE_BYTES", 1 << 10)
    monkeypatch.setattr(rows_module, "MOST_PARTS", 2)
    one = trained(1)
    entries = row_files(save(one, tmp_path / "model"))
    for group, store in enumerate(one[0]):
        files = [entry for entry in entries if entry.group == group]
        assert sum(entry.rows for entry in files) == store.count()
        assert len({entry.buckets for entry in files}) == 2
        limit = -(-(1 << 10) // (10 + 4 * store.width))
        assert len(files) >= store.count() / limit
        assert all(0 < entry.rows <= max(10, limit) for entry in files)
    names = {entry.file for entry in entries}
    assert len(names) == len(entries)
    assert {f"rows/group-00.server-0000.part-0000{after}.parquet" for after in ("", ".0001")} <= names
    three, loaded = load(tmp_path / "model", 3)
    assert loaded == sum(store.count() for store in one[0])
    assert_equal(three, one)


def test_a_server_reads_only_files_that_hold_buckets_of_its(tmp_path: Path) -> None:
    snapshot = save(trained(2), tmp_path / "model")
    for entry in row_files(snapshot):
        assert entry.buckets == (((0, 2048),) if "server-0000" in entry.file else ((2048, 4096),))
        if "server-0001" in entry.file:
            (tmp_path / "model" / entry.file).unlink()
    for servers, mine in ((2, [0]), (5, [0, 1])):
        owners = initial_owners(JOB.buckets, servers)
        for server in mine:
            assert read_rows(new_stores(), JOB, snapshot, server=server, owners=owners) > 100
        with pytest.raises(DataError, match=r"server-0001\.part-0000\.parquet: is missing"):
            read_rows(new_stores(), JOB, snapshot, server=servers - 1, owners=owners)


@pytest.mark.parametrize("buckets", [1024, 8192])
def test_a_job_with_another_number_of_buckets_loads_the_same_rows(tmp_path: Path, buckets: int) -> None:
    one = trained(1)
    snapshot = save(trained(3), tmp_path / "model")
    job = replace(JOB, buckets=buckets)
    owners = initial_owners(buckets, 4)
    stores = [[RowStore(group, buckets=buckets) for group in job.groups] for _ in range(4)]
    for server, mine in enumerate(stores):
        read_rows(mine, job, snapshot, server=server, owners=owners)
    assert_equal(stores, one)


def test_training_goes_on_from_loaded_rows_as_if_nothing_had_happened(tmp_path: Path) -> None:
    one = trained(1)
    save(one, tmp_path / "model")
    [loaded], _ = load(tmp_path / "model", 1)
    keys = some_keys(seed=1, rows=300)
    gradients = some_gradients(keys, seed=9)
    for index, group in enumerate(keys):
        one[0][index].push(group, gradients[index])
        loaded[index].push(group, gradients[index])
    assert_equal([loaded], one)


def test_any_parquet_reader_opens_the_files(tmp_path: Path) -> None:
    [stores] = trained(1)
    parts = row_files(save([stores], tmp_path / "model"))
    assert [part.file for part in parts] == [
        "rows/group-00.server-0000.part-0000.parquet",
        "rows/group-01.server-0000.part-0000.parquet",
    ]
    for part, store in zip(parts, stores, strict=True):
        table = pq.read_table(tmp_path / "model" / part.file)
        width = store.width
        assert table.schema.names == ["table", "key", "row"]
        assert table.num_rows == part.rows == store.count()
        keys = KeySet(table["table"].to_numpy(), table["key"].to_numpy())
        assert 2**64 - 1 in keys.keys
        rows = np.frombuffer(table["row"].combine_chunks().buffers()[1], "<f4").reshape(-1, width)
        assert_same_bits(rows, store.read_rows(keys).rows)


def test_stores_without_rows_round_trip(tmp_path: Path) -> None:
    save([new_stores()], tmp_path / "model")
    stores, loaded = load(tmp_path / "model", 3)
    assert loaded == 0
    assert [store.count() for mine in stores for store in mine] == [0] * 6


def test_a_file_that_was_changed_or_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model" / row_files(save(trained(1), tmp_path / "model"))[1].file
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (bytes(flipped), whole[:-1], b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"part-0000\.parquet: (was changed or damaged \(XXH64|has \d+ bytes)"):
            load(tmp_path / "model", 1)
    path.write_bytes(whole)
    load(tmp_path / "model", 1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model" / row_files(save(trained(1), tmp_path / "model"))[0].file).unlink()
    with pytest.raises(DataError, match=r"part-0000\.parquet: is missing, the manifest lists it"):
        load(tmp_path / "model", 1)


def test_a_folder_without_a_manifest_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest\.json: no complete model or snapshot is here"):
        load(tmp_path, 1)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"format": 99}', '{"format": 2}', '{"format": 2, "parts": [{}], "groups": []}'],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json: "):
        Snapshot.open(tmp_path)


def other_dim(group: GroupSpec) -> GroupSpec:
    return replace(group, dim=group.dim + 1)


def other_optimizer(group: GroupSpec) -> GroupSpec:
    return replace(group, optimizer=RowOptimizerSpec(kind=RowOptimizer.ADAM))


def other_tables(group: GroupSpec) -> GroupSpec:
    return replace(group, tables=(TableSpec(index=2, name="another", seed=1), *group.tables[1:]))


@pytest.mark.parametrize("change", [other_dim, other_optimizer, other_tables])
def test_the_model_of_another_job_is_refused(tmp_path: Path, change: Callable[[GroupSpec], GroupSpec]) -> None:
    save(trained(1), tmp_path / "model")
    job = replace(JOB, groups=(JOB.groups[0], change(JOB.groups[1])))
    with pytest.raises(DataError, match=r"holds the tables of another job \(group 1 is dim 4 with"):
        load(tmp_path / "model", 1, job)
    with pytest.raises(DataError, match=r"another job \(2 groups of tables, the job has 1\)"):
        load(tmp_path / "model", 1, replace(JOB, groups=JOB.groups[:1]))


class Tower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, width)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.arange(4))


def test_dense_parameters_round_trip_and_are_checked(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tower, other = Tower(2), Tower(2)
    tower.seen += 5
    with SnapshotDraft.begin(tmp_path, name="model", step=0) as draft:
        draft.commit(JOB, files=[write_module(tower, folder=draft.path)], held=(0, 0))
    snapshot = Snapshot.open(tmp_path / "model")
    read_module(other, snapshot)
    for name, value in tower.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    with pytest.raises(DataError, match="does not fit the tower of this job"):
        read_module(Tower(5), snapshot)
    path = tmp_path / "model" / "dense.safetensors"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    with pytest.raises(DataError, match="was changed or damaged"):
        read_module(other, snapshot)
    path.unlink()
    with pytest.raises(DataError, match="is missing, the manifest lists it"):
        read_module(other, snapshot)


def test_scored_rows_are_those_that_were_trained(tmp_path: Path) -> None:
    one = trained(1)
    save(one, tmp_path / "model")
    three, _ = load(tmp_path / "model", 3)
    router = Router(JOB.groups, JOB.buckets, initial_owners(JOB.buckets, 3))
    for index, keys in enumerate(some_keys(seed=1, rows=300)):
        want = one[0][index].pull(keys, create=Create.NO)
        got = np.empty_like(want)
        for server, part in enumerate(router.route(keys)):
            got[part.positions] = three[server][index].pull(part.keys, create=Create.NO)
        assert_same_bits(got, want)
