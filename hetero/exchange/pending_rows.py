"""Rows that several servers were asked for, as one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hetero.errors import ProtocolError, StaleRoutingError
from hetero.exchange.messages import LeaseReply, Pending, PullReply
from hetero.exchange.traffic import Traffic, bytes_of
from hetero.keys.routing import Routed
from hetero.observe.spans import Span, SpanClock
from hetero.records import F32


@dataclass(frozen=True, slots=True)
class Asked:
    """Answers of all servers under way, and how they make up what was asked for, per group. version: see `Routing`.

    bags: of groups whose rows the servers pool, how many; 0 for rows.
    """

    version: int
    routed: Sequence[Sequence[Routed]]
    answers: Sequence[Pending[PullReply] | Pending[LeaseReply]]
    bags: Sequence[int]


class PendingRows:
    """Rows under way from several servers, put in the order they were asked for. widths: floats a row, per group.

    ask: asks all servers. follow: makes the client go by the routing in an error; what was refused is asked for anew.
    own: whether rows are to be writable and in this process's memory; else one server's are given as they came.
    """

    def __init__(
        self,
        ask: Callable[[], Asked],
        *,
        widths: Sequence[int],
        follow: Callable[[StaleRoutingError, int], None],
        clock: SpanClock,
        traffic: Traffic,
        own: bool = True,
    ) -> None:
        self._ask, self._follow = ask, follow
        self._widths, self._clock, self._traffic, self._own = widths, clock, traffic, own
        self._asked = ask()

    def result(self) -> tuple[F32, ...]:
        """Per group float32 [U, width], or [bags, width] where servers pool."""
        while True:
            replies = self._replies()
            if replies is not None:
                return self._in_order(replies)
            self._asked = self._ask()

    def _replies(self) -> list[PullReply | LeaseReply] | None:
        """What the servers answered; None when they go by another routing, which is followed now.

        Raises ProtocolError when some of them go by it and some do not.
        """
        replies: list[PullReply | LeaseReply] = []
        refused: StaleRoutingError | None = None
        for answer in self._asked.answers:
            try:
                with self._clock.span(Span.WAIT_SERVER):
                    replies.append(answer.result())
            except StaleRoutingError as error:
                refused = error
        if refused is None:
            return replies
        if replies:
            raise ProtocolError(f"{len(replies)} servers answered by a routing that another refused: {refused}")
        self._follow(refused, self._asked.version)
        return None

    def _in_order(self, replies: Sequence[PullReply | LeaseReply]) -> tuple[F32, ...]:
        for reply in replies:
            self._traffic.pulled += bytes_of(reply.rows)
        return tuple(
            self._group_in_order(group, [reply.rows[group] for reply in replies]) for group in range(len(self._widths))
        )

    def _group_in_order(self, group: int, parts: Sequence[F32]) -> F32:
        """One group's rows from those of every server."""
        routed, bags, width = self._asked.routed[group], self._asked.bags[group], self._widths[group]
        if bags:
            sums = np.zeros((bags, width), np.float32)
            for part in parts:
                sums += part
            return sums
        if len(parts) == 1:
            return np.array(parts[0]) if self._own else parts[0]
        rows = np.empty((sum(len(own.positions) for own in routed), width), np.float32)
        for own, part in zip(routed, parts, strict=True):
            rows[own.positions] = part
        return rows
