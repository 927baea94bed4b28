"""A change of the number of servers while training goes on: when, at whose wish, and how they hand over.

Consumes   the job's schedule, requests from outside
Produces   servers of another number that hold the same rows; a report of each change
Waits for  a snapshot that is being written; the towers, at the boundary

Buckets that move are copied in the background. When the copy is there, towers are cut (`hetero.loops.cuts`): no row is
leased, no push under way. Then every server sends what changed since its copy, all go by the new routing, and towers
learn of it as their next call is refused. Rows that were copied are freed in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hetero.errors import UserError
from hetero.exchange.messages import Pending
from hetero.exchange.moving import Sent
from hetero.keys.routing import Routing
from hetero.records import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersChanging:
    """A change has begun, with the copy. step: after so many. before, after: numbers of servers."""

    step: int
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersReport:
    """What became of a change. step: after which the new servers hold. before, after: numbers of servers.

    rows: that have another server now. bytes: sent, keys included. copy_s: seconds of the copy in the background.
    at_boundary: rows sent while training stood still, for pause_s seconds. error: why it was given up, or None.
    """

    step: int
    before: int
    after: int
    rows: int = 0
    bytes: int = 0
    copy_s: float = 0.0
    at_boundary: int = 0
    pause_s: float = 0.0
    error: str | None = None


def nobody_asks() -> int | None:
    """Wants no other number of servers."""
    return None


def nobody_listens(news: ServersChanging | ServersReport) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersPlace:
    """Who else decides how many servers there are. asked: looked at now and then: a number that was asked for since, or
    None. told: hears of every change, when it begins and of what became of it."""

    asked: Callable[[], int | None] = field(default=nobody_asks)
    told: Callable[[ServersChanging | ServersReport], None] = field(default=nobody_listens)


AS_SCHEDULED = ServersPlace()


def refusal(job: JobSpec) -> str | None:
    """Why this job's servers cannot change while it trains; None when they can."""
    if job.storage is not None:
        return "rows on SSD (storage) do not tell what changed since they were copied; leave storage out"
    if any(group.admission or group.eviction for group in job.groups):
        return "what policies count of keys without rows stays on its server; leave admission and eviction out"
    if not job.mode.joint:
        return f"mode `{job.mode.value}` keeps dense parameters on the servers; take `sync` or `bounded`"
    return None


def check_number(job: JobSpec, servers: int) -> None:
    """Raises UserError when this job cannot go on with so many servers."""
    why = refusal(job)
    if why is not None:
        raise UserError(f"the number of servers cannot change while training: {why}")
    if not 1 <= servers <= job.buckets:
        raise UserError(f"{servers} servers: take 1 to {job.buckets}, the number of buckets")


class Wishes:
    """How many servers there are to be: what the job's schedule or a request said last."""

    def __init__(self, job: JobSpec, place: ServersPlace) -> None:
        self._place = place
        self._schedule = list(job.server_schedule)
        self._wanted: int | None = None

    def look(self, step: int) -> None:
        """Take note of what is wanted after `step` steps."""
        while self._schedule and self._schedule[0].step <= step:
            self._wanted = self._schedule.pop(0).count
        asked = self._place.asked()
        self._wanted = self._wanted if asked is None else asked

    def take(self, servers: int) -> int | None:
        """The number that is wanted and is not `servers`, once."""
        wanted, self._wanted = self._wanted, None
        return None if wanted == servers else wanted


class MovingServer(Protocol):
    """A server at the boundary, as tower 0 sees it."""

    def send_rest(self) -> Pending[Sent]:
        """Send what changed since the copy; done when its targets hold it."""

    def adopt(self, then: Routing, *, steps: int) -> Pending[None]:
        """Go by this routing."""


def hand_over(servers: Sequence[MovingServer], then: Routing, *, steps: int) -> Sent:
    """Let all servers, those that come and those that leave among them, go from one routing to the next."""
    sent = Sent()
    for answer in [server.send_rest() for server in servers]:
        sent += answer.result()
    for adopted in [server.adopt(then, steps=steps) for server in servers]:
        adopted.result()
    return sent
