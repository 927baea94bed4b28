"""Reading a snapshot out, and one key of it: what the last file of the chain says, deletions included."""

from __future__ import annotations

import pytest

from hetero.checkpoint.manifest import FileKind
from hetero.checkpoint.scan import find_row, scan_rows
from hetero.checkpoint.snapshot import Snapshot
from tests.support.row_oracle import pairs
from tests.support.snapshots import JOB
from tests.unit.checkpoint.test_deltas import Servers


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Servers:
    """Servers with a base, and two deltas on it one upon the other."""
    servers = Servers(tmp_path_factory.mktemp("chain"), seed=4)
    servers.change()
    base = servers.take()
    servers.take(servers.take(base.name).name)
    return servers


def chain_end(servers: Servers) -> tuple[str, Snapshot]:
    name = list(servers.taken)[-1]
    return name, Snapshot.open(servers.folder / name)


@pytest.mark.parametrize("part_bytes", [1 << 30, 3000])
def test_a_scan_of_a_chain_holds_what_the_servers_held_at_the_cut(servers: Servers, part_bytes: int) -> None:
    for name, taken in servers.taken.items():
        found: list[dict[tuple[int, int], bytes]] = [{} for _ in JOB.groups]
        for part in scan_rows(Snapshot.open(servers.folder / name), JOB, part_bytes=part_bytes):
            for identity, row in zip(pairs(part.keys), part.rows, strict=True):
                assert identity not in found[part.group]
                found[part.group][identity] = row.tobytes()
        assert found == [{identity: row.tobytes() for identity, row in rows.items()} for rows in taken]


def test_a_key_is_told_by_the_newest_file_that_mentions_it(servers: Servers) -> None:
    name, snapshot = chain_end(servers)
    told: dict[str, int] = {}
    for rows in servers.taken[name]:
        for (table, key), row in rows.items():
            found = find_row(snapshot, JOB, table=table, key=key)
            assert found.row is not None
            assert found.row.rows[0].tobytes() == row.tobytes()
            assert found.file is not None
            told[found.snapshot] = told.get(found.snapshot, 0) + 1
    assert len(told) == 3, "rows of the base and of both deltas"


def test_a_deleted_key_is_told_apart_from_one_that_never_was(servers: Servers) -> None:
    name, snapshot = chain_end(servers)
    assert snapshot.manifest.of_kind(FileKind.TOMBSTONES)
    first = next(iter(servers.taken))
    gone = [
        identity
        for before, after in zip(servers.taken[first], servers.taken[name], strict=True)
        for identity in before.keys() - after.keys()
    ]
    assert gone
    for table, key in gone:
        found = find_row(snapshot, JOB, table=table, key=key)
        assert (found.row, found.deleted) == (None, True)
        assert found.file is not None
        assert found.file.endswith("deleted.parquet")
    never = find_row(snapshot, JOB, table=0, key=(1 << 63) + 12345)
    assert (never.row, never.deleted, never.file) == (None, False, None)
