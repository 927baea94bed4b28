"""Throughput against a clock that the test turns."""

from __future__ import annotations

from hetero.metrics.throughput import Throughput


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_totals_and_window() -> None:
    clock = Clock()
    throughput = Throughput(clock=clock, window_s=10.0)
    assert throughput.report().rows_per_s == 0.0
    clock.now += 2
    throughput.add(100)
    assert throughput.report().recent_rows_per_s == 50.0
    clock.now += 6
    throughput.add(300)
    report = throughput.report()
    assert (report.rows, report.seconds) == (400, 8.0)
    assert report.rows_per_s == report.recent_rows_per_s == 50.0
    clock.now += 12
    report = throughput.report()
    assert report.recent_rows_per_s == 0.0
    assert report.rows_per_s == 20.0


def test_only_the_window_counts_as_recent() -> None:
    clock = Clock()
    throughput = Throughput(clock=clock, window_s=4.0)
    for second in range(20):
        clock.now += 1
        throughput.add(10 if second < 10 else 50)
    assert throughput.report().recent_rows_per_s == 50.0
    assert throughput.report().rows_per_s == 30.0
    assert len(throughput._recent) == 4
