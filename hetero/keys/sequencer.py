"""The sequencer: decides which rows every batch of every tower holds. It sees row counts, never row payloads.

Consumes   reports of parsed splits, in any order, from any number of readers
Produces   batch specs per tower, in step order; claims that say which split to parse next; releases of splits
Waits for  nobody: every call answers at once, with `Turn.WAIT` where there is nothing yet

The rows of a pass form one stream: the splits in the pass's order, each split's good rows in its own order. Step s
takes the next `batch_size` rows of that stream, the last step of a pass what is left. Tower t of T gets rows
[n * t // T, n * (t + 1) // T) of a batch of n rows, or as its part says. So batches are a pure function of (files,
seed, batch size), and what a tower gets of them is one of these and of the log of changed parts.

Splits leave the stream in its order. So a `Cursor` says where it stands after a step by how many have left and by the
rows used of the next one, and a sequencer that begins at a cursor has the splits behind it neither read nor parsed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hetero.errors import DataError, ProtocolError
from hetero.keys.division import Division
from hetero.records import F64, I64, START, BatchSpec, Cursor, MalformedRow, Piece, ShareSpec, SplitReport


class Turn(Enum):
    """An answer without content: ask again later, or there will be no more."""

    WAIT = "wait"
    END = "end"


@dataclass(frozen=True, slots=True)
class SplitId:
    """One split of one pass."""

    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What a reader does next: drop the splits in `release`, then parse `split`, or wait, or end."""

    split: SplitId | Turn
    release: tuple[SplitId, ...]


@dataclass(frozen=True, slots=True)
class HeldSplit:
    """A split between its claim and its release. reported: whether its row count is known."""

    split: SplitId
    reported: bool


@dataclass(frozen=True, slots=True)
class InputQuality:
    """rows_read: good and malformed rows of the first pass so far. malformed: those not handed out before."""

    rows_read: int
    malformed: tuple[MalformedRow, ...]


@dataclass(slots=True)
class _Held:
    """A split between its claim and its release."""

    reader: int
    assigned: int = 0
    rows: int = -1
    malformed: int = 0
    weight_prefix: F64 | None = None
    readings: int = 0  # pieces cut from it that no tower has acknowledged yet
    left: bool = False  # the stream

    @property
    def reported(self) -> bool:
        return self.rows >= 0

    @property
    def spent(self) -> bool:
        return self.left and self.readings == 0


@dataclass(slots=True)
class _Queue:
    """One tower's batches: cut but not taken, and taken but not acknowledged."""

    cut: deque[BatchSpec] = field(default_factory=deque)
    taken: dict[int, BatchSpec] = field(default_factory=dict)


