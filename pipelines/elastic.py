"""A run that follows the cluster: looks at its nodes while it trains, and says when to go on with other numbers.

Servers alone change while training goes on (`hetero scale` does the same). For all else a snapshot is taken, and the
run goes on from it with the new numbers; no step is repeated. What is decided is `hetero.loops.elastic`'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from hetero.loops.elastic import Bounds, Replan, Settled, replan
from hetero.loops.moves import ServersChanging, ServersPlace, ServersReport, refusal
from hetero.loops.recovery import Counts, Room
from hetero.observe.events import EventLog
from hetero.records import JobSpec
from pipelines.build import Placement, room_of_run
from pipelines.job import Job
from pipelines.run_schema import Roles

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S = 2.0


def bounds_of(roles: Roles) -> Bounds | None:
    """The bounds that a job sets; None for a job whose numbers stay. A role without bounds keeps its number."""
    if roles.elastic is None:
        return None
    pairs = {
        name: getattr(roles.elastic, name) or (getattr(roles, name).count,) * 2
        for name in ("readers", "servers", "towers")
    }
    least, most = ({name: pair[end] for name, pair in pairs.items()} for end in (0, 1))
    return Bounds(least=Counts(**least), most=Counts(**most))


class Elastic:
    """What one run does about nodes that come and go. bounds: None for nothing. job: whose numbers give proportions.

    room: what the cluster has for this run; None where there is none. now: monotonic seconds.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        bounds: Bounds | None,
        settle_s: float,
        room: Callable[[], Room | None],
        events: EventLog,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._bounds = bounds
        self._settled = Settled(settle_s, now=now)
        self._settle_s = settle_s
        self._room = room
        self._events = events
        self._now = now
        self._looked_t = now()
        self._counts = Counts.of(job)
        self._due: Replan | None = None
        self._servers: int | None = None

    @staticmethod
    def of(job: Job, spec: JobSpec, *, run: str, placement: Placement, events: EventLog) -> Elastic:
        """For a run of this name and job, where it is placed."""
        section = job.roles.elastic
        return Elastic(
            spec,
            bounds=bounds_of(job.roles),
            settle_s=0.0 if section is None else section.settle_s,
            room=lambda: room_of_run(run, placement=placement),
            events=events,
        )

    @property
    def least(self) -> Counts | None:
        """Numbers below which the run does not go; None where it has no bounds."""
        return None if self._bounds is None else self._bounds.least

    def begin(self, spec: JobSpec) -> None:
        """Training begins, or goes on, with the numbers of `spec`."""
        self._counts, self._due, self._servers = Counts.of(spec), None, None
        self._settled = Settled(self._settle_s, now=self._now)

    def look(self, step: int) -> None:
        """Look at the cluster, now and then, and decide."""
        if self._bounds is None or self._due is not None or self._now() - self._looked_t < _LOOK_EVERY_S:
            return
        self._looked_t = self._now()
        room = self._room()
        if room is None:
            return
        decision = self._settled.look(replan(self._job, now=self._counts, bounds=self._bounds, room=room))
        if decision is not None:
            self._act(decision, step)

    def due(self) -> bool:
        """Whether training is to be cut, so that it goes on with other numbers."""
        return self._due is not None

    def take(self) -> Counts | None:
        """The numbers to go on with after a cut, if it was for that."""
        return None if self._due is None else self._due.counts

    def beside(self, others: ServersPlace) -> ServersPlace:
        """Where servers change their number while training goes on: at the wish of `others`, or at this one's."""

        def told(news: ServersChanging | ServersReport) -> None:
            others.told(news)
            if isinstance(news, ServersReport) and news.error is None:
                self._counts = replace(self._counts, servers=news.after)

        return ServersPlace(asked=lambda: others.asked() or self._take_servers(), told=told)

    def _take_servers(self) -> int | None:
        wanted, self._servers = self._servers, None
        return wanted

    def _act(self, decision: Replan, step: int) -> None:
        before, after = self._counts, decision.counts
        alone = replace(after, servers=before.servers) == before and refusal(self._job) is None
        done = "kept" if after == before else "while it trains" if alone else "by a snapshot"
        self._events.event(
            "roles.replanned", step=step, before=asdict(before), after=asdict(after), done=done, reason=decision.reason
        )
        _LOG.info("roles: %s (%s): %s", after, done, decision.reason)
        if after == before:
            return
        if alone:
            self._servers = after.servers
        else:
            self._due = decision
