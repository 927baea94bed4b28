"""Predictions on their way from a tower to the driver, who fetches them a few times a second."""

from __future__ import annotations

import threading

from hetero.errors import DeadlineError
from hetero.loops.results import ScoredPart

MOST_ROWS = 1 << 22
TAKEN_WITHIN_S = 600.0


class Handover:
    """A queue of parts for one producer and one consumer, bounded in rows: the producer waits for the consumer."""

    def __init__(self, *, most_rows: int = MOST_ROWS, taken_within_s: float = TAKEN_WITHIN_S) -> None:
        self._most_rows = most_rows
        self._taken_within_s = taken_within_s
        self._parts: list[ScoredPart] = []
        self._rows = 0
        self._news = threading.Condition()

    def put(self, part: ScoredPart) -> None:
        """Add a part once there is room; one part always fits into an empty queue.

        Raises DeadlineError when nothing was taken for so long that the driver must be gone or stuck.
        """
        rows = len(part.predictions)
        with self._news:
            roomy = self._news.wait_for(
                lambda: not self._parts or self._rows + rows <= self._most_rows, timeout=self._taken_within_s
            )
            if not roomy:
                raise DeadlineError(
                    f"tower {part.tower}: the driver has not taken predictions for {self._taken_within_s:g} s "
                    f"({self._rows} rows wait, at most {self._most_rows} may)"
                )
            self._parts.append(part)
            self._rows += rows

    def take(self) -> list[ScoredPart]:
        """Everything there is, in the order it came; never waits."""
        with self._news:
            parts, self._parts, self._rows = self._parts, [], 0
            self._news.notify_all()
            return parts
