"""Some steps of keys over servers with policies, pulled every step or leased by windows; and the same on the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from hetero.embedding.answers import Create
from hetero.embedding.policies.rows import PolicyRows
from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.leases import GivenWindows, LeasedRows
from hetero.exchange.messages import Purpose
from hetero.exchange.server import RowServer
from hetero.keys.windows import TowerWindow, WindowBuilder
from hetero.observe.spans import SpanClock
from hetero.optim.definition import gradient_width
from hetero.parallel.group import SoleTower
from hetero.records import (
    F32,
    START,
    AdmissionSpec,
    Bags,
    Batch,
    BatchSpec,
    Clock,
    DataSpec,
    EvictionSpec,
    GroupBatch,
    GroupSpec,
    JobSpec,
    KeySet,
    RoleSpec,
    TableSpec,
)
from tests.support.jobs import small_job
from tests.support.policy_oracle import PolicyOracle

TABLE = TableSpec(index=0, name="t", seed=77)
BUCKETS = 8


@dataclass(frozen=True)
class Uses:
    """What one step sees: shows and clicks by key."""

    by_key: dict[int, tuple[int, int]]

    @property
    def keys(self) -> KeySet:
        keys = np.array(list(self.by_key), np.uint64)
        return KeySet(np.zeros(len(keys), np.uint16), keys)


@dataclass(frozen=True)
class Outcome:
    """reads: weights of every step's keys. rows, waiting, gone: what is there at the end, and what went by reason."""

    reads: list[F32]
    rows: dict[int, list[float]]
    waiting: dict[int, int]
    gone: dict[str, int]


def policy_job(
    admission: AdmissionSpec | None, eviction: EvictionSpec | None, *, servers: int = 1, day_steps: int = 3
) -> JobSpec:
    plain = small_job(DataSpec(paths=(), dense=(), sparse=(), label="label"))
    group = replace(plain.groups[1], tables=(TABLE,), admission=admission, eviction=eviction)
    return replace(
        plain,
        groups=(group,),
        lookups=(),
        servers=RoleSpec(count=servers),
        buckets=BUCKETS,
        clock=Clock(day_steps=day_steps),
    )


def told(group: GroupSpec, step: int, uses: Uses) -> F32:
    """Gradients of a step, with shows and clicks where the group counts them."""
    keys = np.array(list(uses.by_key), np.float32)[:, None]
    gradients = np.sin(keys + np.float32(step) + np.arange(group.dim, dtype=np.float32)).astype(np.float32)
    if gradient_width(group) == group.dim:
        return gradients
    counts = np.array(list(uses.by_key.values()), np.float32).reshape(len(keys), 2)
    return np.concatenate([gradients, counts], axis=1)


def on_oracle(job: JobSpec, steps: Sequence[Uses]) -> Outcome:
    group = job.groups[0]
    oracle = PolicyOracle(group, job.buckets)
    reads: list[F32] = []
    for step, uses in enumerate(steps):
        assert job.clock is not None
        if job.clock.begins_day(step):
            oracle.begin_day(job.clock.day_of(step))
        read = np.zeros((len(uses.by_key), group.dim), np.float32)
        gradients = told(group, step, uses)[:, : group.dim]
        for at, key in enumerate(uses.by_key):
            if oracle.reads(key):
                own = KeySet(np.zeros(1, np.uint16), np.array([key], np.uint64))
                read[at] = oracle.rows.pull(own, create=Create.YES)[0]
        reads.append(read)
        for at, (key, (shows, clicks)) in enumerate(uses.by_key.items()):
            if oracle.learns(key, shows=shows, clicks=clicks):
                own = KeySet(np.zeros(1, np.uint16), np.array([key], np.uint64))
                oracle.rows.push(own, gradients[at : at + 1])
    rows = {key: oracle.row(key).tolist() for _, key in oracle.rows.rows}
    return Outcome(reads, rows, {key: seen for key, (seen, _) in oracle.waiting.items()}, oracle.gone)


def on_servers(job: JobSpec, steps: Sequence[Uses], *, window: int, device: torch.device | None = None) -> Outcome:
    """window: of leases, 0 to pull and push. device: that holds leased rows."""
    servers = [RowServer(job) for _ in range(job.servers.count)]
    client = ShardedRowClient(job, tower=0, servers=[LocalServer(s) for s in servers], clock=SpanClock())
    try:
        reads = _leased(job, client, steps, window, device) if window else _pulled(job, client, steps)
        return _outcome(servers, reads)
    finally:
        for server in servers:
            server.close()


def _pulled(job: JobSpec, client: ShardedRowClient, steps: Sequence[Uses]) -> list[F32]:
    reads: list[F32] = []
    for step, uses in enumerate(steps):
        reads += client.pull([uses.keys], step=step, purpose=Purpose.TRAIN)
        client.push([uses.keys], [told(job.groups[0], step, uses)], step=step)
    client.settle()
    return reads


def _leased(
    job: JobSpec, client: ShardedRowClient, steps: Sequence[Uses], window: int, device: torch.device | None
) -> list[F32]:
    windows = GivenWindows(windows_of(job, steps, window))
    leased = LeasedRows(job, client=client, group=SoleTower(), windows=windows, clock=SpanClock(), device=device)
    reads: list[F32] = []
    for step, uses in enumerate(steps):
        spec, batch = _spec(step), _batch(uses)
        reads += [part.numpy() for part in leased.rows(spec, batch)]
        leased.apply(spec, batch, (torch.from_numpy(told(job.groups[0], step, uses)),))
    leased.finish()
    return reads


def windows_of(job: JobSpec, steps: Sequence[Uses], window: int) -> list[TowerWindow]:
    """Windows of so many steps, cut and flushed where days begin."""
    builder, at = WindowBuilder(job), 0
    windows: list[TowerWindow] = []
    assert job.clock is not None
    while at < len(steps):
        if job.clock.begins_day(at):
            windows += builder.build([], [], flush=at)
        stop = min(at + window, len(steps), (at // job.clock.day_steps + 1) * job.clock.day_steps)
        own = range(at, stop)
        windows += builder.build([[_spec(step)] for step in own], [[[steps[step].keys]] for step in own])
        at = stop
    return [*windows, *builder.build([], [])]


def _outcome(servers: Sequence[RowServer], reads: list[F32]) -> Outcome:
    rows: dict[int, list[float]] = {}
    waiting: dict[int, int] = {}
    gone: dict[str, int] = {}
    for server in servers:
        (store,) = server.stores
        assert isinstance(store, PolicyRows)
        for keys, values in store.scan():
            rows.update(zip(keys.keys.tolist(), values.tolist(), strict=True))
        cut = store.begin_snapshot()
        keys, words = cut.words["waiting"]
        cut.close()
        waiting.update(zip(keys.keys.tolist(), (words & 1023).tolist(), strict=True))
        for name, count in server.state().policies.items():
            reason, is_of_table, _ = name.partition("/")
            if is_of_table:
                gone[reason] = gone.get(reason, 0) + count
        assert store.count() == sum(server.state().rows.values())
    return Outcome(reads, rows, waiting, gone)


def _spec(step: int) -> BatchSpec:
    return BatchSpec(step=step, tower=0, pieces=(), weight_sum=1.0, after=START)


def _batch(uses: Uses) -> Batch:
    nothing = np.empty(0, np.float32)
    bags = Bags(np.arange(len(uses.by_key), dtype=np.int32))
    group = GroupBatch(uses.keys, bags)
    return Batch(labels=nothing, weights=None, dense=nothing.reshape(0, 0), groups=(group,), gauc_ids=None)
