"""Small snapshots of two groups of tables, written and read as a run does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hetero.checkpoint.manifest import FileEntry, merge_held
from hetero.checkpoint.rows import read_rows, write_rows
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft
from hetero.checkpoint.state import write_state
from hetero.checkpoint.tensors import DENSE, write_tensors
from hetero.embedding.store import RowStore
from hetero.keys.routing import Router, initial_owners
from hetero.records import F32, JobSpec
from tests.support.row_client import contract_job, some_gradients, some_keys
from tests.support.row_oracle import pairs
from tests.support.row_updates import assert_same_bits

JOB = contract_job(servers=1)
Stores = list[RowStore]


def new_stores(job: JobSpec = JOB) -> Stores:
    return [RowStore(group) for group in job.groups]


def trained(servers: int, *, rows: int = 200) -> list[Stores]:
    """Stores of each server after a few steps; what a row holds does not depend on the number of servers."""
    stores = [new_stores() for _ in range(servers)]
    router = Router(JOB.groups, JOB.buckets, initial_owners(JOB.buckets, servers))
    for step in range(3):
        keys = some_keys(seed=step, rows=rows)
        gradients = some_gradients(keys, seed=step)
        for index, group in enumerate(keys):
            for server, part in enumerate(router.route(group)):
                stores[server][index].push(part.keys, gradients[index][part.positions])
    return stores


def write_all(stores: Sequence[Stores], draft: SnapshotDraft, job: JobSpec = JOB) -> Snapshot:
    """Rows of every server, a tensor and a state, committed."""
    owners = initial_owners(job.buckets, len(stores))
    rows = [
        write_rows(mine, job, folder=draft.path, server=server, owners=owners) for server, mine in enumerate(stores)
    ]
    files: list[FileEntry] = [entry for own in rows for entry in own.files]
    files.append(write_tensors({"weight": torch.arange(5.0)}, folder=draft.path, name=DENSE))
    files.append(write_state({"step": 3, "loss": 0.1}, folder=draft.path))
    return draft.commit(job, files=files, held=merge_held([own.held for own in rows]))


def save(stores: Sequence[Stores], folder: Path, job: JobSpec = JOB, *, step: int = 3) -> Snapshot:
    """A whole snapshot at `folder`."""
    with SnapshotDraft.begin(folder.parent, name=folder.name, step=step) as draft:
        return write_all(stores, draft, job)


def load(folder: Path, servers: int, job: JobSpec = JOB) -> tuple[list[Stores], int]:
    """New stores with a snapshot's rows, and how many those are."""
    stores = [new_stores(job) for _ in range(servers)]
    owners, snapshot = initial_owners(job.buckets, servers), Snapshot.open(folder)
    loaded = sum(read_rows(mine, job, snapshot, server=server, owners=owners) for server, mine in enumerate(stores))
    return stores, loaded


def row_files(snapshot: Snapshot) -> list[FileEntry]:
    return [entry for entry in snapshot.manifest.files if entry.group is not None]


def contents(stores: Sequence[Stores], group: int) -> dict[tuple[int, int], F32]:
    """Rows by identity; every row lies on one server."""
    held: dict[tuple[int, int], F32] = {}
    for mine in stores:
        for keys, rows in mine[group].scan():
            for identity, row in zip(pairs(keys), rows, strict=True):
                assert identity not in held
                held[identity] = row
    return held


def assert_equal(stores: Sequence[Stores], wanted: Sequence[Stores], *, at_least: int = 200) -> None:
    """The same rows with the same bits, whatever the servers."""
    for group in range(len(JOB.groups)):
        got, want = contents(stores, group), contents(wanted, group)
        assert got.keys() == want.keys()
        assert len(want) > at_least
        assert_same_bits(np.array([got[identity] for identity in want]), np.array(list(want.values())))
