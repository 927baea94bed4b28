"""Run the kernels of readers and of the sequencer once, on a few invented rows. Nothing here loads torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from hetero.data.hashing import hash_strings
from hetero.keys.assemble import BatchAssembler
from hetero.keys.windows import TowerWindow, WindowBuilder
from hetero.records import START, Batch, BatchSpec, Format, Jagged, JobSpec, KeySet, ParsedSplit, SplitRef

ROWS = 4
"""Rows that are invented."""
INVENTED_STEP = BatchSpec(step=0, tower=0, pieces=(), weight_sum=1.0, after=START)


def warm_reader_kernels(job: JobSpec) -> None:
    """What a reader of the job runs."""
    hash_strings(pa.array(["warm", "up"]))
    for _ in invented_batches(job):
        """Cut, and not needed."""


def warm_sequencer_kernels(job: JobSpec) -> None:
    """What the job's sequencer runs beside its bookkeeping."""
    if job.window:
        for batch in invented_batches(job):
            invented_windows(job, [group.unique for group in batch.groups])


def invented_batches(job: JobSpec) -> Iterator[Batch]:
    """Batches of every kind the job can have: from one piece and from two, of one key a list and of several."""
    assembler = BatchAssembler(job)
    for list_length in (1, 2):
        prepared = assembler.prepare(_invented_split(job, list_length=list_length))
        halves = [assembler.batch(prepared, 0, ROWS // 2), assembler.batch(prepared, ROWS // 2, ROWS)]
        yield from (*halves, assembler.unite(halves))


def invented_windows(job: JobSpec, keys: list[KeySet]) -> tuple[TowerWindow, TowerWindow]:
    """Tower 0's window of `INVENTED_STEP` with these keys, and the one in which they leave. For a job of one tower."""
    builder = WindowBuilder(job)
    steps = [[INVENTED_STEP] * job.towers.count]
    return builder.build(steps, [[keys] * job.towers.count])[0], builder.build([], [])[0]


def _invented_split(job: JobSpec, *, list_length: int) -> ParsedSplit:
    """Rows whose list features hold `list_length` keys and whose other features hold one."""
    sparse = []
    for number, feature in enumerate(job.train.sparse):
        length = list_length if feature.is_list else 1
        keys = np.arange(ROWS * length, dtype=np.uint64) + np.uint64(number)
        offsets = np.arange(0, ROWS * length + 1, length, dtype=np.int32) if feature.is_list else None
        sparse.append(Jagged(keys, offsets))
    return ParsedSplit(
        ref=SplitRef(position=0, path="invented", format=Format.PARQUET),
        epoch=0,
        labels=np.zeros(ROWS, np.float32),
        weights=None,
        dense=np.zeros((ROWS, len(job.train.dense)), np.float32),
        sparse=tuple(sparse),
        gauc_ids=None,
        malformed=(),
        tokens=tuple(np.zeros((ROWS, text.length), np.int32) for text in job.train.texts),
        tasks=np.zeros((ROWS, len(job.train.tasks)), np.float32) if job.train.tasks else None,
    )
