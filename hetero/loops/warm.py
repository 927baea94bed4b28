"""Run the CPU kernels a job needs once, so that no step waits for a compiler or for compiled code to be loaded.

Compiled code is cached on disk. The driver compiles before anything starts; every actor loads what its role needs
before it says that it is there (a process's first kernel takes a second and more), or compiles where it is the first
on its machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from hetero.exchange.client import PushSummary
from hetero.exchange.geo_copies import CopiedGroup
from hetero.exchange.leases import GivenWindows, LeasedRows
from hetero.exchange.messages import Done, Pending
from hetero.hardware.precision import choose_precision, fast_bf16_here
from hetero.hardware.tower_device import ON_HOST, TowerDevice
from hetero.kernels.leased import merge_kernel
from hetero.keys.numbering import KeyNumbers
from hetero.keys.routing import Router, initial_owners
from hetero.loops.uses import with_uses
from hetero.loops.warm_keys import (
    INVENTED_STEP,
    ROWS,
    invented_batches,
    invented_windows,
    warm_reader_kernels,
    warm_sequencer_kernels,
)
from hetero.loops.warm_rows import warm_server_kernels
from hetero.observe.spans import SpanClock
from hetero.optim.definition import lease_width
from hetero.parallel.group import SoleTower
from hetero.records import F32, Batch, JobSpec, KeySet, Mode, Precision, RoleSpec
from hetero.towers.build import make_tower
from hetero.towers.embeddings import EmbeddingLayout, embed
from hetero.towers.outputs import TowerOutput
from hetero.towers.registry import BUILT_IN


def warm_kernels(job: JobSpec) -> float:
    """Run every kernel of a training step once on a few invented rows; returns the seconds it took."""
    started = time.perf_counter()
    warm_reader_kernels(job)
    warm_sequencer_kernels(job)
    warm_server_kernels(job)
    warm_tower_kernels(job)
    return time.perf_counter() - started


def warm_tower_kernels(job: JobSpec, *, place: TowerDevice = ON_HOST) -> None:
    """What a tower of the job runs, in `place`."""
    job = replace(job, storage=None, towers=replace(job.towers, count=RoleSpec().count))
    for batch in invented_batches(job):
        keys = [group.unique for group in batch.groups]
        router = Router(job.groups, job.buckets, initial_owners(job.buckets, max(2, job.servers.count)))
        for group in keys:
            router.route(group)
        gradients = _one_step(job, batch)
        if job.mode is Mode.SYNC:
            _leased_step(job, batch, device=place.device if place.holds_rows else None)
        if job.mode is Mode.GEO:
            for spec, unique, gradient in zip(job.groups, keys, gradients, strict=True):
                copied = CopiedGroup(spec)
                copied.add(copied.without_copy(unique), np.zeros_like(gradient))
                copied.update(unique, gradient)
                copied.weights(unique)
    if job.mode is not Mode.SYNC:
        _numbers_that_grow()


def _one_step(job: JobSpec, batch: Batch) -> tuple[F32, ...]:
    """Rows to loss and back; the gradients of the rows."""
    rows = [
        torch.zeros(len(keys.unique), group.dim, requires_grad=True)
        for keys, group in zip(batch.groups, job.groups, strict=True)
    ]
    embeddings = embed(batch, rows, EmbeddingLayout.from_job(job))
    results = [embeddings[name].sum() for name in embeddings]
    if job.tower.name in BUILT_IN:  # another class may not be importable here, and has no kernels of ours
        module = make_tower(job)
        trains_in_bf16 = choose_precision(job.precision, [fast_bf16_here()]).taken is Precision.BF16
        for is_bf16 in (False, True) if trains_in_bf16 else (False,):  # scores are fp32 in any case
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
                output = module(torch.from_numpy(batch.dense), embeddings)
            results.append((output.logits if isinstance(output, TowerOutput) else output).float().sum())
    torch.autograd.backward(torch.stack(results).sum())
    return tuple(np.zeros(tuple(values.shape), np.float32) for values in rows)


def _leased_step(job: JobSpec, batch: Batch, *, device: torch.device | None) -> None:
    """A window of one step, and the one in which its rows leave."""
    windows = invented_windows(job, [group.unique for group in batch.groups])
    clock = SpanClock()
    leased = LeasedRows(
        job,
        client=_NewRows(job),
        group=SoleTower(),
        windows=GivenWindows(windows),
        clock=clock,
        device=device,
    )
    gradients = tuple(torch.zeros_like(values) for values in leased.rows(INVENTED_STEP, batch))
    leased.apply(INVENTED_STEP, batch, with_uses(gradients, batch, groups=job.groups))
    leased.finish()
    for rows in gradients if device is None else ():
        merge_kernel(np.arange(len(rows), dtype=np.int32), rows.numpy(), np.zeros(tuple(rows.shape), np.float32))


class _NewRows:
    """A LeaseClient that hands out zeros and forgets what comes back."""

    def __init__(self, job: JobSpec) -> None:
        self._groups = job.groups

    def lease(self, keys: Sequence[KeySet], *, window: int, clock: SpanClock | None = None) -> Pending[tuple[F32, ...]]:
        widths = [lease_width(group) for group in self._groups]
        return Done(tuple(np.zeros((len(own), width), np.float32) for own, width in zip(keys, widths, strict=True)))

    def give_back(
        self, keys: Sequence[KeySet], rows: Sequence[F32], *, window: int, flush: int | None = None
    ) -> None: ...

    def note_leased(self, keys: Sequence[KeySet], rows: Sequence[F32], *, steps: int) -> None: ...

    def settle(self) -> PushSummary:
        return PushSummary(rejected=0, examples=())


def _numbers_that_grow() -> None:
    numbers = KeyNumbers()
    for rows in (ROWS, 1 << 12):
        numbers.number(KeySet(np.zeros(rows, np.uint16), np.arange(rows, dtype=np.uint64)))
