"""Windows of steps on a device, for `benchmarks.device`: the same batches with rows that move, and that stay."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.kernels import zipf_ids
from benchmarks.step_workload import DENSE, DIM, FIELDS, step_job
from hetero.exchange.client import PushSummary
from hetero.exchange.dense_sides import ReplicatedDense
from hetero.exchange.leases import GivenWindows, LeasedRows
from hetero.exchange.messages import Done, Pending
from hetero.exchange.traffic import Traffic
from hetero.hardware.tower_device import TowerDevice
from hetero.keys.dedup import Deduplicator
from hetero.keys.windows import TowerWindow, WindowBuilder
from hetero.loops.tower import Tower
from hetero.observe.spans import SpanClock
from hetero.optim.definition import lease_width
from hetero.parallel.dense import DenseUpdater
from hetero.parallel.group import SoleTower
from hetero.records import F32, START, Bags, Batch, BatchSpec, GroupBatch, KeySet
from hetero.towers.build import make_tower


class HostRows:
    """A LeaseClient whose rows are one block of host memory, and which drops what comes back."""

    def __init__(self, width: int, rows: int) -> None:
        self._rows: F32 = np.random.default_rng(5).uniform(-0.01, 0.01, (rows, width)).astype(np.float32)
        self._rows[:, DIM:] = 0

    def lease(self, keys: Sequence[KeySet], *, window: int, clock: SpanClock | None = None) -> Pending[tuple[F32, ...]]:
        return Done(tuple(self._rows[: len(own)] for own in keys))

    def give_back(
        self, keys: Sequence[KeySet], rows: Sequence[F32], *, window: int, flush: int | None = None
    ) -> None: ...

    def note_leased(self, keys: Sequence[KeySet], rows: Sequence[F32], *, steps: int) -> None: ...

    def settle(self) -> PushSummary:
        return PushSummary(rejected=0, examples=())


class WindowedSteps:
    """Batches of a DLRM on Zipf ids, in windows of so many steps. moved_bytes: of rows that enter and leave."""

    def __init__(self, place: TowerDevice, *, batch: int, steps: int, window: int) -> None:
        self.job = step_job()
        self.place = place
        self._window = window
        self._dedup = Deduplicator()
        random = np.random.default_rng(3)
        tables, keys = zipf_ids(batch * steps)
        self._batches: list[Batch] = []
        for own_tables, own_keys in zip(np.split(tables, steps), np.split(keys, steps), strict=True):
            unique, local = self._dedup(own_tables, own_keys)
            self._batches.append(
                Batch(
                    labels=(random.random(batch) < 0.3).astype(np.float32),
                    weights=None,
                    dense=random.normal(size=(batch, DENSE)).astype(np.float32),
                    groups=(GroupBatch(KeySet(unique.tables.copy(), unique.keys.copy()), Bags(local.copy())),),
                    gauc_ids=None,
                )
            )
        assert all(len(own.groups[0].pooled.local) == batch * FIELDS for own in self._batches)
        self._specs = [
            BatchSpec(step=step, tower=0, pieces=(), weight_sum=float(batch), after=START) for step in range(steps)
        ]
        self._width = lease_width(self.job.groups[0])
        self.moved_bytes = (
            4
            * self._width
            * sum(
                len(moves.enter) + len(moves.leave) for window_ in self._windows(window)[1:] for moves in window_.moves
            )
        )

    def train(self, *, moving: bool) -> float:
        """Seconds of all steps. moving: in windows, whose rows come and go; else in one, whose rows are there."""
        leased = self._leased(self._window if moving else len(self._specs), background=True)
        tower = self._tower()
        for spec, batch in zip(self._specs[:1], self._batches[:1], strict=True):
            leased.rows(spec, batch)
        self._wait()
        started = time.perf_counter()
        for spec, batch in zip(self._specs, self._batches, strict=True):
            tower.train_step(spec, batch, leased)
        self._wait()
        seconds = time.perf_counter() - started
        leased.finish()
        return seconds

    def move(self) -> float:
        """Seconds of the boundaries alone, one after the other with nothing beside them."""
        leased = self._leased(self._window, background=False)
        leased.rows(self._specs[0], self._batches[0])
        self._wait()
        started = time.perf_counter()
        for at in range(self._window, len(self._specs), self._window):
            leased.rows(self._specs[at], self._batches[at])
            self._wait()
        seconds = time.perf_counter() - started
        leased.finish()
        return seconds

    def _leased(self, window: int, *, background: bool) -> LeasedRows:
        windows = self._windows(window)
        most = max(len(moves.enter) for own in windows for moves in own.moves)
        return LeasedRows(
            self.job,
            client=HostRows(self._width, most),
            group=SoleTower(),
            windows=GivenWindows(windows),
            clock=SpanClock(),
            device=self.place.device if self.place.holds_rows else None,
            background=background,
        )

    def _windows(self, window: int) -> list[TowerWindow]:
        builder = WindowBuilder(self.job)
        cut = [range(at, min(at + window, len(self._specs))) for at in range(0, len(self._specs), window)]
        built = [
            builder.build(
                [[self._specs[step]] for step in own], [[[self._batches[step].groups[0].unique]] for step in own]
            )
            for own in [*cut, range(0)]
        ]
        return [towers[0] for towers in built]

    def _tower(self) -> Tower:
        module, clock = make_tower(self.job).to(self.place.device), SpanClock()
        updater = DenseUpdater(module, self.job.tower, group=SoleTower(), clock=clock)
        return Tower(
            self.job,
            module=module,
            client=None,  # type: ignore[arg-type]  # asked by `score` alone
            dense=ReplicatedDense(updater, module, towers=1, traffic=Traffic()),
            clock=clock,
            place=self.place,
        )

    def _wait(self) -> None:
        if self.place.kind == "cuda":
            torch.cuda.synchronize(self.place.device)
