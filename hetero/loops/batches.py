"""Streams of batches for a tower: inline (one process, one thread) or prefetched by a background thread."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from hetero.errors import ProtocolError
from hetero.exchange.messages import Pending
from hetero.keys.assemble import BatchAssembler
from hetero.keys.sequencer import Sequencer, SplitId, Turn
from hetero.loops.pieces import PiecesAsked
from hetero.loops.protocols import ReaderForTower, SequencerForTower
from hetero.loops.reader import Reader, advance
from hetero.observe.spans import Span, SpanClock
from hetero.records import Bags, Batch, BatchSpec, GroupBatch, JobSpec, KeySet, Piece, Pooling

_MOST_PIECES = 4
"""Pieces that are asked for at once, so that an answer stays small and comes soon."""


class InlineStream:
    """Readers, sequencer and one tower in one thread: readers advance when the next batch is not known yet."""

    def __init__(self, job: JobSpec, sequencer: Sequencer, readers: Sequence[Reader], *, tower: int = 0) -> None:
        self._job = job
        self._tower = tower
        self._sequencer = sequencer
        self._readers = readers
        self._assembler = BatchAssembler(job)

    def __iter__(self) -> Iterator[tuple[BatchSpec, Batch]]:
        acknowledged: tuple[int, ...] = ()
        while (turn := self._sequencer.take(self._tower, acknowledged=acknowledged)) is not Turn.END:
            acknowledged = ()
            if isinstance(turn, BatchSpec):
                pieces = [self._readers[piece.reader].batch(piece) for piece in turn.pieces]
                acknowledged = (turn.step,)
                yield turn, joined(pieces, job=self._job, assembler=self._assembler)
            elif not any(isinstance(advance(reader, self._sequencer), SplitId) for reader in self._readers):
                raise ProtocolError("sequencer: neither a batch to train nor a split to read, and not at the end")

    def close(self) -> None:
        """Nothing runs in the background."""


class PrefetchStream:
    """Batches fetched ahead: a background thread asks for up to `depth` batches and unites their pieces.

    The thread does RPC only. What fails in it is raised where the batches are consumed.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        tower: int,
        sequencer: SequencerForTower,
        readers: Sequence[ReaderForTower],
        clock: SpanClock,
        depth: int = 2 * _MOST_PIECES,
    ) -> None:
        self._job = job
        self._tower = tower
        self._sequencer = sequencer
        self._readers = readers
        self._clock = clock
        self._depth = depth
        self._assembler = BatchAssembler(job)
        self._ready: queue.Queue[tuple[BatchSpec, Batch] | BaseException | None] = queue.Queue(maxsize=2)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"prefetch-{tower}", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[tuple[BatchSpec, Batch]]:
        while True:
            with self._clock.span(Span.WAIT_READER):
                item = self._ready.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop the background thread; batches not consumed are dropped."""
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=0.05)
            except queue.Empty:
                self._thread.join(timeout=0.05)

    def _run(self) -> None:
        try:
            self._fetch()
            self._put(None)
        except BaseException as error:  # handed to the step thread, which raises it
            self._put(error)

    def _fetch(self) -> None:
        asked: deque[tuple[BatchSpec, list[Callable[[], Batch]]]] = deque()
        asking = PiecesAsked(self._batches, most=_MOST_PIECES, take=own_memory)
        acknowledged: list[int] = []
        ended = False
        while not self._stop.is_set() and not (ended and not asked):
            ahead = self._depth if len(asked) <= self._depth - _MOST_PIECES else 0
            while not ended and len(asked) < ahead:
                turn = self._sequencer.take(self._tower, acknowledged=tuple(acknowledged))
                acknowledged.clear()
                if turn is Turn.WAIT:
                    break
                if isinstance(turn, BatchSpec):
                    asked.append((turn, [asking.add(piece) for piece in turn.pieces]))
                else:
                    ended = True
            asking.send()
            if asked:
                spec, pieces = asked.popleft()
                batch = joined([piece() for piece in pieces], job=self._job, assembler=self._assembler)
                acknowledged.append(spec.step)
                self._put((spec, batch))
        self._sequencer.take(self._tower, acknowledged=tuple(acknowledged))

    def _batches(self, reader: int, pieces: Sequence[Piece]) -> Pending[tuple[Batch, ...]]:
        return self._readers[reader].batches(pieces)

    def _put(self, item: tuple[BatchSpec, Batch] | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=0.2)
                return
            except queue.Full:
                continue


def joined(pieces: Sequence[Batch], *, job: JobSpec, assembler: BatchAssembler) -> Batch:
    """A batch from its pieces; without any, one of no rows, with which a tower still takes part in the step's sums."""
    if pieces:
        return assembler.unite(pieces)
    no_keys = KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64))
    no_bags = Bags(np.empty(0, np.int32), np.zeros(1, np.int32))
    sequences = [
        sum(lookup.group == group and lookup.pooling is Pooling.NONE for lookup in job.lookups)
        for group in range(len(job.groups))
    ]
    return Batch(
        labels=np.empty(0, np.float32),
        weights=None,
        dense=np.empty((0, len(job.train.dense)), np.float32),
        groups=tuple(GroupBatch(no_keys, no_bags, (no_bags,) * count) for count in sequences),
        gauc_ids=None,
        tokens=tuple(np.empty((0, text.length), np.int32) for text in job.train.texts),
        tasks=np.empty((0, len(job.train.tasks)), np.float32) if job.train.tasks else None,
    )


def own_memory(batch: Batch) -> Batch:
    """A copy of a batch in this process's memory: arrays from the object store are read-only and pin their object."""
    return replace(
        batch,
        labels=np.array(batch.labels),
        weights=None if batch.weights is None else np.array(batch.weights),
        dense=np.array(batch.dense),
        gauc_ids=None if batch.gauc_ids is None else np.array(batch.gauc_ids),
        tokens=tuple(np.array(tokens) for tokens in batch.tokens),
        tasks=None if batch.tasks is None else np.array(batch.tasks),
        groups=tuple(
            GroupBatch(
                unique=KeySet(np.array(group.unique.tables), np.array(group.unique.keys)),
                pooled=_own_bags(group.pooled),
                sequences=tuple(_own_bags(bags) for bags in group.sequences),
            )
            for group in batch.groups
        ),
    )


def _own_bags(bags: Bags) -> Bags:
    return Bags(
        np.array(bags.local),
        None if bags.offsets is None else np.array(bags.offsets),
        None if bags.weights is None else np.array(bags.weights),
    )
