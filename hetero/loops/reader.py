"""A reader: parses the splits the sequencer gives it, keeps them while they are needed, cuts batches from them.

Consumes   splits                       (claims of the sequencer)
Produces   split reports; batches       (on request of a tower, by piece)
Waits for  the sequencer, when it is as far ahead as it may be
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hetero.data.parse import parse_split
from hetero.data.sources import split_order
from hetero.errors import ProtocolError
from hetero.keys.assemble import BatchAssembler, PreparedSplit
from hetero.keys.sequencer import Claim, HeldSplit, Sequencer, SplitId, Turn
from hetero.loops.protocols import SequencerForReader
from hetero.observe.spans import Span, SpanClock, SpanTotals
from hetero.records import START, Batch, Cursor, DataSpec, JobSpec, KeySet, Piece, ShareSpec, SplitRef, SplitReport


class Reader:
    """The splits one reader holds, between load and release. Loading and serving may run in different threads."""

    def __init__(self, job: JobSpec, *, index: int, data: DataSpec, splits: Sequence[SplitRef]) -> None:
        self.index = index
        self._data = data
        self._splits = splits
        self._load_clock = SpanClock()
        self._serve_clock = SpanClock()
        self._loader = BatchAssembler(job)
        self._server = BatchAssembler(job)
        self._lock = threading.Lock()
        self._held: dict[SplitId, PreparedSplit] = {}
        self._cut: dict[Piece, Batch] = {}

    def claim(self, sequencer: SequencerForReader) -> Claim:
        """What to read next; waits while enough is read ahead."""
        with self._load_clock.span(Span.WAIT_SEQUENCER):
            return sequencer.claim(self.index)

    def load(self, split: SplitId) -> SplitReport:
        """Parse a split and keep it. Raises DataError when it cannot be read."""
        with self._load_clock.span(Span.DATA_BATCH):
            parsed = parse_split(self._splits[split.position], spec=self._data, epoch=split.epoch)
            prepared = self._loader.prepare(parsed)
        with self._lock:
            self._held[split] = prepared
        return SplitReport.of(parsed)

    def release(self, splits: Sequence[SplitId]) -> None:
        """Drop splits no tower needs any more."""
        with self._lock:
            for split in splits:
                del self._held[split]

    def keys(self, piece: Piece) -> tuple[KeySet, ...]:
        """Unique rows of a piece, per group. Its batch is kept until `batch` asks for it."""
        batch = self._cut[piece] = self.batch(piece)
        return tuple(group.unique for group in batch.groups)

    def batch(self, piece: Piece) -> Batch:
        """The rows of a piece with their keys deduplicated. Raises ProtocolError for a split not held."""
        if piece in self._cut:
            return self._cut.pop(piece)
        split = SplitId(piece.epoch, piece.position)
        with self._lock:
            prepared = self._held.get(split)
        if prepared is None:
            raise ProtocolError(
                f"reader {self.index}: asked for rows {piece.start} to {piece.stop} of split {piece.position} of pass "
                f"{piece.epoch}, which it does not hold"
            )
        with self._serve_clock.span(Span.KEYS_WINDOW):
            return self._server.batch(prepared, piece.start, piece.stop)

    def spans(self) -> SpanTotals:
        """Seconds of loading and serving so far."""
        return self._load_clock.totals() + self._serve_clock.totals()

    def spans_so_far(self) -> SpanTotals:
        """The same without spans under way. Any thread may ask."""
        return self._load_clock.so_far() + self._serve_clock.so_far()


def advance(reader: Reader, sequencer: SequencerForReader) -> SplitId | Turn:
    """One turn of a reader: claim, drop what is spent, parse, report. Returns what the claim was."""
    claim = reader.claim(sequencer)
    reader.release(claim.release)
    if isinstance(claim.split, SplitId):
        sequencer.report(reader.index, reader.load(claim.split))
    return claim.split


def take_over(reader: Reader, sequencer: SequencerForReader, held: Sequence[HeldSplit]) -> None:
    """Hold what another reader held that is lost; report what it had not reported."""
    for entry in held:
        report = reader.load(entry.split)
        if not entry.reported:
            sequencer.report(reader.index, report)


def read_splits(reader: Reader, sequencer: SequencerForReader) -> None:
    """Read until the sequencer needs no more splits. Its answers may take a moment while there is nothing to do."""
    while advance(reader, sequencer) is not Turn.END:
        pass


def make_sequencer(
    job: JobSpec,
    *,
    data: DataSpec,
    splits: int,
    epochs: int,
    max_steps: int | None,
    towers: int,
    start: Cursor = START,
    shares: ShareSpec | None = None,
) -> Sequencer:
    """The sequencer of one pass or several over `splits` splits of `data`. shares: default, equal ones."""
    return Sequencer(
        splits=splits,
        order=lambda epoch: split_order(splits, spec=data, epoch=epoch),
        epochs=epochs,
        batch_size=job.batch_size,
        towers=towers,
        max_steps=max_steps,
        ahead=2 * job.readers.count,
        start=start,
        shares=shares,
        windowed=job.window != 0,
    )
