"""Compile the CPU kernels a job needs before its roles start, so that no step waits for a compiler.

Compiled code is cached on disk; on a machine that has run the job before this takes about a second.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from hetero.checkpoint.server_rows import ServerSnapshots
from hetero.data.hashing import hash_strings
from hetero.embedding.open_rows import open_rows
from hetero.embedding.policies.rows import PolicyRows
from hetero.embedding.store import Create
from hetero.embedding.tier_budget import budget_for
from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.geo_copies import CopiedGroup
from hetero.exchange.leases import GivenWindows, LeasedRows
from hetero.exchange.messages import DifferencesRequest, PullRequest, Purpose, PushRequest
from hetero.exchange.server import RowServer
from hetero.kernels.leased import merge_kernel
from hetero.keys.assemble import BatchAssembler
from hetero.keys.numbering import KeyNumbers
from hetero.keys.routing import Router, initial_owners
from hetero.keys.windows import WindowBuilder
from hetero.loops.uses import with_uses
from hetero.observe.spans import SpanClock
from hetero.optim.definition import gradient_width
from hetero.parallel.group import SoleTower
from hetero.records import (
    START,
    Batch,
    BatchSpec,
    DiskIo,
    Format,
    Jagged,
    JobSpec,
    KeySet,
    Mode,
    ParsedSplit,
    RoleSpec,
    SplitRef,
    StorageSpec,
)
from hetero.towers.build import make_tower
from hetero.towers.embeddings import EmbeddingLayout, embed
from hetero.towers.registry import BUILT_IN

_ROWS = 4


def warm_kernels(job: JobSpec) -> float:
    """Run every kernel of a training step once on a few invented rows; returns the seconds it took."""
    started = time.perf_counter()
    if job.storage is not None:
        _rows_that_move(job)
        job = replace(job, storage=None)
    hash_strings(pa.array(["warm", "up"]))
    assembler = BatchAssembler(job)
    for list_length in (1, 2):
        prepared = assembler.prepare(_invented_split(job, list_length=list_length))
        halves = [assembler.batch(prepared, 0, 2), assembler.batch(prepared, 2, _ROWS)]
        for batch in (*halves, assembler.unite(halves)):
            _one_step(replace(job, towers=RoleSpec()), batch)
            if job.mode is Mode.SYNC:
                _leased_step(replace(job, towers=RoleSpec()), batch)
    _one_snapshot(job, batch)
    if job.mode is not Mode.SYNC:
        _numbers_that_grow()
    return time.perf_counter() - started


def _invented_split(job: JobSpec, *, list_length: int) -> ParsedSplit:
    """Rows whose list features hold `list_length` keys and whose other features hold one."""
    sparse = []
    for number, feature in enumerate(job.train.sparse):
        length = list_length if feature.is_list else 1
        keys = np.arange(_ROWS * length, dtype=np.uint64) + np.uint64(number)
        offsets = np.arange(0, _ROWS * length + 1, length, dtype=np.int32) if feature.is_list else None
        sparse.append(Jagged(keys, offsets))
    return ParsedSplit(
        ref=SplitRef(position=0, path="invented", format=Format.PARQUET),
        epoch=0,
        labels=np.zeros(_ROWS, np.float32),
        weights=None,
        dense=np.zeros((_ROWS, len(job.train.dense)), np.float32),
        sparse=tuple(sparse),
        gauc_ids=None,
        malformed=(),
    )


def _one_step(job: JobSpec, batch: Batch) -> None:
    server = RowServer(job)
    router = Router(job.groups, job.buckets, initial_owners(job.buckets, max(2, job.servers.count)))
    keys = tuple(group.unique for group in batch.groups)
    for group in keys:
        router.route(group)
    for purpose in Purpose:
        pulled = server.pull(PullRequest(tower=0, step=0, purpose=purpose, keys=keys)).rows
    rows = [torch.from_numpy(values).requires_grad_() for values in pulled]
    embeddings = embed(batch, rows, EmbeddingLayout.from_job(job))
    results = [embeddings[name].sum() for name in embeddings]
    if job.tower.name in BUILT_IN:  # another class may not be importable here, and has no kernels of ours
        results.append(make_tower(job)(torch.from_numpy(batch.dense), embeddings).sum())
    torch.autograd.backward(torch.stack(results).sum())
    gradients = tuple(np.zeros(tuple(values.shape), np.float32) for values in rows)
    if job.mode is Mode.GEO:
        nothing = np.empty(0, np.float32)
        server.exchange(
            DifferencesRequest(tower=0, sequence=0, step=0, keys=keys, differences=gradients, dense=nothing)
        )
        for spec, unique, values, gradient in zip(job.groups, keys, pulled, gradients, strict=True):
            copied = CopiedGroup(spec)
            copied.add(copied.without_copy(unique), values)
            copied.update(unique, gradient)
            copied.weights(unique)
    else:
        told = with_uses(gradients, batch, groups=job.groups)
        server.push(PushRequest(tower=0, sequence=0, step=0, keys=keys, gradients=told))
    for store in server.stores:
        if isinstance(store, PolicyRows):
            store.begin_day(1)
    server.state()
    server.close()


def _rows_that_move(job: JobSpec) -> None:
    """Rows of each group between memory and files, more than memory holds, in a directory of their own."""
    count = 4096
    tables, keys = np.zeros(count, np.uint16), np.arange(count, dtype=np.uint64)
    for group in job.groups:
        own = KeySet(tables + np.uint16(group.tables[0].index), keys)
        half = KeySet(own.tables[: count // 2], own.keys[: count // 2])
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


def _one_snapshot(job: JobSpec, batch: Batch) -> None:
    """Rows that change while they are written, and that are deleted."""
    server = RowServer(replace(job, towers=RoleSpec()))
    snapshots = ServerSnapshots(server.stores, job, server=0)
    keys = [group.unique for group in batch.groups]
    rows = [store.pull(unique, create=Create.YES) for store, unique in zip(server.stores, keys, strict=True)]
    snapshots.cut("warm", owners=np.zeros(job.buckets, np.int32))
    for store, unique, told in zip(server.stores, keys, with_uses(tuple(rows), batch, groups=job.groups), strict=True):
        store.push(unique, told)
        store.delete_rows(unique)
        store.load_rows(unique, np.zeros((len(unique), store.width), np.float32))
    with tempfile.TemporaryDirectory(prefix="hetero-warm-") as folder:
        snapshots.write(folder=folder)
    server.close()


def _numbers_that_grow() -> None:
    numbers = KeyNumbers()
    for rows in (_ROWS, 1 << 12):
        numbers.number(KeySet(np.zeros(rows, np.uint16), np.arange(rows, dtype=np.uint64)))


def _leased_step(job: JobSpec, batch: Batch) -> None:
    """A window of one step, and the one in which its rows leave."""
    spec = BatchSpec(step=0, tower=0, pieces=(), weight_sum=1.0, after=START)
    builder = WindowBuilder(job)
    windows = (builder.build([[spec]], [[[group.unique for group in batch.groups]]])[0], builder.build([], [])[0])
    server = RowServer(job)
    clock = SpanClock()
    client = ShardedRowClient(job, tower=0, servers=[LocalServer(server)], clock=clock)
    leased = LeasedRows(job, client=client, group=SoleTower(), windows=GivenWindows(windows), clock=clock)
    gradients = tuple(np.zeros(values.shape, np.float32) for values in leased.rows(spec, batch))
    leased.apply(spec, batch, with_uses(gradients, batch, groups=job.groups))
    leased.finish()
    for rows in gradients:
        merge_kernel(np.arange(len(rows), dtype=np.int32), rows, np.zeros_like(rows))
    server.close()
