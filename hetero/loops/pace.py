"""Something done at most every so often inside a loop."""

from __future__ import annotations

import time
from collections.abc import Callable


class GrowingPace:
    """As Pace, ever rarer: what lies between is at least a `share` of the time since the beginning. So a log of it
    grows with the logarithm of the time.
    """

    def __init__(self, *, share: float, now: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._now = now
        self._started = now()
        self._next = -float("inf")

    @property
    def is_due(self) -> bool:
        """What `due` would say."""
        return self._now() >= self._next

    def due(self) -> bool:
        now = self._now()
        if now < self._next:
            return False
        self._next = now + self._share * (now - self._started)
        return True


class Pace:
    """`due()` is true at most once every `every_s` seconds, the first time at once. `now`: a monotonic clock."""

    def __init__(self, every_s: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._now = now
        self._next = -float("inf")

    def due(self) -> bool:
        now = self._now()
        if now < self._next:
            return False
        self._next = now + self._every_s
        return True
