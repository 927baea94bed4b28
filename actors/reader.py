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
        warm_reader_kernels(context.job)
        pa.set_cpu_count(context.job.readers.threads)
        pa.set_io_thread_count(context.job.readers.threads)
        self._job = context.job
        self._index = index
        self._reader: Reader | None = None
        self._spans = SpanTotals()
        self._pulses = RolePulses(f"reader/{index}")
        self._metrics = RayMetrics(context.run)

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    def open(self, data: DataPass) -> None:
        """Begin a phase."""
        self._keep_spans()
        self._reader = Reader(self._job, index=self._index, data=data.data, splits=data.splits)

    def read(self, sequencer: Peer, life: int) -> None:
        """Read splits until the phase needs no more."""
        read_splits(self._opened(), RemoteSequencer(sequencer, life=life))

    def take_over(self, sequencer: Peer, life: int, held: Sequence[HeldSplit]) -> None:
        """Hold what a reader held that is lost."""
        take_over(self._opened(), RemoteSequencer(sequencer, life=life), held)

    @ray.method(concurrency_group="serve")
    def batch(self, piece: Piece) -> Batch:
        return self._opened().batch(piece)

    @ray.method(concurrency_group="serve")
    def keys(self, piece: Piece) -> tuple[KeySet, ...]:
        return self._opened().keys(piece)

    @ray.method(concurrency_group="control")
    def pulse(self) -> Pulse:
        """How this reader stands."""
        spans, reader = self._spans, self._reader
        spans = spans if reader is None else spans + reader.spans_so_far()
        return self._metrics.publish(self._pulses.of_role(spans))

    def role_report(self) -> RoleReport:
        self._keep_spans()
        return RoleReport(
            name=f"reader/{self._index}",
            spans=self._spans,
            peak_rss_bytes=peak_rss_bytes(),
            cpu_s=time.process_time(),
        )

    def _keep_spans(self) -> None:
        if self._reader is not None:
            self._spans = self._spans + self._reader.spans()
            self._reader = None

    def _opened(self) -> Reader:
        if self._reader is None:
            raise ProtocolError(f"reader {self._index}: asked before a phase was opened")
        return self._reader
