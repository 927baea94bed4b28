"""Another reader in the place of a lost one: it holds what is needed, and batches are those of a run without a loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.keys.sequencer import Sequencer, SplitId, Turn
from hetero.records import BatchSpec, Piece, SplitReport

BATCH = 7


class Readers:
    """Readers that hold splits, of which any may be lost."""

    def __init__(self, sizes: list[int], *, readers: int, seed: int) -> None:
        self.sizes = sizes
        self.held: list[set[SplitId]] = [set() for _ in range(readers)]
        self.late: list[SplitId | None] = [None] * readers
        self.random = np.random.default_rng(seed)
        self.sequencer = Sequencer(
            splits=len(sizes),
            order=lambda epoch: np.random.default_rng(epoch).permutation(len(sizes)),
            epochs=2,
            batch_size=BATCH,
            towers=1,
            max_steps=None,
            ahead=2 * readers,
        )

    def advance(self, reader: int) -> None:
        """Claim or report: at times a reader is lost between the two."""
        split = self.late[reader]
        if split is not None:
            self.held[reader].add(split)
            self.sequencer.report(reader, self.report(split))
            self.late[reader] = None
            return
        claim = self.sequencer.claim(reader)
        for spent in claim.release:
            self.held[reader].remove(spent)
        self.late[reader] = claim.split if isinstance(claim.split, SplitId) else None

    def lose(self, reader: int) -> None:
        """It is gone with all it held; another takes over."""
        self.held[reader], self.late[reader] = set(), None
        for entry in self.sequencer.take_over(reader):
            self.held[reader].add(entry.split)
            if not entry.reported:
                self.sequencer.report(reader, self.report(entry.split))

    def report(self, split: SplitId) -> SplitReport:
        return SplitReport(
            epoch=split.epoch,
            position=split.position,
            rows=self.sizes[split.position],
            malformed=(),
            weight_prefix=None,
        )

    def batches(self, *, losses: float) -> list[tuple[Piece, ...]]:
        """All batches; in every turn a reader is lost with probability `losses`."""
        taken: list[tuple[Piece, ...]] = []
        acknowledged: tuple[int, ...] = ()
        while (turn := self.sequencer.take(0, acknowledged=acknowledged)) is not Turn.END:
            acknowledged = ()
            if self.random.random() < losses:
                self.lose(int(self.random.integers(len(self.held))))
            if isinstance(turn, BatchSpec):
                for piece in turn.pieces:
                    assert SplitId(piece.epoch, piece.position) in self.held[piece.reader]
                taken.append(turn.pieces)
                acknowledged = (turn.step,)
            else:
                self.advance(int(self.random.integers(len(self.held))))
        return taken


def rows(batches: list[tuple[Piece, ...]]) -> list[list[tuple[int, int, int]]]:
    return [[(p.epoch, p.position, row) for p in pieces for row in range(p.start, p.stop)] for pieces in batches]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 3), st.integers(0, 2**31))
def test_batches_are_the_same_whoever_is_lost(sizes: list[int], readers: int, seed: int) -> None:
    undisturbed = Readers(sizes, readers=1, seed=0).batches(losses=0.0)
    assert rows(Readers(sizes, readers=readers, seed=seed).batches(losses=0.3)) == rows(undisturbed)


def test_what_is_taken_over_is_what_is_held_and_nothing_is_released_to_it_twice() -> None:
    readers = Readers([BATCH] * 3, readers=1, seed=0)
    readers.advance(0)
    readers.advance(0)
    readers.advance(0)  # claimed, and not reported
    held = readers.sequencer.take_over(0)
    assert [entry.reported for entry in held] == [True, False]
    turn = readers.sequencer.take(0)
    assert isinstance(turn, BatchSpec)
    readers.sequencer.acknowledge(0, turn.step)
    assert len(readers.sequencer.take_over(0)) == 1
    assert readers.sequencer.claim(0).release == ()


@pytest.mark.parametrize("reader", [0, 1])
def test_nothing_is_taken_over_from_one_who_held_nothing(reader: int) -> None:
    assert Readers([4], readers=2, seed=0).sequencer.take_over(reader) == ()
