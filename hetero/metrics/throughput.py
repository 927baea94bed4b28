"""How fast rows pass: over a sliding window, for progress, and in all, for the summary."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputReport:
    """rows and seconds since the start; rows_per_s of all that time; recent_rows_per_s of the window alone."""

    rows: int
    seconds: float
    rows_per_s: float
    recent_rows_per_s: float


class Throughput:
    """Counts rows against a clock. Not thread-safe.

    clock: seconds, never going back. window_s: length of the sliding window; until that much time has passed, the
    window is the time since the start.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter, window_s: float = 10.0) -> None:
        self._clock = clock
        self._window_s = window_s
        self._started = clock()
        self._rows = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_rows = 0

    def add(self, rows: int) -> None:
        """Note that `rows` rows just passed."""
        now = self._clock()
        self._rows += rows
        self._recent.append((now, rows))
        self._recent_rows += rows
        self._forget(now)

    def report(self) -> ThroughputReport:
        """Rates as of now; 0 while no time has passed."""
        now = self._clock()
        self._forget(now)
        seconds = now - self._started
        window = min(self._window_s, seconds)
        return ThroughputReport(
            rows=self._rows,
            seconds=seconds,
            rows_per_s=self._rows / seconds if seconds > 0 else 0.0,
            recent_rows_per_s=self._recent_rows / window if window > 0 else 0.0,
        )

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] <= now - self._window_s:
            self._recent_rows -= self._recent.popleft()[1]
