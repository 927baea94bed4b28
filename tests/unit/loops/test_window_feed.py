"""A tower's windows, fetched ahead: all of them in order, and no further ahead than they are needed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import ProtocolError
from hetero.keys.sequencer import Turn
from hetero.keys.windows import TowerWindow
from hetero.loops.windows import WindowFeed
from hetero.records import START, BatchSpec

DEADLINE_S = 20.0


def windows_of(sizes: Sequence[int]) -> list[TowerWindow]:
    """Windows of so many steps, 0 for one at whose end a day begins; and the one that ends them."""
    windows, step = [], 0
    for index, size in enumerate(sizes):
        specs = tuple(BatchSpec(step=step + n, tower=0, pieces=(), weight_sum=1.0, after=START) for n in range(size))
        step += size
        windows.append(TowerWindow(index=index, specs=specs, moves=(), routes=(), flush=None if size else step))
    return [*windows, TowerWindow(index=len(sizes), specs=(), moves=(), routes=())]


class GivenSequencer:
    """A WindowSequencer that has all windows, some of them only at the second call; counts those with steps."""

    def __init__(self, windows: Sequence[TowerWindow], *, fails_at: int = -1) -> None:
        self._windows = list(windows)
        self._fails_at = fails_at
        self._says_wait = False
        self.acknowledged: list[int] = []
        self.taken = 0

    def take_window(self, tower: int, *, acknowledged: Sequence[int], crossed: float | None) -> TowerWindow | Turn:
        self.acknowledged += acknowledged
        self._says_wait = not self._says_wait
        if self._says_wait:
            return Turn.WAIT
        if not self._windows:
            return Turn.END
        window = self._windows.pop(0)
        if window.index == self._fails_at:
            raise ProtocolError("planted")
        self.taken += bool(window.specs)
        return window


def train(feed: WindowFeed, sequencer: GivenSequencer) -> tuple[list[int], list[int]]:
    """What a tower does: takes the next window when a step needs it, and looks for the one after at every step."""
    indices: list[int] = []
    steps: list[int] = []
    known: set[int] = set()
    ahead: TowerWindow | None = None
    ended = False
    acknowledged: tuple[int, ...] = ()
    deadline = time.monotonic() + DEADLINE_S
    while (turn := feed.take(0, acknowledged=acknowledged)) is not Turn.END:
        assert time.monotonic() < deadline
        acknowledged = ()
        if not isinstance(turn, BatchSpec):
            continue
        while turn.step not in known:
            window = ahead or feed.next_window()
            ahead = None
            assert window is not None
            indices.append(window.index)
            ended = window.is_last
            known = {spec.step for spec in window.specs}
        if ahead is None and not ended:
            ahead = feed.window_here()
        used = len(indices) + (ahead is not None)
        assert sequencer.taken <= used + 1
        steps.append(turn.step)
        acknowledged = (turn.step,)
    while not ended:
        window = ahead or feed.next_window()
        ahead = None
        assert window is not None
        indices.append(window.index)
        ended = window.is_last
    return indices, steps


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=8))
def test_every_window_comes_in_order_and_at_most_one_waits(sizes: list[int]) -> None:
    sequencer = GivenSequencer(windows_of(sizes))
    feed = WindowFeed(tower=0, sequencer=sequencer)
    indices, steps = train(feed, sequencer)
    feed.close()
    assert indices == list(range(len(sizes) + 1))
    assert steps == list(range(sum(sizes)))
    assert sequencer.acknowledged == steps


def test_what_fails_is_raised_where_windows_and_specs_are_taken() -> None:
    feed = WindowFeed(tower=0, sequencer=GivenSequencer(windows_of([1, 1]), fails_at=1))
    assert feed.next_window() is not None
    assert isinstance(feed.take(0, acknowledged=()), BatchSpec)
    with pytest.raises(ProtocolError, match="planted"):
        feed.next_window()
    with pytest.raises(ProtocolError, match="planted"):
        feed.take(0, acknowledged=())  # it was put there before the window that failed
    feed.close()


def test_a_feed_closes_while_a_window_waits() -> None:
    sequencer = GivenSequencer(windows_of([1, 1, 1]))
    feed = WindowFeed(tower=0, sequencer=sequencer)
    assert isinstance(feed.take(0, acknowledged=()), BatchSpec)
    feed.close()
    assert sequencer.taken == 1
