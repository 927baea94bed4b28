"""The windows of a job without its towers: what servers would be asked for, from the job's data or from a Zipf law."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hetero.kernels.mix import mix64_reference
from hetero.keys.dedup import Deduplicator
from hetero.keys.windows import TowerWindow, WindowBuilder
from hetero.loops.reader import Reader, make_sequencer
from hetero.loops.run import DataPass
from hetero.loops.windows import InlineWindows
from hetero.records import START, U64, BatchSpec, JobSpec, KeySet, RoleSpec


def windows_of_data(job: JobSpec, data: DataPass) -> Iterator[TowerWindow]:
    """The windows that training on `data` would have, all towers together; the job's window has a number of steps."""
    job = replace(job, readers=RoleSpec(), towers=RoleSpec())
    reader = Reader(job, index=0, data=data.data, splits=data.splits)
    sequencer = make_sequencer(
        job,
        data=data.data,
        splits=len(data.splits),
        epochs=data.epochs,
        max_steps=data.max_steps,
        towers=1,
        start=data.start,
    )
    windows = InlineWindows(job, sequencer, [reader])
    batches = iter(windows)
    while (window := windows.next_window()) is not None:
        yield window
        for _ in window.specs:
            next(batches)


def windows_of_zipf(job: JobSpec, *, exponent: float, distinct: int, steps: int) -> Iterator[TowerWindow]:
    """Windows of made batches: every lookup draws one key a row, the n-th most frequent of `distinct` with a
    probability that falls as n^-exponent (by the continuous law's quantiles). A function of the job's seed.
    """
    job = replace(job, towers=RoleSpec())
    random = np.random.default_rng(job.seed)
    builder, dedup = WindowBuilder(job), Deduplicator()
    for start in range(0, steps, job.window):
        own = range(start, min(start + job.window, steps))
        keys = [[_step_keys(job, random, dedup, exponent=exponent, distinct=distinct)] for _ in own]
        yield builder.build([[_spec(step)] for step in own], keys)[0]
    yield builder.build([], [])[0]


def _step_keys(
    job: JobSpec, random: np.random.Generator, dedup: Deduplicator, *, exponent: float, distinct: int
) -> list[KeySet]:
    """Unique keys of one step, per group."""
    drawn: list[tuple[list[np.ndarray], list[U64]]] = [([], []) for _ in job.groups]
    features: dict[int, U64] = {}
    for lookup in job.lookups:
        if lookup.feature not in features:  # tables of one feature see the same values
            ranks = _zipf(random.random(job.batch_size), exponent=exponent, distinct=distinct)
            features[lookup.feature] = mix64_reference(ranks + np.uint64(lookup.feature << 40))
        tables, keys = drawn[lookup.group]
        tables.append(np.full(job.batch_size, lookup.table, np.uint16))
        keys.append(features[lookup.feature])
    return [dedup(np.concatenate(tables), np.concatenate(keys))[0] for tables, keys in drawn]


def _zipf(units: np.ndarray, *, exponent: float, distinct: int) -> U64:
    """Ranks from 0, for uniform numbers in [0, 1)."""
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        ranks = np.power(distinct + 1.0, units)
    else:
        ranks = np.power(units * (np.power(distinct + 1.0, power) - 1.0) + 1.0, 1.0 / power)
    drawn: U64 = np.minimum(ranks.astype(np.uint64), np.uint64(distinct)) - np.uint64(1)
    return drawn


def _spec(step: int) -> BatchSpec:
    return BatchSpec(step=step, tower=0, pieces=(), weight_sum=1.0, after=START)
