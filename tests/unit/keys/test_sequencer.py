"""The sequencer against a plain slicing of the joint stream of rows, under any interleaving of readers and towers."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import DataError, ProtocolError
from hetero.keys.sequencer import Claim, Sequencer, SplitId, Turn
from hetero.records import START, BatchSpec, Cursor, MalformedRow, SplitReport


@dataclass(frozen=True)
class Layout:
    """A job's input: rows of each split, and how it is trained."""

    rows: tuple[int, ...]
    epochs: int
    batch_size: int
    towers: int
    readers: int
    ahead: int
    max_steps: int | None


LAYOUTS = st.builds(
    Layout,
    rows=st.lists(st.integers(0, 12), min_size=1, max_size=7).map(tuple),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 20),
    towers=st.integers(1, 3),
    readers=st.integers(1, 3),
    ahead=st.integers(1, 6),
    max_steps=st.none() | st.integers(1, 8),
)


def order_of(layout: Layout, epoch: int) -> np.ndarray:
    return np.random.default_rng(epoch).permutation(len(layout.rows))


def expected(layout: Layout) -> list[list[list[tuple[int, int, int]]]]:
    """Per step and tower the rows (epoch, split, row), by slicing the written-out stream."""
    steps = []
    for epoch in range(layout.epochs):
        stream = [(epoch, int(p), row) for p in order_of(layout, epoch) for row in range(layout.rows[p])]
        for start in range(0, len(stream), layout.batch_size):
            batch = stream[start : start + layout.batch_size]
            cuts = [len(batch) * t // layout.towers for t in range(layout.towers + 1)]
            steps.append([batch[cuts[t] : cuts[t + 1]] for t in range(layout.towers)])
    return steps[: layout.max_steps]


def make(layout: Layout, start: Cursor = START) -> Sequencer:
    return Sequencer(
        splits=len(layout.rows),
        order=lambda epoch: order_of(layout, epoch),
        epochs=layout.epochs,
        batch_size=layout.batch_size,
        towers=layout.towers,
        max_steps=layout.max_steps,
        ahead=layout.ahead,
        start=start,
    )


def report_of(layout: Layout, split: SplitId, malformed: tuple[MalformedRow, ...] = ()) -> SplitReport:
    rows = layout.rows[split.position]
    return SplitReport(
        position=split.position,
        epoch=split.epoch,
        rows=rows,
        malformed=malformed,
        weight_prefix=np.arange(rows + 1, dtype=np.float64) / 2,
    )


class Play:
    """Readers and towers that act one at a time in a random order."""

    def __init__(self, layout: Layout, seed: int, start: Cursor = START) -> None:
        self.layout = layout
        self.sequencer = make(layout, start)
        self.claimed: list[SplitId] = []
        self.random = random.Random(seed)
        self.unreported: list[tuple[int, SplitId]] = []
        self.held: dict[SplitId, int] = {}
        self.most_held = 0
        self.unacknowledged: list[list[BatchSpec]] = [[] for _ in range(layout.towers)]
        self.got: list[list[BatchSpec]] = [[] for _ in range(layout.towers)]
        self.towers_ended: set[int] = set()
        self.readers_ended: set[int] = set()

    def run(self) -> None:
        for _ in range(20_000):
            if len(self.towers_ended) == self.layout.towers and len(self.readers_ended) == self.layout.readers:
                return
            self.random.choice([self.read, self.report, self.take])()
        pytest.fail("the sequencer does not come to an end")

    def read(self) -> None:
        reader = self.random.randrange(self.layout.readers)
        claim: Claim = self.sequencer.claim(reader)
        for split in claim.release:
            assert self.held.pop(split) == reader
        if claim.split is Turn.END:
            self.readers_ended.add(reader)
        elif isinstance(claim.split, SplitId):
            self.held[claim.split] = reader
            self.claimed.append(claim.split)
            self.most_held = max(self.most_held, len(self.held))
            self.unreported.append((reader, claim.split))

    def report(self) -> None:
        if self.unreported:
            reader, split = self.unreported.pop(self.random.randrange(len(self.unreported)))
            self.sequencer.report(reader, report_of(self.layout, split))

    def take(self) -> None:
        tower = self.random.randrange(self.layout.towers)
        copied = self.unacknowledged[tower] if self.random.random() < 0.5 else []
        turn = self.sequencer.take(tower, acknowledged=[spec.step for spec in copied])
        if copied:
            self.unacknowledged[tower] = []
        if turn is Turn.END:
            self.towers_ended.add(tower)
        elif isinstance(turn, BatchSpec):
            for piece in turn.pieces:
                assert self.held[SplitId(piece.epoch, piece.position)] == piece.reader
            self.unacknowledged[tower].append(turn)
            self.got[tower].append(turn)


@settings(max_examples=150, deadline=None)
@given(layout=LAYOUTS, seed=st.integers(0, 10_000))
def test_batches_are_slices_of_the_joint_stream(layout: Layout, seed: int) -> None:
    play = Play(layout, seed)
    play.run()
    want = expected(layout)
    for tower in range(layout.towers):
        assert rows_of(play.got[tower]) == [step[tower] for step in want]
        assert [spec.step for spec in play.got[tower]] == list(range(len(want)))
        for spec, step in zip(play.got[tower], want, strict=True):
            assert spec.weight_sum == 0.5 * sum(len(part) for part in step)


def rows_of(specs: list[BatchSpec]) -> list[list[tuple[int, int, int]]]:
    return [
        [(piece.epoch, piece.position, row) for piece in spec.pieces for row in range(piece.start, piece.stop)]
        for spec in specs
    ]


@settings(max_examples=150, deadline=None)
@given(layout=LAYOUTS, other=LAYOUTS, seed=st.integers(0, 10_000), data=st.data())
def test_a_sequencer_that_begins_at_a_cursor_cuts_the_steps_after_it(
    layout: Layout, other: Layout, seed: int, data: st.DataObject
) -> None:
    """Whatever the numbers of towers and readers on both sides; splits wholly behind the cursor are not claimed."""
    first = Play(layout, seed)
    first.run()
    specs = first.got[0]
    cut = data.draw(st.integers(0, len(specs)))
    start = specs[cut - 1].after if cut else START
    assert start.step == cut
    after = replace(layout, towers=other.towers, readers=other.readers, ahead=other.ahead)
    play = Play(after, seed + 1, start)
    play.run()
    want = expected(after)[cut:]
    for tower in range(after.towers):
        assert rows_of(play.got[tower]) == [step[tower] for step in want]
        assert [spec.step for spec in play.got[tower]] == list(range(cut, cut + len(want)))
    for spec, same in zip(play.got[0], specs[cut:], strict=True):  # empty splits may be passed a little later
        assert (spec.after.step, spec.after.rows, spec.after.row) == (same.after.step, same.after.rows, same.after.row)
    behind = [(epoch, int(position)) for epoch in range(layout.epochs) for position in order_of(layout, epoch)]
    assert not set(behind[: start.splits]) & {(split.epoch, split.position) for split in play.claimed}
    if layout.max_steps is None:
        assert play.sequencer.drain_quality().rows_read == sum(layout.rows)


def test_files_with_fewer_rows_than_were_used_are_refused() -> None:
    layout = Layout(rows=(4, 4), epochs=1, batch_size=4, towers=1, readers=1, ahead=2, max_steps=None)
    sequencer = make(layout, Cursor(step=1, splits=1, row=5, rows=9))
    split = sequencer.claim(0).split
    assert isinstance(split, SplitId)
    with pytest.raises(DataError, match="4 good rows, 5 of them were trained"):
        sequencer.report(0, report_of(layout, split))


def test_after_a_stop_everybody_is_told_the_end() -> None:
    layout = Layout(rows=(4, 4), epochs=1, batch_size=4, towers=1, readers=1, ahead=2, max_steps=None)
    sequencer = make(layout)
    split = sequencer.claim(0).split
    assert isinstance(split, SplitId)
    sequencer.report(0, report_of(layout, split))
    assert isinstance(sequencer.take(0), BatchSpec)
    sequencer.stop()
    assert sequencer.claim(0).split is Turn.END
    assert sequencer.take(0) is Turn.END


def test_pieces_stay_until_acknowledged_and_go_then() -> None:
    layout = Layout(rows=(4, 4), epochs=1, batch_size=4, towers=1, readers=1, ahead=2, max_steps=None)
    sequencer = make(layout)
    for _ in range(2):
        split = sequencer.claim(0).split
        assert isinstance(split, SplitId)
        sequencer.report(0, report_of(layout, split))
    first = sequencer.take(0)
    assert isinstance(first, BatchSpec)
    assert sequencer.claim(0) == Claim(Turn.WAIT, ())
    second = sequencer.take(0, acknowledged=[first.step])
    assert isinstance(second, BatchSpec)
    assert sequencer.claim(0).release == (SplitId(0, first.pieces[0].position),)


def test_readers_stay_within_the_credit() -> None:
    layout = Layout(rows=(4,) * 8, epochs=1, batch_size=4, towers=1, readers=1, ahead=3, max_steps=None)
    sequencer = make(layout)
    claims = [sequencer.claim(0).split for _ in range(5)]
    assert [isinstance(claim, SplitId) for claim in claims] == [True, True, True, False, False]


def test_credit_gives_way_when_a_batch_needs_more_splits() -> None:
    layout = Layout(rows=(1,) * 6, epochs=1, batch_size=6, towers=1, readers=1, ahead=1, max_steps=None)
    play = Play(layout, seed=0)
    play.run()
    assert [spec.rows for spec in play.got[0]] == [6]


def test_reports_out_of_protocol_are_refused() -> None:
    layout = Layout(rows=(4,), epochs=1, batch_size=4, towers=1, readers=2, ahead=2, max_steps=None)
    sequencer = make(layout)
    split = sequencer.claim(0).split
    assert isinstance(split, SplitId)
    with pytest.raises(ProtocolError, match="reader 1 reported split 0"):
        sequencer.report(1, report_of(layout, split))
    sequencer.report(0, report_of(layout, split))
    with pytest.raises(ProtocolError, match="does not hold unreported"):
        sequencer.report(0, report_of(layout, split))
    with pytest.raises(ProtocolError, match="acknowledged step 3"):
        sequencer.take(0, acknowledged=[3])


def test_malformed_rows_of_the_first_pass_are_handed_out_once() -> None:
    layout = Layout(rows=(2,), epochs=2, batch_size=2, towers=1, readers=1, ahead=2, max_steps=None)
    sequencer = make(layout)
    bad = MalformedRow(path="a.csv", split_start=0, line=3, reason="label 7")
    for _ in range(2):
        split = sequencer.claim(0).split
        assert isinstance(split, SplitId)
        sequencer.report(0, report_of(layout, split, malformed=(bad,)))
    quality = sequencer.drain_quality()
    assert (quality.rows_read, quality.malformed) == (3, (bad,))
    assert sequencer.drain_quality().malformed == ()


def test_steps_are_estimated_from_the_splits_read() -> None:
    layout = Layout(rows=(10, 10), epochs=2, batch_size=8, towers=1, readers=1, ahead=2, max_steps=None)
    sequencer = make(layout)
    assert sequencer.estimated_steps() is None
    split = sequencer.claim(0).split
    assert isinstance(split, SplitId)
    sequencer.report(0, report_of(layout, split))
    assert sequencer.estimated_steps() == 6
