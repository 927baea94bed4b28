"""The rule that divides batches by speed: where it comes to rest, what it leaves alone, and sequencers that obey."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import ProtocolError
from hetero.keys.sequencer import Sequencer, SplitId
from hetero.loops.shares import MORE_THAN, ShareRule, TowerPace, going_on, parts_at, whole_parts
from hetero.records import BatchSpec, SharesFrom, ShareSpec, SplitReport

BATCH = 4096


class EmulatedTowers:
    """Towers whose steps take fixed_s + rows x row_s, give or take `noise`."""

    def __init__(self, fixed_s: Sequence[float], row_s: Sequence[float], *, noise: float = 0.0) -> None:
        self.fixed_s, self.row_s = list(fixed_s), list(row_s)
        self.parts = whole_parts([1.0] * len(row_s), total=BATCH)
        self._noise = noise
        self._random = np.random.default_rng(0)
        self._paces = [TowerPace(step=0, rows=0, busy_s=0.0)] * len(row_s)

    def seconds(self, parts: Sequence[float]) -> list[float]:
        return [f + part * r for f, r, part in zip(self.fixed_s, self.row_s, parts, strict=True)]

    def go_on(self, steps: int) -> list[TowerPace]:
        for tower, seconds in enumerate(self.seconds(self.parts)):
            pace = self._paces[tower]
            slower = 1 + self._noise * float(self._random.uniform(-1, 1))
            self._paces[tower] = TowerPace(
                step=pace.step + steps,
                rows=pace.rows + steps * self.parts[tower],
                busy_s=pace.busy_s + steps * seconds * slower,
            )
        return list(self._paces)

    def train(self, rule: ShareRule, *, looks: int) -> int:
        """Look so often; how many changes came of it."""
        changes = 0
        for _ in range(looks):
            paces = self.go_on(5)
            parts = rule.look(paces)
            if parts is not None:
                self.parts, changes = parts, changes + 1
                rule.changed(SharesFrom(step=paces[0].step + 3, parts=parts))
                self.go_on(3)
        return changes


towers = st.lists(
    st.tuples(st.floats(1e-4, 5e-3), st.floats(2e-6, 1e-4)), min_size=2, max_size=6
)  # fixed seconds, seconds a row


@settings(max_examples=60, deadline=None)
@given(speeds=towers, noise=st.floats(0, 0.01))
def test_towers_end_their_steps_together_and_then_nothing_changes(
    speeds: list[tuple[float, float]], noise: float
) -> None:
    run = EmulatedTowers(*zip(*speeds, strict=True), noise=noise)
    rule = ShareRule(batch_size=BATCH)
    run.train(rule, looks=120)
    assert sum(run.parts) == BATCH
    assert min(run.parts) >= 1
    assert max(run.seconds(run.parts)) <= fastest_step(run) * (1 + MORE_THAN) * 1.02
    assert run.train(rule, looks=60) <= 1


def fastest_step(run: EmulatedTowers) -> float:
    """Seconds of a step with the best parts of all, by halving: how many rows fit into so long, one each at least."""
    low, high = 0.0, max(run.seconds([BATCH] * len(run.parts)))
    for _ in range(60):
        middle = (low + high) / 2
        fit = [int((middle - f) / r) for f, r in zip(run.fixed_s, run.row_s, strict=True)]
        low, high = (low, middle) if min(fit) >= 1 and sum(fit) >= BATCH else (middle, high)
    return high


def test_shares_follow_a_tower_that_becomes_slower() -> None:
    run = EmulatedTowers([1e-4] * 3, [1e-5] * 3)
    rule = ShareRule(batch_size=BATCH)
    assert run.train(rule, looks=40) == 0
    run.row_s[1] *= 3
    assert run.train(rule, looks=60) >= 1
    assert run.parts[0] / run.parts[1] == pytest.approx(3, rel=0.1)


def test_a_single_outlier_changes_nothing() -> None:
    run = EmulatedTowers([1e-4] * 2, [1e-5] * 2)
    rule = ShareRule(batch_size=BATCH)
    run.train(rule, looks=5)
    run.fixed_s[0] += 0.05
    run.train(rule, looks=1)
    run.fixed_s[0] -= 0.05
    assert run.train(rule, looks=40) == 0


@given(shares=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8), total=st.integers(8, 100_000))
def test_parts_are_whole_and_add_up(shares: list[float], total: int) -> None:
    parts = whole_parts(shares, total=total)
    assert sum(parts) == total
    assert min(parts) >= 1
    exact = np.asarray(shares) / sum(shares) * total
    assert np.abs(np.asarray(parts) - np.maximum(exact, 1)).max() <= len(shares)


def sequencer(*, shares: ShareSpec | None, windowed: bool = False, rows: int = 1000) -> Sequencer:
    made = Sequencer(
        splits=1,
        order=lambda _: np.zeros(1, np.int64),
        epochs=1,
        batch_size=100,
        towers=3,
        max_steps=None,
        ahead=2,
        shares=shares,
        windowed=windowed,
    )
    assert made.claim(0).split == SplitId(0, 0)
    made.report(0, SplitReport(position=0, epoch=0, rows=rows, malformed=(), weight_prefix=None))
    return made


def rows_of_step(made: Sequencer) -> list[int]:
    """Rows of each tower in the next step; they follow each other in the stream."""
    specs = [made.take(tower) for tower in range(3)]
    found = []
    for spec in specs:
        assert isinstance(spec, BatchSpec)
        assert spec.weight_sum == 100
        found.append(spec.rows)
    return found


def test_parts_divide_a_fixed_batch() -> None:
    made = sequencer(shares=ShareSpec(first=(5, 3, 2)))
    assert rows_of_step(made) == [50, 30, 20]
    made.division.ask((1, 1, 2))
    assert rows_of_step(made) == [25, 25, 50]
    assert made.division.drain_changes() == (SharesFrom(step=0, parts=(5, 3, 2)), SharesFrom(step=1, parts=(1, 1, 2)))
    assert made.division.drain_changes() == ()


def test_without_shares_nothing_is_told_and_parts_are_equal() -> None:
    made = sequencer(shares=None)
    assert rows_of_step(made) == [33, 33, 34]
    assert made.division.drain_changes() == ()


def test_within_a_window_parts_stay() -> None:
    made = sequencer(shares=ShareSpec(), windowed=True)
    made.division.begin_window()
    assert rows_of_step(made) == [33, 33, 34]
    made.division.ask((2, 1, 1))
    assert rows_of_step(made) == [33, 33, 34]
    made.division.begin_window()
    assert rows_of_step(made) == [50, 25, 25]


def test_a_replay_makes_the_logged_changes_at_their_steps() -> None:
    log = (SharesFrom(step=0, parts=(2, 1, 1)), SharesFrom(step=2, parts=(1, 1, 2)))
    made = sequencer(shares=ShareSpec(replay=log), windowed=True)
    assert [rows_of_step(made) for _ in range(3)] == [[50, 25, 25], [50, 25, 25], [25, 25, 50]]
    assert made.division.drain_changes() == log
    assert parts_at(log, 1) == (2, 1, 1)
    assert going_on(ShareSpec(measured=True), log, step=5) == ShareSpec(first=(1, 1, 2), measured=True)


def test_parts_of_other_numbers_of_towers_are_refused() -> None:
    with pytest.raises(ProtocolError, match="of 3 towers"):
        sequencer(shares=None).division.ask((1, 1))
    with pytest.raises(ProtocolError, match="of 3 towers"):
        sequencer(shares=None).division.ask((1, 1, 0))
