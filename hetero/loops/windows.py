"""Windows from the sequencer's batches: cut K steps for all towers, learn their keys, build every tower's part.

Consumes   batch specs of all towers; unique keys of their pieces (from the readers that hold them)
Produces   TowerWindows, in order, the last one without steps
Waits for  the sequencer (more batches), readers (keys)
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from hetero.exchange.messages import Done, Pending
from hetero.exchange.window_size import WindowSize
from hetero.keys.assemble import BatchAssembler
from hetero.keys.dedup import Deduplicator
from hetero.keys.sequencer import Sequencer, Turn
from hetero.keys.windows import TowerWindow, WindowBuilder
from hetero.loops.batches import joined
from hetero.loops.pieces import PiecesAsked
from hetero.loops.protocols import KeyReader, WindowSequencer
from hetero.loops.reader import Reader, advance
from hetero.records import Batch, BatchSpec, JobSpec, KeySet, Piece

Item = TypeVar("Item")

_SHORT_S = 0.2
_MOST_PIECES = 16
"""Pieces whose keys are asked for at once, so that an answer stays small."""


def united_keys(pieces: Sequence[Sequence[KeySet]], *, groups: int, dedup: Deduplicator) -> tuple[KeySet, ...]:
    """Unique keys of a batch from those of its pieces, per group, in the order `BatchAssembler.unite` gives them."""
    if len(pieces) == 1:
        return tuple(pieces[0])
    if not pieces:
        return (KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64)),) * groups
    return tuple(
        dedup(
            np.concatenate([piece[group].tables for piece in pieces]),
            np.concatenate([piece[group].keys for piece in pieces]),
        )[0]
        for group in range(groups)
    )


class WindowCutter:
    """Builds windows from a sequencer and the keys that readers give; `build` is called by one thread.

    next_spec: the next batch of a tower, waiting for it; None at the end. size: says how many steps to cut. begin: told
    before the first step of every window is cut.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        next_spec: Callable[[int], BatchSpec | None],
        readers: Sequence[KeyReader],
        size: WindowSize,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._job = job
        self._size = size
        self._begin = begin
        self._next_spec = next_spec
        self._readers = readers
        self._builder = WindowBuilder(job)
        self._dedup = Deduplicator()
        self._held: list[BatchSpec] | None = None  # cut, and waiting for a flush before it
        self._flushed: int | None = None

    def build(self) -> tuple[TowerWindow, ...]:
        """The next window, per tower; without steps where a day begins and at the end.

        Raises CapacityError when it does not fit.
        """
        specs: list[list[BatchSpec]] = []
        asked: list[list[list[Callable[[], tuple[KeySet, ...]]]]] = []
        asking = PiecesAsked(self._keys, most=_MOST_PIECES)
        steps = self._size.steps
        if self._held is None:
            self._begin()
        while len(specs) < steps and (cut := self._next_step()) is not None:
            if self._begins_day(cut[0].step):
                self._held = cut
                if not specs:
                    self._flushed = cut[0].step
                    return self._builder.build([], [], flush=self._flushed)
                break
            specs.append(cut)
            asked.append([[asking.add(piece) for piece in spec.pieces] for spec in cut])
        asking.send()
        keys = [
            [
                united_keys([keys_of() for keys_of in pieces], groups=len(self._job.groups), dedup=self._dedup)
                for pieces in step_pieces
            ]
            for step_pieces in asked
        ]
        windows = self._builder.build(specs, keys)
        self._size.built(windows)
        return windows

    def _keys(self, reader: int, pieces: Sequence[Piece]) -> Pending[tuple[tuple[KeySet, ...], ...]]:
        return self._readers[reader].keys(pieces)

    def _next_step(self) -> list[BatchSpec] | None:
        """The batches of all towers of the next step, None at the end."""
        if self._held is not None:
            held, self._held = self._held, None
            return held
        step = [self._next_spec(tower) for tower in range(self._job.towers.count)]
        cut = [spec for spec in step if spec is not None]
        return cut if len(cut) == len(step) else None

    def _begins_day(self, step: int) -> bool:
        """Whether everything has to be given back before a step, and has not been."""
        return self._job.clock is not None and self._job.clock.begins_day(step) and self._flushed != step


