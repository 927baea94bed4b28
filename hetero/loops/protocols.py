"""What the loops need of the other roles. Each has an implementation in this process and one over actors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Protocol

from hetero.exchange.messages import Pending
from hetero.keys.sequencer import Claim, Turn
from hetero.keys.windows import TowerWindow
from hetero.records import Batch, BatchSpec, KeySet, Piece, SplitReport


class Phase(Enum):
    """What a pass over data is for: TRAIN changes the model, TEST scores rows with it."""

    TRAIN = "train"
    TEST = "test"


class Cut(Enum):
    """What all towers do after a step: nothing, let buckets move between servers and go on, settle what a snapshot
    holds and go on, or settle it and end."""

    NONE = "none"
    MOVE = "move"
    SNAPSHOT = "snapshot"
    STOP = "stop"


class SequencerForReader(Protocol):
    """The sequencer as a reader sees it."""

    def claim(self, reader: int) -> Claim: ...

    def report(self, reader: int, report: SplitReport) -> None: ...


class SequencerForTower(Protocol):
    """The sequencer as a tower sees it."""

    def take(self, tower: int, *, acknowledged: Sequence[int]) -> BatchSpec | Turn:
        """The next batch, after noting the steps whose rows this tower has copied."""


class WindowSequencer(Protocol):
    """The sequencer as a tower sees it that leases rows."""

    def take_window(self, tower: int, *, acknowledged: Sequence[int], crossed: float | None) -> TowerWindow | Turn:
        """The tower's part of the next window, after noting the steps whose rows it has copied.

        crossed: share of its time that a boundary took, when it crossed one since the last call.
        """


class KeyReader(Protocol):
    """A reader as the sequencer sees it that builds windows."""

    def keys(self, pieces: Sequence[Piece]) -> Pending[tuple[tuple[KeySet, ...], ...]]:
        """Unique rows of pieces of one split, per group; the reader keeps their batches until a tower asks for them."""


class ReaderForTower(Protocol):
    """A reader as a tower sees it."""

    def batches(self, pieces: Sequence[Piece]) -> Pending[tuple[Batch, ...]]:
        """The batches of pieces of one split."""


class BatchStream(Protocol):
    """Batches of one tower in step order."""

    def __iter__(self) -> Iterator[tuple[BatchSpec, Batch]]: ...

    def close(self) -> None: ...
