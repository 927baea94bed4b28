"""Deltas: base and deltas load to what one snapshot of everything holds; retention leaves every base that is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hetero.checkpoint.manifest import FileKind, SnapshotKind, merge_held
from hetero.checkpoint.parquet_rows import RowFiles
from hetero.checkpoint.retention import retain
from hetero.checkpoint.search import Damage, latest_good, verify
from hetero.checkpoint.server_rows import ServerSnapshots
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft, list_snapshots, snapshot_name
from hetero.embedding.answers import Create
from hetero.embedding.cut import RowChunk
from hetero.embedding.store import RowStore
from hetero.errors import DataError, ProtocolError
from hetero.keys.routing import Router, initial_owners
from hetero.records import F32
from tests.support.row_client import some_keys
from tests.support.row_updates import assert_same_bits
from tests.support.snapshots import JOB, Stores, contents, load, new_stores, save

SERVERS = 2
Rows = list[dict[tuple[int, int], F32]]


class Servers:
    """Two servers with rows that change, and snapshots of them in `folder`."""

    def __init__(self, folder: Path, *, seed: int = 0) -> None:
        self.folder = folder
        self.random = np.random.default_rng(seed)
        self.owners = initial_owners(JOB.buckets, SERVERS)
        self.stores: list[Stores] = [new_stores() for _ in range(SERVERS)]
        self.snapshots = [ServerSnapshots(mine, JOB, server=number) for number, mine in enumerate(self.stores)]
        self.taken: dict[str, Rows] = {}
        self.step = 0

    def change(self, rows: int = 60) -> None:
        """Push some rows, make some, delete some."""
        router = Router(JOB.groups, JOB.buckets, self.owners)
        for group, pool in enumerate(some_keys(seed=1, rows=200)):
            dim = JOB.groups[group].dim
            for what in ("push", "create", "delete"):
                picked = self.random.choice(len(pool), rows, replace=False)
                for server, part in enumerate(router.route(pool[picked])):
                    store: RowStore = self.stores[server][group]
                    if what == "push":
                        store.push(part.keys, self.random.normal(size=(len(part.keys), dim)).astype(np.float32))
                    elif what == "create":
                        store.pull(part.keys, create=Create.YES)
                    else:
                        store.delete_rows(part.keys)

    def take(self, base: str | None = None) -> Snapshot:
        """A snapshot; while it is written, rows change on."""
        self.step += 10
        name = snapshot_name(self.step)
        for own in self.snapshots:
            own.cut(name, owners=self.owners, base=base)
        self.taken[name] = [dict(contents(self.stores, group)) for group in range(len(JOB.groups))]
        self.change(rows=20)
        with SnapshotDraft.begin(self.folder, name=name, step=self.step) as draft:
            rows = [own.write(folder=draft.path) for own in self.snapshots]
            files = [entry for own in rows for entry in own.files]
            on = None if base is None else Snapshot.open(self.folder / base)
            return draft.commit(JOB, files=files, held=merge_held([own.held for own in rows]), base=on)

    def bases(self) -> list[str]:
        return [name for name in self.snapshots[0].bases() if all(name in own.bases() for own in self.snapshots)]

    def assert_loads(self, name: str, *, servers: int) -> None:
        stores, loaded = load(self.folder / name, servers)
        assert loaded == sum(Snapshot.open(self.folder / name).manifest.held)
        for group, want in enumerate(self.taken[name]):
            got = contents(stores, group)
            assert got.keys() == want.keys()
            assert_same_bits(np.array([got[identity] for identity in want]), np.array(list(want.values())))


@pytest.mark.parametrize("seed", [0, 1])
def test_base_and_deltas_load_to_what_there_was(tmp_path: Path, seed: int) -> None:
    servers = Servers(tmp_path, seed=seed)
    servers.change()
    kinds = []
    for number in range(7):
        choices = [*servers.bases(), *([] if number % 4 else [None])]
        base = choices[servers.random.integers(len(choices))]
        taken = servers.take(base)
        kinds.append(taken.manifest.kind)
        assert (taken.manifest.kind is SnapshotKind.DELTA) == (base is not None)
        assert verify(taken.path, job=JOB) == ()
        servers.change(rows=10)
    assert kinds.count(SnapshotKind.DELTA) >= 4
    for name in servers.taken:
        servers.assert_loads(name, servers=1 + int(servers.random.integers(3)))


def test_a_delta_is_small_and_names_what_was_deleted(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    servers.change(rows=200)
    base = servers.take()
    delta = servers.take(base.name)
    assert [ref.name for ref in delta.manifest.bases] == [base.name]
    rows = sum(entry.rows for entry in delta.manifest.of_kind(FileKind.ROWS))
    assert 0 < rows < sum(entry.rows for entry in base.manifest.of_kind(FileKind.ROWS)) / 2
    assert sum(entry.rows for entry in delta.manifest.of_kind(FileKind.TOMBSTONES)) > 0
    assert not base.manifest.of_kind(FileKind.TOMBSTONES)


def test_training_goes_on_from_a_loaded_snapshot_with_deltas_on_it(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    servers.change()
    first = servers.take()
    again = Servers(tmp_path, seed=9)
    again.step = servers.step
    for own in again.snapshots:
        assert own.bases() == ()
        own.load(first, owners=again.owners)
        assert own.bases() == (first.name,)
    again.change(rows=10)
    second = again.take(first.name)
    assert sum(entry.rows for entry in second.manifest.of_kind(FileKind.ROWS)) < 100
    again.assert_loads(second.name, servers=3)


def test_a_base_that_is_missing_damaged_or_another_is_noticed(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    servers.change()
    base = servers.take()
    delta = servers.take(base.name)
    shutil.copytree(base.path, tmp_path / "kept")
    [rows] = {entry.file for entry in base.manifest.of_kind(FileKind.ROWS) if entry.group == 1 and "0001" in entry.file}

    def findings() -> set[Damage]:
        assert latest_good(tmp_path).good is None
        with pytest.raises(DataError):
            load(tmp_path / delta.name, 1)
        return {finding.damage for finding in verify(delta.path)}

    Path(base.path, rows).write_bytes(b"")
    assert findings() == {Damage.BASE}
    shutil.rmtree(base.path)
    assert findings() == {Damage.BASE}
    save(servers.stores, Path(base.path), step=base.manifest.step)
    [finding] = verify(delta.path)
    assert "was written anew since" in finding.message
    with pytest.raises(DataError, match="is not the snapshot that step-0000000020 is based on"):
        load(tmp_path / delta.name, 1)
    shutil.rmtree(base.path)
    (tmp_path / "kept").rename(base.path)
    assert verify(delta.path) == ()


def test_the_last_n_stay_with_their_bases(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    servers.change()
    names = [servers.take().name]
    for base in (None, 1, 2, 1):
        names.append(servers.take(None if base is None else names[base]).name)
    assert retain(tmp_path, keep=9) == ()
    assert retain(tmp_path, keep=3) == (names[0],)
    assert retain(tmp_path, keep=1) == (names[3], names[2])
    assert list_snapshots(tmp_path) == (names[1], names[4])
    servers.assert_loads(names[4], servers=2)
    names.append(servers.take().name)
    assert retain(tmp_path, keep=1) == (names[4], names[1])
    servers.assert_loads(names[5], servers=1)
    with pytest.raises(ValueError, match="at least 1 stays"):
        retain(tmp_path, keep=0)


def test_damaged_snapshots_do_not_push_good_ones_out(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save([new_stores()], tmp_path / snapshot_name(step), step=step)
    (tmp_path / snapshot_name(4) / "manifest.json").write_bytes(b"{")
    (tmp_path / snapshot_name(3) / "state.json").unlink()
    (tmp_path / snapshot_name(1) / "state.json").unlink()
    assert retain(tmp_path, keep=1) == (snapshot_name(1),)
    assert list_snapshots(tmp_path) == tuple(map(snapshot_name, (2, 3, 4)))


def test_what_a_server_refuses(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    own = servers.snapshots[0]
    with pytest.raises(ProtocolError, match="asked to write a snapshot before its cut"):
        own.write(folder=str(tmp_path))
    with pytest.raises(ProtocolError, match=r"cannot tell what changed since nothing \(known: none\)"):
        own.cut("one", owners=servers.owners, base="nothing")
    own.cut("one", owners=servers.owners)
    with pytest.raises(ProtocolError, match="cut for two while one is being written"):
        own.cut("two", owners=servers.owners)
    own.drop()
    own.drop()
    own.cut("two", owners=servers.owners)
    own.drop()
    assert own.bases() == ()


def test_a_writer_whose_cut_was_dropped_leaves_the_next_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Servers(tmp_path)
    servers.change()
    own = servers.snapshots[0]
    add = RowFiles.add

    def drop_and_cut_anew(files: RowFiles, chunk: RowChunk) -> None:
        monkeypatch.setattr(RowFiles, "add", add)
        own.drop()
        own.cut("next", owners=servers.owners)
        add(files, chunk)

    own.cut("dropped", owners=servers.owners)
    monkeypatch.setattr(RowFiles, "add", drop_and_cut_anew)
    with pytest.raises(ProtocolError, match="closed before it was read"):
        own.write(folder=str(tmp_path / "dropped"))
    own.write(folder=str(tmp_path / "next"))
    assert own.bases() == ("next",)


def test_a_row_on_a_server_that_does_not_own_it_is_not_written(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    servers.change()
    own = servers.snapshots[0]
    own.cut("one", owners=1 - servers.owners)
    with pytest.raises(ProtocolError, match="does not own its bucket"):
        own.write(folder=str(tmp_path))
    assert [store.memory().kept_bytes for store in servers.stores[0]] == [0, 0]
