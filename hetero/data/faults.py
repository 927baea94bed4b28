"""Which rows of a block cannot be used, and why."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hetero.records import I64

Bool = npt.NDArray[np.bool_]

_LONGEST_CELL = 40


class RowFaults:
    """Collects bad rows of one block; of several faults of a row the first one marked stands."""

    def __init__(self, rows: int) -> None:
        self._bad: Bool = np.zeros(rows, np.bool_)
        self._reasons: dict[int, str] = {}

    def mark(self, bad: Bool | None, *, describe: Callable[[int], str]) -> None:
        """Marks the rows where `bad` (bool [rows], None: nowhere) holds; `describe` turns a row into a reason."""
        if bad is None or not bad.any():
            return
        fresh = np.flatnonzero(bad & ~self._bad)
        self._bad |= bad
        for row in fresh.tolist():
            self._reasons[row] = describe(row)

    def good_rows(self) -> I64 | None:
        """Rows without a fault, int64, in order; None when that is all of them."""
        return np.flatnonzero(~self._bad).astype(np.int64) if self._reasons else None

    def reasons(self) -> list[tuple[int, str]]:
        """(row, reason) of every bad row, by row."""
        return sorted(self._reasons.items())


def show_cell(array: pa.Array, row: int) -> str:
    """One value as a message shows it: quoted text, cut when long."""
    value = array[row].as_py()
    text = repr(value.decode(errors="replace") if isinstance(value, bytes) else value)
    return text if len(text) <= _LONGEST_CELL else text[:_LONGEST_CELL] + "..."
