"""Run the kernels of servers once, on a few invented rows. Nothing here loads torch, but in `async` and `geo`."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import numpy as np

from hetero.checkpoint.server_rows import ServerSnapshots
from hetero.embedding.answers import Create
from hetero.embedding.open_rows import open_rows
from hetero.embedding.policies.rows import PolicyRows
from hetero.embedding.tier_budget import budget_for
from hetero.exchange.messages import (
    DifferencesRequest,
    LeaseRequest,
    PullRequest,
    Purpose,
    PushRequest,
    ReturnRequest,
)
from hetero.exchange.server import RowServer
from hetero.exchange.server_pooling import pooled, unpooled
from hetero.keys.routing import Router, initial_owners
from hetero.loops.warm_keys import ROWS
from hetero.optim.definition import gradient_width
from hetero.records import F32, Bags, DiskIo, JobSpec, KeySet, Mode, RoleSpec, StorageSpec


def warm_server_kernels(job: JobSpec) -> None:
    """What a server of the job runs: calls of towers, a snapshot, rows between memory and files."""
    if job.storage is not None:
        _rows_that_move(job)
        job = replace(job, storage=None)
    job = replace(job, towers=RoleSpec())
    keys = tuple(
        KeySet(np.full(ROWS, group.tables[0].index, np.uint16), np.arange(ROWS, dtype=np.uint64))
        for group in job.groups
    )
    _calls(job, keys)
    _one_snapshot(job, keys)


def _calls(job: JobSpec, keys: tuple[KeySet, ...]) -> None:
    server = RowServer(job)
    router = Router(job.groups, job.buckets, initial_owners(job.buckets, max(2, job.servers.count)))
    for group in keys:
        router.route(group)
    for purpose in Purpose:
        pulled = server.pull(PullRequest(tower=0, step=0, purpose=purpose, keys=keys)).rows
    changes = tuple(
        np.zeros((len(rows), gradient_width(group)), np.float32) for rows, group in zip(pulled, job.groups, strict=True)
    )
    if job.pool_on_servers:
        _pool(keys, changes)
    if job.mode is Mode.GEO:
        nothing = np.empty(0, np.float32)
        server.exchange(DifferencesRequest(tower=0, sequence=0, step=0, keys=keys, differences=changes, dense=nothing))
    else:
        server.push(PushRequest(tower=0, sequence=0, step=0, keys=keys, gradients=changes))
    if job.mode is Mode.SYNC:
        rows = server.lease(LeaseRequest(tower=0, window=0, keys=keys)).rows
        server.give_back(ReturnRequest(tower=0, sequence=0, window=1, keys=keys, rows=rows))
    for store, unique in zip(server.stores, keys, strict=True):
        if isinstance(store, PolicyRows):
            store.write_rows(unique, np.zeros((len(unique), store.width), np.float32))  # none may have been admitted
            store.begin_day(1)
    server.state()
    server.close()


def _rows_that_move(job: JobSpec) -> None:
    """Rows of each group between memory and files, more than memory holds, in a directory of their own."""
    count = 4096
    tables, keys = np.zeros(count, np.uint16), np.arange(count, dtype=np.uint64)
    for group in job.groups:
        own = KeySet(tables + np.uint16(group.tables[0].index), keys)
        half = own[: count // 2]
        memory = budget_for(group, rows=count // 16, ssd_rows=count, leased_rows=count, ssd_bytes=1 << 24)
        with tempfile.TemporaryDirectory() as folder:
            storage = StorageSpec(memory_bytes=memory, directories=(folder,), ssd_bytes=1 << 24, io=DiskIo.CACHED)
            (store,) = open_rows(replace(job, groups=(group,), storage=storage))
            for create in (Create.YES, Create.NO):
                store.pull(own, create=create)
            store.push(own, np.zeros((count, gradient_width(group)), np.float32))
            store.give_back(half, store.lease(half, holder=1), holder=1)
            for _ in store.scan():
                pass
            store.close()


def _one_snapshot(job: JobSpec, keys: tuple[KeySet, ...]) -> None:
    """Rows that change while they are written, and that are deleted."""
    server = RowServer(job)
    snapshots = ServerSnapshots(server.stores, job, server=0)
    rows = [store.pull(unique, create=Create.YES) for store, unique in zip(server.stores, keys, strict=True)]
    snapshots.cut("warm", owners=np.zeros(job.buckets, np.int32))
    for store, unique, weights, group in zip(server.stores, keys, rows, job.groups, strict=True):
        counts = np.zeros((len(unique), gradient_width(group) - group.dim), np.float32)
        store.push(unique, np.concatenate([weights, counts], axis=1))
        store.delete_rows(unique)
        store.load_rows(unique, np.zeros((len(unique), store.width), np.float32))
    with tempfile.TemporaryDirectory(prefix="hetero-warm-") as folder:
        snapshots.write(folder=folder)
    server.close()


def _pool(keys: tuple[KeySet, ...], rows: tuple[F32, ...]) -> None:
    """Sums of rows, and gradients dealt out to them."""
    bags = tuple(Bags(np.arange(len(own), dtype=np.int32), np.array([0, len(own)], np.int32)) for own in rows)
    sums = pooled(rows, bags)
    unpooled(PushRequest(tower=0, sequence=0, step=0, keys=keys, gradients=sums, bags=bags))
