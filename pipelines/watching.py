"""Watching a run from the driver: progress for people, steps for the event log, malformed rows to their file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from hetero.data.malformed import CheckPoint, MalformedLog
from hetero.loops.moves import ServersChanging, ServersReport
from hetero.loops.pace import GrowingPace
from hetero.loops.protocols import Phase
from hetero.loops.recovery import Recovery
from hetero.loops.run import RunProgress, RunReport, TrainOutcome
from hetero.loops.snapshots import SnapshotReport
from hetero.metrics.throughput import Throughput
from hetero.observe.events import EventLog
from hetero.observe.metrics import Pulse
from hetero.observe.run_folder import RunFolder, write_whole
from hetero.observe.spans import SpanTotals
from hetero.records import DataSpec, JobSpec, SharesFrom
from pipelines.placing import read_share_log, share_lines
from pipelines.progress import Progress, ProgressRecord
from pipelines.report import recovered
from pipelines.resume import ResumeFrom

_LOG = logging.getLogger(__name__)
_LOG_SHARE = 1 / 300  # of the time so far; as pulses come every two seconds: 300 in ten minutes, 1,800 in a day


class PulseLog:
    """Keeps pulses in the event log: all in the first minutes of a run, of a long one ever fewer."""

    def __init__(self, events: EventLog, *, now: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._now = now
        self._paces: dict[str, GrowingPace] = {}

    def keep(self, pulses: Sequence[Pulse]) -> None:
        """Those of each role that are due."""
        for pulse in pulses:
            if self._pace(pulse.role).due():
                self._events.pulse(pulse)

    def is_due(self, role: str) -> bool:
        """Whether the next pulse of a role would be kept."""
        return self._pace(role).is_due

    def _pace(self, role: str) -> GrowingPace:
        if role not in self._paces:
            self._paces[role] = GrowingPace(share=_LOG_SHARE, now=self._now)
        return self._paces[role]


class Watcher:
    """Looks at a run a few times a second. Raises DataError from `look` when too many rows are malformed."""

    def __init__(self, job: JobSpec, *, folder: RunFolder, events: EventLog, progress: Progress) -> None:
        self._job = job
        self._folder = folder
        self._events = events
        self._progress = progress
        self._pulses = PulseLog(events)
        self._rate = Throughput()
        self._logs: list[MalformedLog] = []
        self._started_t = time.monotonic()
        self._last_step = 0
        self._last_rows = 0
        self._resumed = False
        self.phase = Phase.TRAIN
        self.snapshots: list[SnapshotReport] = []
        self._test_from: int | None = None  # where rows of the test data begin in the file of malformed rows

    @property
    def step(self) -> int:
        """Steps done when the run was last looked at."""
        return self._last_step

    @property
    def malformed(self) -> int:
        """Rows left out so far, of all data."""
        return sum(log.malformed for log in self._logs)

    def resumed(self, start: ResumeFrom) -> None:
        """The run goes on from a snapshot."""
        self._resumed = True
        self._last_step, self._last_rows = start.cursor.step, start.cursor.rows
        for finding in start.damaged:
            self._events.event("snapshot.damaged", snapshot=finding.snapshot, message=finding.message)
        self._events.event("run.resumed", step=start.cursor.step, rows=start.cursor.rows, path=start.snapshot.path)

    def went_back(self, start: ResumeFrom | None) -> None:
        """The run goes on from a snapshot, or from its start, after it lost a role: what comes next is told anew."""
        self._resumed = self._resumed or start is not None
        self._last_step, self._last_rows = (0, 0) if start is None else (start.cursor.step, start.cursor.rows)
        for finding in () if start is None else start.damaged:
            self._events.event("snapshot.damaged", snapshot=finding.snapshot, message=finding.message)
        self._logs.clear()
        if self._folder.malformed.is_file():
            if not self._resumed:
                self._folder.malformed.unlink()
            elif self._test_from is not None:
                os.truncate(self._folder.malformed, self._test_from)
        self._test_from = None

    def recovered(self, recovery: Recovery) -> None:
        """A recovery is over."""
        record = recovery.to_dict()
        _LOG.warning("recovered: %s", recovered(record))
        lost = record.pop("role")  # `role` of a line says who wrote it
        self._events.event("run.recovered", role=None, lost=lost, **record)

    def warm_started(self, rows: int, *, path: str) -> None:
        """The run begins with rows of another."""
        self._events.event("run.warm_started", rows=rows, path=path)
        _LOG.info("warm start: %d rows of %s", rows, path)

    def begin(self, phase: Phase, data: DataSpec) -> None:
        """A phase starts."""
        self.phase = phase
        if phase is Phase.TEST:
            self._test_from = self._folder.malformed.stat().st_size if self._folder.malformed.is_file() else 0
        self._logs.append(
            MalformedLog(
                self._folder.malformed,
                max_fraction=data.max_malformed_fraction,
                resumed=self._resumed and phase is Phase.TRAIN,
            )
        )
        self._started_t = time.monotonic()
        self._rate = Throughput()
        self._events.event(f"{phase.value}.started")
        self._progress.phase("training" if phase is Phase.TRAIN else "scoring the test data")

    def look(self, now: RunProgress) -> None:
        """Pass on what is new."""
        self._note_shares(now.shares)
        self._pulses.keep(now.pulses)
        self._logs[-1].add(now.quality.malformed, rows_read=now.quality.rows_read)
        self._logs[-1].check(CheckPoint.EARLY)
        if now.phase is not Phase.TRAIN or now.loss is None or now.step == self._last_step:
            return
        self._rate.add(now.rows - self._last_rows)
        self._last_step, self._last_rows = now.step, now.rows
        rows_per_s = self._rate.report().recent_rows_per_s
        elapsed = max(time.monotonic() - self._started_t, 1e-9)
        towers = self._job.towers.count
        self._events.step(now.step, loss=now.loss, rows=now.rows, rows_per_s=rows_per_s)
        self._progress.update(
            ProgressRecord(
                step=now.step,
                steps_total=now.steps_total,
                rows=now.rows,
                rows_per_s=rows_per_s,
                loss=now.loss,
                seconds_left=_seconds_left(now, rows_per_s),
                waits={role: seconds / (elapsed * towers) for role, seconds in now.waits.items()},
            )
        )

    def end(self, phase: Phase) -> None:
        """A phase is over: the last word on malformed rows."""
        self._logs[-1].check(CheckPoint.PASS_END)
        self._events.event(f"{phase.value}.finished", malformed=self._logs[-1].malformed)

    def note_snapshot(self, report: SnapshotReport) -> None:
        """A snapshot was taken, or given up."""
        self.snapshots.append(report)
        if report.error is not None:
            self._events.event("snapshot.failed", step=report.step, path=report.path, error=report.error)
            _LOG.warning("the snapshot of step %d could not be written: %s", report.step, report.error)
            return
        self._events.event(
            "snapshot.written",
            step=report.step,
            path=report.path,
            pause_s=report.pause_s,
            write_s=report.write_s,
            rows=report.rows,
            bytes=report.bytes,
        )
        _LOG.info(
            "snapshot of step %d: %d rows, %.1f s, training stood still for %.3f s",
            report.step,
            report.rows,
            report.write_s,
            report.pause_s,
        )

    def note_servers(self, news: ServersChanging | ServersReport) -> None:
        """The number of servers is about to change, has changed, or stays what it was."""
        told = asdict(news)
        if isinstance(news, ServersChanging):
            self._events.event("servers.changing", **told)
            _LOG.info("servers: %d to be %d; rows are copied", news.before, news.after)
        elif news.error is not None:
            self._events.event("servers.kept", **told)
            _LOG.warning("servers: %d stay, %d were wanted: %s", news.before, news.after, news.error)
        else:
            del told["error"]
            self._events.event("servers.changed", **told)
            _LOG.info(
                "servers: %d after step %d, %d before; %d rows moved, training stood still for %.3f s",
                news.after,
                news.step,
                news.before,
                news.rows,
                news.pause_s,
            )

    def _note_shares(self, changes: Sequence[SharesFrom]) -> None:
        """Batches are divided among towers in another way. What a run that goes on repeats is dropped."""
        for change in changes:
            told = [each for each in read_share_log(self._folder.shares) if each.step < change.step]
            write_whole(self._folder.shares, share_lines([*told, change]))
            whole = sum(change.parts)
            shares = [part / whole for part in change.parts]
            self._events.event("shares.changed", step=change.step, parts=list(change.parts), shares=shares)
            _LOG.info("shares of the towers from step %d: %s", change.step, ", ".join(f"{s:.1%}" for s in shares))

    def note_rejected(self, outcome: TrainOutcome) -> None:
        """Name the gradients that were not finite."""
        for example in outcome.rejected_examples:
            self._events.event("gradient.rejected", step=example.step, table=example.table, key=example.key)
        for name, steps in outcome.rejected_dense.items():
            self._events.event("gradient.rejected", parameter=name, steps=steps)


def write_spans(events: EventLog, spans: SpanTotals, *, role: str) -> None:
    """Where a role's time went in all."""
    for span, seconds in spans.seconds.items():
        events.span(span, seconds=seconds, role=role, count=spans.counts[span])


def _seconds_left(now: RunProgress, rows_per_s: float) -> float | None:
    if now.steps_total is None or now.step == 0 or rows_per_s <= 0:
        return None
    return (now.steps_total - now.step) * (now.rows / now.step) / rows_per_s


def write_totals(events: EventLog, report: RunReport) -> None:
    """Log where the time of every role went, and which rows were dropped."""
    for role in report.roles:
        write_spans(events, role.spans, role=role.name)
    for (day, table, reason), rows in report.drops.items():
        events.event("rows.dropped", role="server", day=day, table=table, reason=reason, rows=rows)
