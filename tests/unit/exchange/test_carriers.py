"""What carries leased rows in the background: in order, without waiting, and no failure is lost."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from hetero.errors import LeaseError
from hetero.exchange.carriers import LaneCarrier
from hetero.exchange.held_rows import Arrived
from hetero.exchange.messages import Done, Pending
from hetero.observe.spans import SpanClock
from hetero.records import F32

DEADLINE_S = 20.0
ROWS: F32 = np.ones((2, 3), np.float32)


class Gate:
    """An answer that comes when it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def result(self) -> tuple[F32, ...]:
        assert self.opened.wait(DEADLINE_S)
        return (ROWS,)


def test_calls_are_made_in_the_order_they_were_given_and_nobody_waits() -> None:
    """The return of a window's rows is under way before the fetch that is asked for after it."""
    carrier, calls, first, second = LaneCarrier([Arrived]), list[str](), Gate(), Gate()

    def asking(name: str, gate: Gate) -> Pending[tuple[Arrived, ...]]:
        def ask(clock: SpanClock) -> Gate:
            calls.append(name)
            return gate

        return carrier.bring(ask)

    one = asking("lease 1", first)
    carrier.send([Done(ROWS)], lambda rows: calls.append(f"return of {len(rows[0])} rows"))
    two = asking("lease 2", second)
    first.opened.set()
    assert one.result()[0].rows is ROWS
    second.opened.set()
    assert two.result()[0].rows is ROWS
    carrier.settle()
    assert calls == ["lease 1", "return of 2 rows", "lease 2"]
    carrier.close()


def test_a_return_that_fails_is_raised_by_a_later_call() -> None:
    carrier = LaneCarrier([Arrived])

    def refused(rows: Sequence[F32]) -> None:
        raise LeaseError("row 7 is held by nobody")

    carrier.send([Done(ROWS)], refused)
    with pytest.raises(LeaseError, match="row 7"):
        carrier.settle()
    carrier.close()


def test_rows_that_cannot_be_fetched_are_raised_where_they_are_waited_for() -> None:
    carrier = LaneCarrier([Arrived])

    def refused(clock: SpanClock) -> Gate:
        raise LeaseError("row 7 is held by tower 1")

    coming = carrier.bring(refused)
    with pytest.raises(LeaseError, match="held by tower 1"):
        coming.result()
    carrier.close()
