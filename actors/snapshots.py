"""The supervisor's part in snapshots: has cuts written by all roles, makes each whole when its last part is there.

Consumes   cuts that tower 0 tells of; files that servers and tower 0 have written
Produces   snapshots in the run's folder; reports
Waits for  nobody while training goes on; servers and tower 0 at the end of it
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray

from actors.calls import Answer
from actors.group import ActorGroup
from actors.naming import Role
from actors.tower_news import CutNews
from hetero.errors import DataError, PeerLostError, SnapshotError
from hetero.loops.cuts import CutRule
from hetero.loops.protocols import Cut
from hetero.loops.snapshots import SnapshotPlace, SnapshotReport, SnapshotWriting

_WRITE_DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A snapshot that roles are writing: the answers of towers and of servers, each in their order."""

    writing: SnapshotWriting
    towers: list[Answer[Any]]
    servers: list[Answer[Any]]

    @property
    def answers(self) -> list[Answer[Any]]:
        return [*self.towers, *self.servers]


class SnapshotKeeper:
    """Looked at with the run's progress. routing: version by which the group's servers hold rows, as far as the driver
    knows. reports: of every snapshot so far."""

    def __init__(self, group: ActorGroup, *, place: SnapshotPlace, routing: Callable[[], int]) -> None:
        self._routing = routing
        self.reports: list[SnapshotReport] = []
        self._group = group
        self._place = place
        self._tower = group.of(Role.TOWER)[0]
        self._news: Answer[CutNews | None] | None = None
        self._under_way: _UnderWay | None = None
        job = group.context.job
        self._separate = len(group.of(Role.TOWER)) > 1 and not job.mode.joint
        self._rule = CutRule(replace(job.snapshots, every_steps=None))
        self._told_step = 0

    def look(self, step: int) -> None:
        """Pass on a wish to stop, have a new cut written, make a snapshot whole whose parts are there; never waits."""
        if self._place.folder is None:
            return
        if self._place.stop():  # again with every look: a tower may not have begun when it is first told
            for tower in self._group.of(Role.TOWER):
                self._group.call(tower, "ask_cut", Cut.STOP)
        if self._separate:
            self._ask_in_time(step)
        if self._under_way is not None:
            self._look_at_parts()
        elif self._news is None:
            self._news = self._group.call(self._tower, "cut_news")
        elif ray.wait([self._news.ref], timeout=0.0)[0]:
            told, self._news = self._news.result(), None
            if told is not None and told.routing == self._routing():  # else the group's servers are about to change
                self._begin(told)

    def _ask_in_time(self, step: int) -> None:
        """Ask for a cut at the job's times, of towers that have no sum in which tower 0 could."""
        every = self._group.context.job.snapshots.every_steps
        passed = every is not None and step // every > self._told_step // every
        self._told_step = step
        if passed:
            self._rule.ask(Cut.SNAPSHOT)
        if self._rule.wanted(0) is not Cut.NONE:
            self._rule.begun()
            for tower in self._group.of(Role.TOWER):
                self._group.call(tower, "ask_cut", Cut.SNAPSHOT)

    def finish(self) -> None:
        """Training is over: write what was cut, and wait for it."""
        if self._place.folder is None:
            return
        if self._under_way is None:
            self._news = None
            told = self._group.call(self._tower, "cut_news").result()
            if told is not None:
                self._begin(told)
        if self._under_way is not None:
            with contextlib.suppress(SnapshotError):  # told when the parts are looked at
                self._group.await_all(self._under_way.answers)
            self._look_at_parts()

    def close(self) -> None:
        """Remove a snapshot that was not made whole. Never raises: it runs after failures too."""
        if self._under_way is not None:
            with contextlib.suppress(Exception):
                self._under_way.writing.give_up(PeerLostError("the run ended"))
            self._under_way = None

    def _begin(self, told: CutNews) -> None:
        assert self._place.folder is not None
        try:
            writing = SnapshotWriting(
                self._group.context.job, self._place.folder, name=told.name, base=told.base, pause_s=told.pause_s
            )
        except (SnapshotError, DataError) as error:
            self._group.call_all(self._group.of(Role.SERVER), "drop_cut")
            report = SnapshotReport.failed(told.name, self._place.folder, error, pause_s=told.pause_s)
            self._end(report, base=None)
            return
        towers = self._group.of(Role.TOWER) if self._separate else [self._tower]
        calls = [
            self._group.call(member, "write_cut", writing.path, deadline_s=_WRITE_DEADLINE_S)
            for member in (*towers, *self._group.of(Role.SERVER))
        ]
        self._under_way = _UnderWay(writing, calls[: len(towers)], calls[len(towers) :])

    def _look_at_parts(self) -> None:
        assert self._under_way is not None
        refs = [answer.ref for answer in self._under_way.answers]
        _, waiting = ray.wait(refs, num_returns=len(refs), timeout=0)
        if waiting:
            return
        under_way = self._under_way
        try:
            files = [entry for answer in under_way.towers for entry in answer.result()]
            report = under_way.writing.commit([answer.result() for answer in under_way.servers], files)
        except SnapshotError as error:
            report = under_way.writing.give_up(error)
        self._under_way = None
        self._end(report, base=under_way.writing.next_base)

    def _end(self, report: SnapshotReport, *, base: str | None) -> None:
        for tower in self._group.of(Role.TOWER):
            self._group.call(tower, "cut_written", base).result()
        self._rule.written(base=None)
        self.reports.append(report)
        self._place.told(report)
