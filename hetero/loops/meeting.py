"""Where towers that do not wait for each other meet, so that a snapshot finds all of them after the same step."""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Absent(Enum):
    """A meeting without a result: not everyone is there yet, or someone has ended and never comes."""

    YET = "yet"
    ENDED = "ended"


class MeetingPlace(Protocol):
    """The meetings of a run as a tower sees them."""

    def meet(self, tower: int, *, number: int, value: int) -> int | Absent:
        """Come to a meeting; the greatest value that anyone brought, once all are there. Ask again for `Absent.YET`."""

    def leave(self, tower: int) -> None:
        """Come to no further meeting."""


class Meetings:
    """The meetings of one phase, numbered from 0. One caller at a time. What came out of a meeting stays."""

    def __init__(self, *, towers: int) -> None:
        self._towers = towers
        self._left: set[int] = set()
        self._brought: dict[int, dict[int, int]] = {}
        self._results: dict[int, int | Absent] = {}

    def meet(self, tower: int, *, number: int, value: int) -> int | Absent:
        if number not in self._results:
            brought = self._brought.setdefault(number, {})
            brought[tower] = value
            if len(brought) == self._towers:
                self._results[number] = max(brought.values())
            elif self._left - brought.keys():
                self._results[number] = Absent.ENDED
        return self._results.get(number, Absent.YET)

    def leave(self, tower: int) -> None:
        self._left.add(tower)
