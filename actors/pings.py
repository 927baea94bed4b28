"""Whether actors live: every so often each is asked, and none is waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from actors.calls import as_hetero_error
from actors.naming import Member
from hetero.errors import DeadlineError

_PING_EVERY_S = 2.0
_SILENT_SHARE = 0.5  # who was waited for in vain may have been asked for a ping a little later


@dataclass(frozen=True, slots=True)
class _Ping:
    member: Member
    sent_t: float


class Pings:
    """Pings of `members`, by handle; looked at with every `check`."""

    def __init__(self, members: Mapping[Member, Any], *, deadline_s: float) -> None:
        self._members = members
        self._deadline_s = deadline_s
        self._under_way: dict[ray.ObjectRef, _Ping] = {}
        self._next_t = 0.0

    def forget(self, member: Member) -> None:
        """Expect no answer to what `member` was asked: another takes its place."""
        self._under_way = {ref: ping for ref, ping in self._under_way.items() if ping.member != member}

    def silent(self) -> list[Member]:
        """Who has not answered for so long that it will not."""
        since = time.monotonic() - _SILENT_SHARE * self._deadline_s
        return [ping.member for ping in self._under_way.values() if ping.sent_t < since]

    def check(self) -> None:
        """Look at the pings under way and send new ones when due; never waits.

        Raises PeerLostError for an actor that died, DeadlineError for one that has not answered for the run's deadline.
        """
        now = time.monotonic()
        if self._under_way:
            done, _ = ray.wait(list(self._under_way), num_returns=len(self._under_way), timeout=0)
            for ref in done:
                member = self._under_way.pop(ref).member
                try:
                    ray.get(ref)
                except Exception as error:
                    raise as_hetero_error(error, member=member, what="ping", deadline_s=self._deadline_s) from None
        for ping in self._under_way.values():
            if now - ping.sent_t > self._deadline_s:
                raise DeadlineError(
                    f"{ping.member} has not answered for {now - ping.sent_t:.0f} s (limit {self._deadline_s:g} s): its "
                    "process is stopped or its node is cut off",
                    role=ping.member.short,
                )
        if now >= self._next_t:
            waiting = {ping.member for ping in self._under_way.values()}
            for member, handle in self._members.items():
                if member not in waiting:
                    self._under_way[handle.ping.remote()] = _Ping(member, now)
            self._next_t = now + _PING_EVERY_S
