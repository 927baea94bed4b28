"""Seconds by span: a cheap accumulator for step loops, and the totals it hands over.

The names are those of the flow table in the README; what a role waits for are spans of their own (`wait.*`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType


class Span(Enum):
    """Names of the arrows of the flow table, and of what a role waits for."""

    DATA_BATCH = "data.batch"
    KEYS_WINDOW = "keys.window"
    ROWS_PULL = "rows.pull"
    TOWER_STEP = "tower.step"
    TOWER_SCORE = "tower.score"
    GRADS_MERGE = "grads.merge"
    ROWS_PUSH = "rows.push"
    SNAPSHOT_WRITE = "snapshot.write"
    WAIT_READER = "wait.reader"
    WAIT_SEQUENCER = "wait.sequencer"
    WAIT_SERVER = "wait.server"
    WAIT_TOWERS = "wait.towers"

    @property
    def awaited(self) -> str | None:
        """The role waited for (`reader`, `sequencer`, `server`, `towers`), or None for work."""
        kind, _, role = self.value.partition(".")
        return role if kind == "wait" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTotals:
    """Exclusive seconds and entries of each span. Picklable; `a + b` merges the totals of two clocks."""

    seconds: Mapping[Span, float] = field(default_factory=dict)
    counts: Mapping[Span, int] = field(default_factory=dict)

    def __add__(self, other: SpanTotals) -> SpanTotals:
        spans = [span for span in Span if span in self.counts or span in other.counts]
        return SpanTotals(
            seconds={span: self.seconds.get(span, 0.0) + other.seconds.get(span, 0.0) for span in spans},
            counts={span: self.counts.get(span, 0) + other.counts.get(span, 0) for span in spans},
        )

    @property
    def total_s(self) -> float:
        """Seconds inside any span."""
        return sum(self.seconds.values())

    @property
    def waits(self) -> dict[str, float]:
        """Seconds waited for each role, by its name: `{"reader": 0.4, "server": 1.2}`."""
        return {span.awaited: s for span, s in self.seconds.items() if span.awaited is not None}

    @property
    def wait_s(self) -> float:
        """Seconds spent waiting for anyone."""
        return sum(self.waits.values())

    def by_name(self) -> dict[str, float]:
        """Seconds by span name in the order of the flow, as they stand in the summary."""
        return {span.value: self.seconds[span] for span in Span if span in self.seconds}


def merge_totals(totals: Iterable[SpanTotals]) -> SpanTotals:
    """The sum of many totals; without any, empty ones."""
    return sum(totals, start=SpanTotals())


class SpanClock:
    """Accumulates seconds per span. A span inside another stops the outer's clock: seconds never overlap.

    One clock belongs to one thread; add the totals of several. `now` is any monotonic clock in seconds.

        clock = SpanClock()
        with clock.span(Span.ROWS_PULL):
            with clock.span(Span.WAIT_SERVER):
                ...
    """

    __slots__ = ("_counts", "_now", "_seconds", "_stack", "_switched")

    def __init__(self, *, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._seconds: dict[Span, float] = {}
        self._counts: dict[Span, int] = {}
        self._stack: list[Span] = []
        self._switched = 0.0

    def span(self, span: Span) -> _OpenSpan:
        """A context manager that counts one entry of `span` and charges it the time inside."""
        return _OpenSpan(self, span)

    def add(self, span: Span, *, seconds: float, count: int = 1) -> None:
        """Charge a span with time measured elsewhere."""
        self._seconds[span] = self._seconds.get(span, 0.0) + seconds
        self._counts[span] = self._counts.get(span, 0) + count

    def totals(self) -> SpanTotals:
        """What has accumulated so far. A span still open is charged up to now and goes on."""
        if self._stack:
            self._charge_top()
        return SpanTotals(seconds=dict(self._seconds), counts=dict(self._counts))

    def so_far(self) -> SpanTotals:
        """What has accumulated until a span was last entered or left. Any thread may ask."""
        return SpanTotals(seconds=self._seconds.copy(), counts=self._counts.copy())

    def _charge_top(self) -> None:
        now = self._now()
        top = self._stack[-1]
        self._seconds[top] = self._seconds.get(top, 0.0) + (now - self._switched)
        self._switched = now

    def _enter(self, span: Span) -> None:
        if self._stack:
            self._charge_top()
        else:
            self._switched = self._now()
        self._stack.append(span)
        self._counts[span] = self._counts.get(span, 0) + 1

    def _exit(self) -> None:
        self._charge_top()
        self._stack.pop()


class _OpenSpan:
    """One entry of a span; left on exceptions too."""

    __slots__ = ("_clock", "_span")

    def __init__(self, clock: SpanClock, span: Span) -> None:
        self._clock = clock
        self._span = span

    def __enter__(self) -> None:
        self._clock._enter(self._span)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock._exit()
