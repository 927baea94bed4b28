"""One tower's step of the peers' DLRM without roles around it: batches, leased rows and a tower, in this process.

DLRM 13-512-256-16, dot interaction of 27 vectors, 512-256-1; 26 Zipf features of dim 16; batch 4096; Adagrad on dense
parameters, row-wise Adagrad on rows.
"""

from __future__ import annotations

import resource

import numpy as np
from torch import Tensor

from benchmarks.kernels import zipf_ids
from hetero.exchange.client import PushSummary
from hetero.exchange.dense_sides import ReplicatedDense
from hetero.exchange.held_rows import Arrived
from hetero.exchange.leased_group import LeasedGroup
from hetero.exchange.traffic import Traffic
from hetero.hardware.heap import keep_freed_memory
from hetero.keys.dedup import Deduplicator
from hetero.keys.windows import GroupMoves
from hetero.loops.tower import Tower
from hetero.observe.spans import SpanClock
from hetero.parallel.dense import DenseUpdater
from hetero.parallel.group import SoleTower
from hetero.records import (
    I32,
    START,
    U16,
    U64,
    Bags,
    Batch,
    BatchSpec,
    DataSpec,
    DenseFeature,
    GroupBatch,
    GroupSpec,
    InitSpec,
    JobSpec,
    KeySet,
    LookupSpec,
    RoleSpec,
    RowOptimizerSpec,
    SparseFeature,
    TableSpec,
    TowerSpec,
)
from hetero.towers.build import make_tower

BATCH = 4096
DENSE, FIELDS, DIM = 13, 26, 16
BATCHES = 4
LARGE_BATCH = 16384
_WARM_STEPS = 10  # the heap grows for several steps until freed arrays fit the next ones


def step_job() -> JobSpec:
    """The peers' DLRM as a job."""
    tables = tuple(TableSpec(index=index, name=f"C{index}", seed=index) for index in range(FIELDS))
    data = DataSpec(
        paths=(),
        dense=tuple(DenseFeature(name=f"I{index}", column=f"I{index}") for index in range(DENSE)),
        sparse=tuple(SparseFeature(name=f"C{index}", column=f"C{index}") for index in range(FIELDS)),
        label="label",
    )
    return JobSpec(
        name="step",
        seed=0,
        train=data,
        test=None,
        groups=(GroupSpec(dim=DIM, optimizer=RowOptimizerSpec(lr=0.01), init=InitSpec(), tables=tables),),
        lookups=tuple(
            LookupSpec(name=f"C{index}", feature=index, group=0, table=index, dim=DIM) for index in range(FIELDS)
        ),
        tower=TowerSpec(name="dlrm", args={"bottom": [512, 256], "top": [512, 256]}, optimizer="adagrad", lr=0.01),
        batch_size=BATCH,
        epochs=1,
        max_steps=None,
        readers=RoleSpec(),
        servers=RoleSpec(),
        towers=RoleSpec(),
        window=BATCHES,
    )


class Workload:
    """A few batches over one window of leased rows, and a tower that trains on them again and again.

    tables, keys: occurrences of each batch [rows * FIELDS]. slots: where each batch's unique rows are leased.
    """

    def __init__(self, *, rows: int = BATCH) -> None:
        self.job = step_job()
        self._rows = rows
        tables, keys = zipf_ids(rows * BATCHES)
        self.tables, self.keys = np.split(tables, BATCHES), np.split(keys, BATCHES)
        self._dedup = Deduplicator()
        window, local = self._dedup(tables, keys)
        local_of_batch = np.split(local.copy(), BATCHES)
        random = np.random.default_rng(3)
        self.batches = [self._batch(random, *occurrences) for occurrences in zip(self.tables, self.keys, strict=True)]
        self.slots: list[I32] = []
        for batch, places in zip(self.batches, local_of_batch, strict=True):
            slots = np.empty(len(batch.groups[0].unique), np.int32)
            slots[batch.groups[0].pooled.local] = places
            self.slots.append(slots)
        self.leased = leased_group(self.job, random, rows=len(window))
        self._step = 0
        module, clock = make_tower(self.job), SpanClock()
        updater = DenseUpdater(module, self.job.tower, group=SoleTower(), clock=clock)
        self.tower = Tower(
            self.job,
            module=module,
            client=None,  # type: ignore[arg-type]  # asked by `score` alone
            dense=ReplicatedDense(updater, module, towers=1, traffic=Traffic()),
            clock=clock,
        )

    def dedup(self, number: int) -> tuple[KeySet, I32]:
        """Unique keys of a batch, as its reader finds them."""
        return self._dedup(self.tables[number % BATCHES], self.keys[number % BATCHES])

    def step(self) -> float:
        """One step of the tower, its rows' gather and update included; the loss."""
        number = self._step % BATCHES
        spec = BatchSpec(step=self._step, tower=0, pieces=(), weight_sum=float(self._rows), after=START)
        self._step += 1
        return self.tower.train_step(spec, self.batches[number], _Leased(self.leased, self.slots[number])).loss

    def _batch(self, random: np.random.Generator, tables: U16, keys: U64) -> Batch:
        unique, local = self._dedup(tables, keys)
        kept = KeySet(unique.tables.copy(), unique.keys.copy())
        return Batch(
            labels=(random.random(self._rows) < 0.3).astype(np.float32),
            weights=None,
            dense=random.normal(size=(self._rows, DENSE)).astype(np.float32),
            groups=(GroupBatch(kept, Bags(local.copy())),),
            gauc_ids=None,
        )


class _Leased:
    """A RowSource whose rows lie in slots that are known."""

    def __init__(self, group: LeasedGroup, slots: I32) -> None:
        self._group, self._slots = group, slots

    def rows(self, spec: BatchSpec, batch: Batch) -> tuple[Tensor, ...]:
        return (self._group.weights(self._slots),)

    def apply(self, spec: BatchSpec, batch: Batch, gradients: tuple[Tensor, ...]) -> PushSummary:
        rejected = self._group.update(self._slots, gradients[0], step=0).result()
        return PushSummary(rejected=len(rejected), examples=())

    def deliver(self, steps: int) -> PushSummary:
        return self.finish()

    def renew(self) -> None:
        """Nothing is asked for ahead."""

    def let_go(self, steps: int) -> PushSummary:
        return self.finish()

    def take_again(self) -> None:
        """Nothing is leased."""

    def finish(self) -> PushSummary:
        return PushSummary(rejected=0, examples=())


def leased_group(job: JobSpec, random: np.random.Generator, *, rows: int) -> LeasedGroup:
    """Leased rows [rows, DIM + 1] with first weights of scale 0.01 and no state."""
    group = LeasedGroup(job.groups[0])
    first = np.zeros((rows, DIM + 1), np.float32)
    first[:, :DIM] = random.uniform(-0.01, 0.01, size=(rows, DIM))
    group.put_in(
        GroupMoves(
            leave=KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64)),
            leave_slots=np.empty(0, np.int32),
            enter=KeySet(np.zeros(rows, np.uint16), np.arange(rows, dtype=np.uint64)),
            enter_slots=np.arange(rows, dtype=np.int32),
            capacity=rows,
        ),
        Arrived(first),
    )
    return group


def page_faults_a_step(*, keep: bool, steps: int = 6) -> float:
    """Page faults of one step of LARGE_BATCH rows in this process, warmed up; keep: `keep_freed_memory` first."""
    if keep:
        keep_freed_memory()
    workload = Workload(rows=LARGE_BATCH)
    for _ in range(_WARM_STEPS):
        workload.step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        workload.step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps
