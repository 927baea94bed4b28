"""A reader as an actor: one thread reads splits, another serves batches."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import pyarrow as pa
import ray

from actors.clients import Peer, RemoteSequencer
from actors.context import RunContext
from actors.metrics import RayMetrics
from actors.processes import work_ahead
from hetero.errors import ProtocolError
from hetero.hardware.heap import keep_freed_memory
from hetero.hardware.probe import peak_rss_bytes
from hetero.keys.sequencer import HeldSplit
from hetero.loops.pulses import RolePulses
from hetero.loops.reader import Reader, read_splits, take_over
from hetero.loops.run import DataPass, RoleReport
from hetero.loops.warm_keys import warm_reader_kernels
from hetero.observe.metrics import Pulse
from hetero.observe.spans import SpanTotals
from hetero.records import Batch, KeySet, Piece


class ReaderActor:
    """Shell of `hetero.loops.reader.Reader`."""

    def __init__(self, context: RunContext, index: int) -> None:
        if keep_freed_memory():  # the columns of a split are allocated and freed all the time
            pa.set_memory_pool(pa.system_memory_pool())
        context.enter()
        work_ahead()
        warm_reader_kernels(context.job)
        pa.set_cpu_count(context.job.readers.threads)
        pa.set_io_thread_count(context.job.readers.threads)
        self._job = context.job
        self._index = index
        self._reading: tuple[Reader | None, SpanTotals] = (None, SpanTotals())  # of this phase; spans of those before
        self._pulses = RolePulses(f"reader/{index}")
        self._metrics = RayMetrics(context.run)

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    def open(self, data: DataPass) -> None:
        """Begin a phase."""
        reader = Reader(self._job, index=self._index, data=data.data, splits=data.splits)
        self._reading = (reader, self._kept_spans())

    def read(self, sequencer: Peer, life: int) -> None:
        """Read splits until the phase needs no more."""
        read_splits(self._opened(), RemoteSequencer(sequencer, life=life))

    def take_over(self, sequencer: Peer, life: int, held: Sequence[HeldSplit]) -> None:
        """Hold what a reader held that is lost."""
        take_over(self._opened(), RemoteSequencer(sequencer, life=life), held)

    @ray.method(concurrency_group="serve")
    def batches(self, pieces: Sequence[Piece]) -> tuple[Batch, ...]:
        reader = self._opened()
        return tuple(reader.batch(piece) for piece in pieces)

    @ray.method(concurrency_group="serve")
    def keys(self, pieces: Sequence[Piece]) -> tuple[tuple[KeySet, ...], ...]:
        reader = self._opened()
        return tuple(reader.keys(piece) for piece in pieces)

    @ray.method(concurrency_group="control")
    def pulse(self) -> Pulse:
        """How this reader stands."""
        reader, spans = self._reading
        spans = spans if reader is None else spans + reader.spans_so_far()
        return self._metrics.publish(self._pulses.of_role(spans))

    def role_report(self) -> RoleReport:
        self._reading = (None, self._kept_spans())
        return RoleReport(
            name=f"reader/{self._index}",
            spans=self._reading[1],
            peak_rss_bytes=peak_rss_bytes(),
            cpu_s=time.process_time(),
        )

    def _kept_spans(self) -> SpanTotals:
        reader, spans = self._reading
        return spans if reader is None else spans + reader.spans()

    def _opened(self) -> Reader:
        reader = self._reading[0]
        if reader is None:
            raise ProtocolError(f"reader {self._index}: asked before a phase was opened")
        return reader
