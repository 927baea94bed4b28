"""Spans: exclusive seconds, merged totals, and waits by name."""

from __future__ import annotations

import pickle
from contextlib import AbstractContextManager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.observe.spans import Span, SpanClock, SpanTotals, merge_totals


class FakeTime:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_span_inside_another_stops_the_outer_clock() -> None:
    time = FakeTime()
    clock = SpanClock(now=time)
    with clock.span(Span.ROWS_PULL):
        time.now += 1.0
        with clock.span(Span.WAIT_SERVER):
            time.now += 5.0
        time.now += 2.0
    totals = clock.totals()
    assert totals.seconds == {Span.ROWS_PULL: 3.0, Span.WAIT_SERVER: 5.0}
    assert totals.counts == {Span.ROWS_PULL: 1, Span.WAIT_SERVER: 1}
    assert totals.waits == {"server": 5.0}
    assert totals.wait_s == 5.0
    assert totals.total_s == 8.0


def test_time_outside_spans_is_not_charged() -> None:
    time = FakeTime()
    clock = SpanClock(now=time)
    for _ in range(3):
        time.now += 10.0
        with clock.span(Span.TOWER_STEP):
            time.now += 1.0
    assert clock.totals().seconds == {Span.TOWER_STEP: 3.0}
    assert clock.totals().counts == {Span.TOWER_STEP: 3}


def test_an_exception_closes_the_span_and_goes_on() -> None:
    time = FakeTime()
    clock = SpanClock(now=time)

    def fail() -> None:
        with clock.span(Span.TOWER_STEP):
            time.now += 2.0
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    time.now += 7.0
    assert clock.totals().seconds == {Span.TOWER_STEP: 2.0}


def test_totals_charge_a_span_that_is_still_open_once() -> None:
    time = FakeTime()
    clock = SpanClock(now=time)
    with clock.span(Span.DATA_BATCH):
        time.now += 1.0
        assert clock.totals().seconds == {Span.DATA_BATCH: 1.0}
        time.now += 1.0
    assert clock.totals().seconds == {Span.DATA_BATCH: 2.0}
    assert clock.totals().counts == {Span.DATA_BATCH: 1}


def test_add_charges_time_measured_elsewhere() -> None:
    clock = SpanClock(now=FakeTime())
    clock.add(Span.ROWS_PUSH, seconds=0.5)
    clock.add(Span.ROWS_PUSH, seconds=0.25, count=3)
    assert clock.totals() == SpanTotals(seconds={Span.ROWS_PUSH: 0.75}, counts={Span.ROWS_PUSH: 4})


def test_totals_pickle_and_are_named_in_the_order_of_the_flow() -> None:
    totals = SpanTotals(
        seconds={Span.WAIT_TOWERS: 1.0, Span.DATA_BATCH: 2.0}, counts={Span.WAIT_TOWERS: 1, Span.DATA_BATCH: 1}
    )
    assert pickle.loads(pickle.dumps(totals)) == totals
    assert list(totals.by_name().items()) == [("data.batch", 2.0), ("wait.towers", 1.0)]


TOTALS = st.dictionaries(st.sampled_from(list(Span)), st.integers(0, 1000)).map(
    lambda counts: SpanTotals(seconds={span: n / 8 for span, n in counts.items()}, counts=counts)
)


@settings(max_examples=50, deadline=None)
@given(st.lists(TOTALS, max_size=5))
def test_merging_adds_up_span_by_span(many: list[SpanTotals]) -> None:
    merged = merge_totals(many)
    for span in Span:
        assert merged.counts.get(span, 0) == sum(totals.counts.get(span, 0) for totals in many)
        assert merged.seconds.get(span, 0.0) == sum(totals.seconds.get(span, 0.0) for totals in many)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(Span)), st.integers(0, 20), st.booleans()), max_size=30))
def test_seconds_of_nested_spans_never_overlap(script: list[tuple[Span, int, bool]]) -> None:
    """Against an oracle that charges every tick to the innermost open span."""
    time = FakeTime()
    clock = SpanClock(now=time)
    stack: list[tuple[Span, AbstractContextManager[None]]] = []
    oracle: dict[Span, float] = {}
    for span, ticks, opens in script:
        if opens or not stack:
            entered = clock.span(span)
            entered.__enter__()
            stack.append((span, entered))
        else:
            stack.pop()[1].__exit__(None, None, None)
        time.now += ticks
        if stack:
            oracle[stack[-1][0]] = oracle.get(stack[-1][0], 0.0) + ticks
    seconds = clock.totals().seconds
    assert {span: s for span, s in seconds.items() if s} == {span: s for span, s in oracle.items() if s}
