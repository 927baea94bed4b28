"""Epochs: the stretches between cuts, by which a row says when it changed last in 6 bits of its record.

Epochs are numbered 0, 1, 2, ...; a row holds 1 + number % 63, or 0 for "before all that can be told apart". So at most
63 epochs may be in use: a cut of all rows, once 31 are, writes 0 into every row it passes (`renewal_due`), and when all
63 are, because no such cut came to its end, the store must forget them at once (`exhausted`).
"""

from __future__ import annotations

import numpy as np

from hetero.errors import ProtocolError
from hetero.kernels.index import EPOCH_SHIFT
from hetero.records import U8

_VALUES = 63
_RENEW_FROM = 31
_KEPT_FOR_FAILURES = 8


class Epochs:
    """The epoch now, and which rows changed after an earlier one."""

    def __init__(self) -> None:
        self._now = 0
        self._first = 0  # no row tells an epoch before this one
        self._oldest_mark = -1

    @property
    def field(self) -> np.uint16:
        """The epoch now, as it stands in a record's field."""
        return np.uint16(_value(self._now) << EPOCH_SHIFT)

    @property
    def exhausted(self) -> bool:
        """Whether no further epoch can be told from those in use."""
        return self._now - self._first >= _VALUES - 1

    @property
    def renewal_due(self) -> bool:
        """Whether the next cut of all rows ought to let them forget their epochs."""
        return self._now - self._first >= _RENEW_FROM

    @property
    def now(self) -> int:
        """The epoch now, by its number."""
        return self._now

    def advance(self) -> int:
        """End this epoch and begin the next; returns its number, the mark of the cut between them."""
        if self.exhausted:
            raise ProtocolError(f"{_VALUES} epochs are in use, rows cannot tell another")
        self._now += 1
        return self._now - 1

    def tells_since(self, mark: int) -> bool:
        """Whether rows can tell if they changed after the cut with this mark, and will at the next cut."""
        room = self._now - self._first < _VALUES - _KEPT_FOR_FAILURES
        return room and self._first - 1 <= mark < self._now and mark >= self._oldest_mark

    def changed(self, *, since: int | None, until: int) -> U8:
        """By value in a row's field, uint8 [64]: 1 for changed after mark `since` (None: ever), up to mark `until`."""
        table = np.zeros(_VALUES + 1, np.uint8)
        if since is None:
            table[:] = 1
        else:
            for number in range(since + 1, until + 1):
                table[_value(number)] = 1
        return table

    def begin_renewal(self, *, mark: int) -> None:
        """Rows begin to forget epochs up to this mark: earlier marks tell nothing any more."""
        self._oldest_mark = mark

    def renewed(self) -> None:
        """Every row has forgotten all epochs but the one now."""
        self._first = self._now
        self._oldest_mark = max(self._oldest_mark, self._now - 1)


def _value(number: int) -> int:
    return 1 + number % _VALUES