class Sequencer:
    """Cuts the joint stream of rows into batches; see the module's docstring for the order.

    splits: number of splits of a pass. order: gives the split positions of a pass in reading order, int64 [splits].
    ahead: at most this many splits are claimed and not yet released, unless the next batch needs more.
    start: where to begin, as `BatchSpec.after` of the step before. shares: how batches are divided among towers.
    windowed: whether other parts are taken where `begin_window` says, instead of with the next step.
    """

    def __init__(
        self,
        *,
        splits: int,
        order: Callable[[int], I64],
        epochs: int,
        batch_size: int,
        towers: int,
        max_steps: int | None,
        ahead: int,
        start: Cursor = START,
        shares: ShareSpec | None = None,
        windowed: bool = False,
    ) -> None:
        self.division = Division(shares or ShareSpec(), towers=towers, step=start.step, windowed=windowed)
        self._splits = splits
        self._order = order
        self._epochs = epochs
        self._batch_size = batch_size
        self._max_steps = max_steps
        self._ahead = ahead
        self._held: dict[SplitId, _Held] = {}
        self._stream: deque[SplitId] = deque()  # claimed, in stream order, not fully assigned
        self._to_claim: deque[SplitId] = deque()
        self._passes_opened = start.splits // splits if splits else 0
        self._begin_inside(start)
        self._release: dict[int, list[SplitId]] = {}
        self._queues = [_Queue() for _ in range(towers)]
        self._stopped = False
        self._step = start.step
        self._rows_cut = start.rows
        self._row_of_first = start.row
        self._splits_left = start.splits
        self._read_of_left = start.read
        self._malformed_of_left = start.malformed
        self._reported_rows = start.rows - start.row
        self._reported_splits = start.splits
        self._malformed: list[MalformedRow] = []
        self._first_pass_rows = start.read

    # ------------------------------------------------------------------------------------------ readers

    def claim(self, reader: int) -> Claim:
        """What `reader` parses next, and which of its splits nobody needs any more."""
        release = tuple(self._release.pop(reader, ()))
        if self._stopped:
            return Claim(Turn.END, ())
        if self.all_cut:
            return Claim(Turn.WAIT if self._is_read_from(reader) else Turn.END, release)
        split = self._next_unclaimed()
        if split is None or (len(self._held) >= self._ahead and not self._starving()):
            return Claim(Turn.WAIT, release)
        self._to_claim.popleft()
        self._held[split] = _Held(reader=reader, assigned=self._row_of_first)
        self._row_of_first = 0
        self._stream.append(split)
        return Claim(split, release)

    def report(self, reader: int, report: SplitReport) -> None:
        """A reader has parsed a split it claimed.

        Raises ProtocolError for one it did not claim, or twice, and DataError when it has fewer rows than were used.
        """
        split = SplitId(report.epoch, report.position)
        held = self._held.get(split)
        if held is None or held.reader != reader or held.reported:
            raise ProtocolError(
                f"sequencer: reader {reader} reported split {report.position} of pass {report.epoch}, "
                "which it does not hold unreported"
            )
        if report.rows < held.assigned:
            raise DataError(
                f"split {report.position} of the training data has {report.rows} good rows, {held.assigned} of them "
                "were trained before this run was resumed: the files have changed; restore them, or train anew"
            )
        held.rows = report.rows
        held.malformed = len(report.malformed)
        held.weight_prefix = report.weight_prefix
        self._reported_rows += report.rows
        self._reported_splits += 1
        if report.epoch == 0:
            self._first_pass_rows += report.rows + len(report.malformed)
            self._malformed += report.malformed
        self._let_used_leave()

    def take_over(self, reader: int) -> tuple[HeldSplit, ...]:
        """What another in the place of `reader` must hold, in the order of claims; it holds nothing else."""
        self._release.pop(reader, None)
        return tuple(
            HeldSplit(split, reported=held.reported) for split, held in self._held.items() if held.reader == reader
        )

    # ------------------------------------------------------------------------------------------ towers

    def take(self, tower: int, *, acknowledged: Sequence[int] = ()) -> BatchSpec | Turn:
        """The next batch of `tower`, in step order.

        acknowledged: steps of which the tower now holds its own copy, so that their pieces need not be kept for it.
        Raises ProtocolError for a step it has not taken.
        """
        if self._stopped:
            return Turn.END
        for step in acknowledged:
            self.acknowledge(tower, step)
        queue = self._queues[tower]
        if not queue.cut and not self._cut():
            return Turn.END if self.all_cut else Turn.WAIT
        spec = queue.cut.popleft()
        queue.taken[spec.step] = spec
        return spec

    def acknowledge(self, tower: int, step: int) -> None:
        """`tower` holds its own copy of the rows of `step`. Raises ProtocolError for a step it has not taken."""
        spec = self._queues[tower].taken.pop(step, None)
        if spec is None:
            raise ProtocolError(f"sequencer: tower {tower} acknowledged step {step}, which it has not taken")
        for piece in spec.pieces:
            split = SplitId(piece.epoch, piece.position)
            self._held[split].readings -= 1
            self._drop_spent(split)

    def stop(self) -> None:
        """Nobody needs another batch, nor those that were cut: every call but those under way says END."""
        self._stopped = True

    # ------------------------------------------------------------------------------------------ state

    @property
    def all_cut(self) -> bool:
        """Whether no further batch will be cut."""
        if self._max_steps is not None and self._step >= self._max_steps:
            return True
        return self._next_unclaimed() is None and not self._stream

    @property
    def steps_cut(self) -> int:
        return self._step

    def estimated_steps(self) -> int | None:
        """Steps of the whole run: exact once a pass has been read, before that by the mean rows of a split."""
        if not self._reported_splits:
            return self._max_steps
        rows_of_pass = self._reported_rows * self._splits / self._reported_splits
        steps = self._epochs * -int(-rows_of_pass // self._batch_size)
        return steps if self._max_steps is None else min(steps, self._max_steps)

    def drain_quality(self) -> InputQuality:
        """Rows of the first pass read so far, and its malformed rows since the last call."""
        malformed, self._malformed = tuple(self._malformed), []
        return InputQuality(rows_read=self._first_pass_rows, malformed=malformed)

    def waiting_for(self) -> tuple[int, ...]:
        """Readers that hold claimed splits they have not reported, in the order of need."""
        return tuple(dict.fromkeys(self._held[s].reader for s in self._stream if not self._held[s].reported))

    # ------------------------------------------------------------------------------------------ inside

    def _next_unclaimed(self) -> SplitId | None:
        if not self._to_claim and self._passes_opened < self._epochs and self._splits:
            epoch = self._passes_opened
            self._to_claim.extend(SplitId(epoch, int(position)) for position in self._order(epoch))
            self._passes_opened += 1
        return self._to_claim[0] if self._to_claim else None

    def _starving(self) -> bool:
        """Every claimed split is reported, and still the next batch cannot be cut."""
        return all(self._held[split].reported for split in self._stream) and self._available()[0] == 0

    def _available(self) -> tuple[int, int]:
        """Rows of the next batch that can be cut now (0: not yet), and the pass it belongs to."""
        rows = 0
        if not self._stream:
            return 0, -1
        epoch = self._stream[0].epoch
        for split in self._stream:
            held = self._held[split]
            if split.epoch != epoch:
                return rows, epoch
            if not held.reported:
                return 0, epoch
            rows += held.rows - held.assigned
            if rows >= self._batch_size:
                return self._batch_size, epoch
        pass_complete = not self._to_claim or self._to_claim[0].epoch != epoch
        return (rows if pass_complete else 0), epoch

    def _cut(self) -> bool:
        """Cut one step for all towers; False when its rows are not known yet or none are left."""
        if self._max_steps is not None and self._step >= self._max_steps:
            return False
        rows, _ = self._available()
        if rows == 0:
            return False
        parts: list[tuple[Piece, ...]] = []
        weight_sum = 0.0
        for count in self.division.counts(rows, step=self._step):
            pieces, weight = self._assign(count)
            parts.append(pieces)
            weight_sum += weight
        step, self._step = self._step, self._step + 1
        self._rows_cut += rows
        after = self._cursor()
        for tower, pieces in enumerate(parts):
            spec = BatchSpec(step=step, tower=tower, pieces=pieces, weight_sum=weight_sum, after=after)
            self._queues[tower].cut.append(spec)
        return True

    def _assign(self, rows: int) -> tuple[tuple[Piece, ...], float]:
        pieces: list[Piece] = []
        weight_sum = 0.0
        while rows:
            split = self._stream[0]
            held = self._held[split]
            take = min(rows, held.rows - held.assigned)
            start, stop = held.assigned, held.assigned + take
            if take:
                pieces.append(Piece(held.reader, split.epoch, split.position, start, stop))
                prefix = held.weight_prefix
                weight_sum += float(take) if prefix is None else float(prefix[stop] - prefix[start])
                held.assigned = stop
                held.readings += 1
                rows -= take
            self._let_used_leave()
        return tuple(pieces), weight_sum

    def _cursor(self) -> Cursor:
        """Where the stream stands now, between two steps."""
        return Cursor(
            step=self._step,
            splits=self._splits_left,
            row=self._held[self._stream[0]].assigned if self._stream else 0,
            rows=self._rows_cut,
            read=self._read_of_left,
            malformed=self._malformed_of_left,
        )

    def _begin_inside(self, start: Cursor) -> None:
        """Open the pass that `start` lies in, without the splits behind it."""
        behind = start.splits % self._splits if self._splits else 0
        if behind or start.row:
            order = self._order(self._passes_opened)
            self._to_claim.extend(SplitId(self._passes_opened, int(position)) for position in order[behind:])
            self._passes_opened += 1

    def _let_used_leave(self) -> None:
        """Splits at the front of the stream of which every row is in a batch leave it."""
        while self._stream:
            split = self._stream[0]
            held = self._held[split]
            if not held.reported or held.assigned < held.rows:
                return
            self._stream.popleft()
            self._splits_left += 1
            if split.epoch == 0:
                self._read_of_left += held.rows + held.malformed
                self._malformed_of_left += held.malformed
            held.left = True
            self._drop_spent(split)

    def _drop_spent(self, split: SplitId) -> None:
        held = self._held[split]
        if held.spent:
            del self._held[split]
            self._release.setdefault(held.reader, []).append(split)

    def _is_read_from(self, reader: int) -> bool:
        return any(held.reader == reader and held.readings for held in self._held.values())
