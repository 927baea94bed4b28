"""What watching costs: taking and exporting the pulse of each role, and the page of a day's run of 60 roles.

    python -m benchmarks.pulses [--quick] [--json] [--save]

A role is asked every two seconds, beside its work; its steps make no metric call. So the cost is the pulse's CPU time
of those two seconds. The page is of a log made up as such a run would write it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from actors.context import connected_with
from actors.metrics import RayMetrics
from benchmarks.report import Report, arguments, cpu_seconds, finish
from hetero.exchange.server import ServerUse
from hetero.loops.pulses import PULSE_EVERY_S, RolePulses
from hetero.loops.results import StepLog
from hetero.observe.events import EventLog
from hetero.observe.metrics import Pulse
from hetero.observe.run_folder import RESOLVED_JOB, RunFolder
from hetero.observe.spans import Span, SpanTotals
from pipelines.run_page import MOST_BYTES, write_page
from pipelines.watching import PulseLog

DAY_S = 86_400.0
MOST_SHARE = 0.001
COUNTS = {"reader": 16, "server": 32, "tower": 12}


class Clock:
    """Seconds that the benchmark sets."""

    def __init__(self, t: float) -> None:
        self.t = t

    def __call__(self) -> float:
        return self.t


def spans_at(t: float, *spans: Span) -> SpanTotals:
    """As if a role had shared its time equally."""
    return SpanTotals(seconds={span: t / len(spans) for span in spans}, counts=dict.fromkeys(spans, int(t)))


def taken(kind: str, role: RolePulses, t: float) -> Pulse:
    """A pulse with as many samples as a role ever has."""
    if kind == "tower":
        log = StepLog(losses=[0.5], rows=int(1000 * t))
        traffic = dict.fromkeys(("pulled", "pushed", "swapped", "dense_pulled", "dense_pushed", "dense_summed"), int(t))
        spans = (Span.ROWS_PULL, Span.TOWER_STEP, Span.GRADS_MERGE, Span.ROWS_PUSH, Span.WAIT_READER)
        waits = (Span.WAIT_SEQUENCER, Span.WAIT_SERVER, Span.WAIT_TOWERS)
        return role.of_tower(log, spans=spans_at(t, *spans, *waits), traffic=traffic)
    if kind == "server":
        names = ("memory_hits", "ssd_hits", "created", "memory_rows", "ssd_rows", "leased_rows")
        disk = ("disk_read_bytes", "disk_written_bytes")
        use = ServerUse(
            rows={"wide": 7, "deep": 8}, staleness=(3, 2, 1), tiers=dict.fromkeys((*names, *disk), int(t) + 1)
        )
        return role.of_server(use, spans=spans_at(t, Span.ROWS_PULL, Span.ROWS_PUSH, Span.SNAPSHOT_WRITE))
    return role.of_role(spans_at(t, Span.DATA_BATCH, Span.KEYS_WINDOW))


def time_pulses(report: Report, *, count: int) -> None:
    """CPU time of taking a pulse and of letting Ray have it."""
    for kind in COUNTS:
        clock = Clock(1.0)
        role, metrics = RolePulses(f"{kind}/0", now=clock), RayMetrics("bench")

        def take(kind: str = kind, clock: Clock = clock, role: RolePulses = role) -> Pulse:
            clock.t += PULSE_EVERY_S
            return taken(kind, role, clock.t)

        samples = len(metrics.publish(take()).samples)
        take_s = _mean(take, count)
        both_s = _mean(lambda take=take, metrics=metrics: metrics.publish(take()), count)  # type: ignore[misc]
        report.add(
            what=f"pulse of a {kind}",
            samples=samples,
            take_us=1e6 * take_s,
            export_us=1e6 * (both_s - take_s),
            seconds="",
        )
        report.check(f"us of a pulse of a {kind}", 1e6 * both_s, at_most=1e6 * MOST_SHARE * PULSE_EVERY_S)


def _mean(work: Callable[[], object], count: int) -> float:
    work()
    return cpu_seconds(lambda: [work() for _ in range(count)]) / count


def draw_a_day(report: Report, *, folder: Path, day_s: float) -> None:
    """The page of a run that was `day_s` seconds long."""
    run = folder / "day"
    run.mkdir()
    (run / RESOLVED_JOB).write_text("name: day\n")
    begin = time.time() - day_s
    clock = Clock(begin)
    with EventLog(RunFolder.open(run).events, run="day", role="driver", clock=clock) as events:
        events.event("run.started", job="day", placement="made up")
        events.event("train.started")
        log = PulseLog(events, now=clock)
        roles = {
            f"{kind}/{n}": RolePulses(f"{kind}/{n}", now=clock) for kind, many in COUNTS.items() for n in range(many)
        }
        random = np.random.default_rng(1)
        for t in np.arange(PULSE_EVERY_S, day_s, PULSE_EVERY_S):
            clock.t = begin + float(t)
            log.keep(
                [taken(name.partition("/")[0], role, float(t)) for name, role in roles.items() if log.is_due(name)]
            )
            if int(t) % 10 == 0:
                events.step(int(t), loss=0.5 + 0.1 * random.standard_normal(), rows=int(1000 * t))
        events.event("run.stopped", message="the day is over")
    log_bytes = os.path.getsize(RunFolder.open(run).events)
    started = time.perf_counter()
    page = write_page(run)
    seconds = time.perf_counter() - started
    what = f"page of {day_s / 3600:.0f} h, {sum(COUNTS.values())} roles, log of {log_bytes / 2**20:.0f} MiB"
    report.add(what=what, samples=page.figures, take_us="", export_us="", seconds=seconds)
    report.check("bytes of the page", page.bytes, at_most=MOST_BYTES)
    report.check("MiB of the log", log_bytes / 2**20, at_most=200)
    report.check("seconds to draw it", seconds, at_most=60)


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("pulses")
    with connected_with(1.0, address=None):
        time_pulses(report, count=500 if options.quick else 5000)
    with tempfile.TemporaryDirectory() as folder:
        draw_a_day(report, folder=Path(folder), day_s=DAY_S / 24 if options.quick else DAY_S)
    return finish(report, options)


if __name__ == "__main__":
    sys.exit(main())