class WindowFeed:
    """A tower's windows, fetched ahead by a background thread: specs for the batch stream, windows for leasing.

    The thread does RPC only. What fails in it is raised where windows or specs are consumed.
    """

    def __init__(self, *, tower: int, sequencer: WindowSequencer) -> None:
        self._tower = tower
        self._sequencer = sequencer
        self._windows: queue.Queue[TowerWindow | BaseException] = queue.Queue()
        self._room = threading.Semaphore(1)  # for a window with steps; others are no load, and what follows may be due
        self._specs: queue.Queue[BatchSpec | BaseException | None] = queue.Queue()
        self._acknowledged: queue.Queue[int] = queue.Queue()
        self._crossed: queue.Queue[float] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"windows-{tower}", daemon=True)
        self._thread.start()

    def take(self, tower: int, *, acknowledged: Sequence[int]) -> BatchSpec | Turn:
        """A `SequencerForTower`: the next batch of the windows that are here."""
        for step in acknowledged:
            self._acknowledged.put(step)
        try:
            spec = self._specs.get(timeout=_SHORT_S)
        except queue.Empty:
            return Turn.WAIT
        if isinstance(spec, BaseException):
            raise spec
        if spec is None:
            self._specs.put(None)
            self._sequencer.take_window(tower, acknowledged=_drained(self._acknowledged), crossed=None)
            return Turn.END
        return spec

    def next_window(self) -> TowerWindow | None:
        return self._taken(self._windows.get())

    def window_here(self) -> TowerWindow | None:
        try:
            return self._taken(self._windows.get_nowait())
        except queue.Empty:
            return None

    def crossed(self, share: float) -> None:
        """Tell the sequencer, with the next window that is taken."""
        self._crossed.put(share)

    def close(self) -> None:
        """Stop the background thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if not self._room.acquire(timeout=_SHORT_S):
                    continue
                crossed = max(_drained(self._crossed), default=None)
                turn = self._sequencer.take_window(
                    self._tower, acknowledged=_drained(self._acknowledged), crossed=crossed
                )
                if turn is Turn.END:
                    break
                if isinstance(turn, TowerWindow):
                    for spec in turn.specs:
                        self._specs.put(spec)
                    self._windows.put(turn)
                if not isinstance(turn, TowerWindow) or not turn.specs:
                    self._room.release()
            self._specs.put(None)
        except BaseException as error:  # handed to the threads that consume
            self._specs.put(error)
            self._windows.put(error)

    def _taken(self, window: TowerWindow | BaseException) -> TowerWindow:
        if isinstance(window, BaseException):
            raise window
        if window.specs:
            self._room.release()
        return window


def _drained(queued: queue.Queue[Item]) -> tuple[Item, ...]:
    """What is in a queue that only this thread empties."""
    items = []
    while not queued.empty():
        items.append(queued.get())
    return tuple(items)


class LocalKeys:
    """A reader in this process, as a KeyReader."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def keys(self, pieces: Sequence[Piece]) -> Pending[tuple[tuple[KeySet, ...], ...]]:
        return Done(tuple(self._reader.keys(piece) for piece in pieces))


class InlineWindows:
    """Windows and batches of one tower in one process: readers, sequencer and builder run when either is asked for.

    Leasing asks for a window before the one before it is trained, so batches wait here for up to two windows.
    """

    def __init__(self, job: JobSpec, sequencer: Sequencer, readers: Sequence[Reader], *, tower: int = 0) -> None:
        self._job = job
        self._sequencer = sequencer
        self._readers = readers
        self._tower = tower
        self._assembler = BatchAssembler(job)
        self.size = WindowSize(job)
        keys = [LocalKeys(reader) for reader in readers]
        self._cutter = WindowCutter(job, next_spec=self._next_spec, readers=keys, size=self.size)
        self._windows: deque[TowerWindow] = deque()
        self._batches: deque[tuple[BatchSpec, Batch]] = deque()
        self._ended = False

    def next_window(self) -> TowerWindow | None:
        return self._windows.popleft() if self._windows or self._build() else None

    def window_here(self) -> TowerWindow | None:
        return self.next_window()

    def crossed(self, share: float) -> None:
        self.size.crossed(share)

    def __iter__(self) -> Iterator[tuple[BatchSpec, Batch]]:
        while self._batches or self._build():
            if self._batches:
                yield self._batches.popleft()

    def close(self) -> None:
        """Nothing runs in the background."""

    def _build(self) -> bool:
        """One more window; False after the last."""
        if self._ended:
            return False
        window = self._cutter.build()[self._tower]
        self._ended = window.is_last
        self._windows.append(window)
        self._batches.extend((spec, self._batch(spec)) for spec in window.specs)
        return True

    def _next_spec(self, tower: int) -> BatchSpec | None:
        while (turn := self._sequencer.take(tower)) is Turn.WAIT:
            for reader in self._readers:
                advance(reader, self._sequencer)
        if isinstance(turn, BatchSpec):
            return turn
        return None

    def _batch(self, spec: BatchSpec) -> Batch:
        pieces = [self._readers[piece.reader].batch(piece) for piece in spec.pieces]
        batch = joined(pieces, job=self._job, assembler=self._assembler)
        self._sequencer.acknowledge(spec.tower, spec.step)
        return batch
