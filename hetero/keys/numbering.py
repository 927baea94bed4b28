"""Whole numbers for rows, so that what is kept beside rows lies in plain arrays, in the order rows were first met."""

from __future__ import annotations

import numpy as np

from hetero.errors import CapacityError
from hetero.kernels.numbering import enter_kernel, number_kernel
from hetero.records import I32, KeySet

_FEWEST_SLOTS = 1 << 10
_MOST_ROWS = (1 << 31) - 1


class KeyNumbers:
    """Numbers 0, 1, 2, ... of rows, given when a row is first met. 18 to 34 bytes a row; one thread at a time."""

    def __init__(self) -> None:
        self._slots = np.zeros(_FEWEST_SLOTS, np.uint32)
        self._tables, self._keys = np.empty(_FEWEST_SLOTS // 2, np.uint16), np.empty(_FEWEST_SLOTS // 2, np.uint64)
        self._known = 0

    def __len__(self) -> int:
        return self._known

    def number(self, keys: KeySet) -> I32:
        """Numbers of rows, int32 [n]; unknown ones get the next numbers, in their order. Repeats are allowed.

        Raises CapacityError above 2^31 - 1 rows.
        """
        self._make_room(self._known + len(keys))
        numbers = np.empty(len(keys), np.int32)
        self._known = number_kernel(*self._arguments(keys), True, numbers)
        return numbers

    def find(self, keys: KeySet) -> I32:
        """Numbers of rows, int32 [n], -1 for those never met."""
        numbers = np.empty(len(keys), np.int32)
        number_kernel(*self._arguments(keys), False, numbers)
        return numbers

    def keys_of(self, numbers: I32) -> KeySet:
        """The rows that have these numbers."""
        return KeySet(self._tables[numbers], self._keys[numbers])

    def _arguments(self, keys: KeySet) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        given = (np.require(part, None, ("C", "A", "W")) for part in (keys.tables, keys.keys))
        return (*given, self._slots, self._tables, self._keys, self._known)  # type: ignore[return-value]

    def _make_room(self, rows: int) -> None:
        if rows > _MOST_ROWS:
            raise CapacityError(f"{rows} rows would be numbered, at most {_MOST_ROWS} are possible; use more servers")
        if rows > len(self._keys):
            self._tables = grown(self._tables, 2 * rows)
            self._keys = grown(self._keys, 2 * rows)
        if 2 * rows > len(self._slots):
            self._slots = np.zeros(1 << (4 * rows - 1).bit_length(), np.uint32)
            enter_kernel(self._tables[: self._known], self._keys[: self._known], self._slots)


def grown(values: np.ndarray, rows: int, *, fill: float = 0) -> np.ndarray:
    """A copy of `values` with room for `rows` rows, `fill` in the new ones."""
    larger = np.full((rows, *values.shape[1:]), fill, values.dtype)
    larger[: len(values)] = values
    return larger
