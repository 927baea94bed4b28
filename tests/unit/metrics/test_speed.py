"""The product a run's speed is told as."""

from __future__ import annotations

import pytest

from hetero.metrics.speed import SpeedReport


def test_the_factors_multiply_to_the_speed() -> None:
    report = SpeedReport.of(samples=8000, seconds=10.0, towers=2, waits={"reader": 3.0, "server": 1.0, "towers": 0.0})
    assert report is not None
    assert report.samples_per_s == 800
    assert report.single_tower_samples_per_s == 500
    assert report.efficiency == pytest.approx(0.8)
    assert report.rest == {"reader": 0.15, "server": 0.05}
    assert report.single_tower_samples_per_s * report.towers * report.efficiency == pytest.approx(800)
    assert report.efficiency + sum(report.rest.values()) == pytest.approx(1)


def test_in_words() -> None:
    report = SpeedReport.of(samples=8000, seconds=10.0, towers=2, waits={"server": 1.0, "reader": 3.0})
    assert report is not None
    assert report.sentence() == (
        "800 rows/s = 500 (one tower at work) x 2 towers x 0.80; the rest: waiting for reader 15.0%, server 5.0%"
    )
    busy = SpeedReport.of(samples=10, seconds=1.0, towers=1, waits={})
    assert busy is not None
    assert busy.sentence() == "10 rows/s = 10 (one tower at work) x 1 tower x 1.00"


def test_no_time_no_report() -> None:
    assert SpeedReport.of(samples=0, seconds=0.0, towers=1, waits={}) is None
