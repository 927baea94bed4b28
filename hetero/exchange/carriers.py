"""How leased rows get from the servers to where they are held, and back, beside the steps.

On the host the step's thread makes the calls, and rows are there when a window needs them or are waited for then. For
a device a thread of its own takes rows as the servers answer and begins to copy them to the device, and waits for
leaving rows to reach the host before it sends them on. Its work is done in the order it was given; so the fetch for
w + 2 follows the return of w, whoever makes the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, cast

from hetero.exchange.held_rows import Arrived
from hetero.exchange.messages import Pending
from hetero.observe.spans import SpanClock
from hetero.records import F32

Ask = Callable[[SpanClock], Pending[tuple[F32, ...]]]
Arrive = Callable[[F32], Arrived]
GiveBack = Callable[[Sequence[F32]], None]


class Carrier(Protocol):
    """Carries rows between servers and where a tower holds them."""

    def bring(self, ask: Ask) -> Pending[tuple[Arrived, ...]]:
        """Ask for rows, per group. ask: makes the call; it is given the clock of the thread that will wait."""

    def send(self, leaving: Sequence[Pending[F32]], give_back: GiveBack) -> None:
        """Give rows back once they are all in host memory. Raises what an earlier `give_back` raised."""

    def settle(self) -> None:
        """Return when every call so far is made and what was asked for is here. Raises what one of them raised."""

    def close(self) -> None:
        """End what runs in the background, after what it was given."""


class StepCarrier:
    """A Carrier without a thread of its own: rows are waited for, and sent, when a window asks for it.

    arrive: of each group, what is made of rows that came. clock: of the thread that steps.
    """

    def __init__(self, arrive: Sequence[Arrive], *, clock: SpanClock) -> None:
        self._arrive = arrive
        self._clock = clock

    def bring(self, ask: Ask) -> Pending[tuple[Arrived, ...]]:
        return _Arriving(ask(self._clock), self._arrive)

    def send(self, leaving: Sequence[Pending[F32]], give_back: GiveBack) -> None:
        give_back([rows.result() for rows in leaving])

    def settle(self) -> None:
        """Calls are made at once."""

    def close(self) -> None:
        """Nothing runs in the background."""


class LaneCarrier:
    """A Carrier with a thread of its own, which does RPC and copies to the device, and no collectives.

    arrive: as of StepCarrier. What it waits for is not waiting of the step's thread, and counted by a clock of its own.
    """

    def __init__(self, arrive: Sequence[Arrive]) -> None:
        self._arrive = arrive
        self._clock = SpanClock()
        self._lane = ThreadPoolExecutor(1, thread_name_prefix="leases")
        self._sent: deque[Future[None]] = deque()
        self._latest: Future[object] | None = None

    def bring(self, ask: Ask) -> Pending[tuple[Arrived, ...]]:
        self._look()
        coming = self._lane.submit(lambda: _Arriving(ask(self._clock), self._arrive).result())
        self._latest = cast("Future[object]", coming)
        return coming

    def send(self, leaving: Sequence[Pending[F32]], give_back: GiveBack) -> None:
        self._look()
        self._sent.append(self._lane.submit(lambda: give_back([rows.result() for rows in leaving])))
        self._latest = cast("Future[object]", self._sent[-1])

    def settle(self) -> None:
        if self._latest is not None:
            self._latest.result()
        self._look()

    def close(self) -> None:
        self._lane.shutdown(wait=True)

    def _look(self) -> None:
        """Raise what a return raised that is done."""
        while self._sent and self._sent[0].done():
            self._sent.popleft().result()


@dataclass(slots=True)
class _Arriving:
    """Rows under way, and what is made of them once."""

    rows: Pending[tuple[F32, ...]]
    arrive: Sequence[Arrive]
    arrived: tuple[Arrived, ...] | None = None

    def result(self) -> tuple[Arrived, ...]:
        if self.arrived is None:
            came = self.rows.result()
            self.arrived = tuple(arrive(part) for arrive, part in zip(self.arrive, came, strict=True))
        return self.arrived
