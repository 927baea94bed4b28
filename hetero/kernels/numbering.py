"""Numbers of rows: each (table, key) gets the next whole number when it is first met, and keeps it.

Contract: known rows are tables uint16 [n], keys uint64 [n] by number; slots uint32, a power of two of them, hold 1 +
the number of a row, 0 is empty, linear probing from the row's hash.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hetero.kernels.address import prefetch
from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import GOLDEN, mix64
from hetero.records import I32, U16, U64

U32 = npt.NDArray[np.uint32]
_AHEAD = 16


@inline
def _first_slot(table: np.uint16, key: np.uint64, mask: np.uint64) -> np.uint64:
    return np.uint64(mix64(key ^ (np.uint64(table) * GOLDEN)) & mask)


@kernel
def number_kernel(
    tables: U16, keys: U64, slots: U32, known_tables: U16, known_keys: U64, known: int, add: bool, numbers: I32
) -> int:
    """Fill numbers int32 [N]; returns how many rows are known afterwards.

    add: unknown rows get numbers from `known` on, and are written to known_tables and known_keys, which have room, as
    have the slots; otherwise their number is -1.
    """
    mask, one = np.uint64(len(slots) - 1), np.uint64(1)
    first = np.uint64(slots.ctypes.data)
    count = np.uint32(known)
    for i in range(len(keys)):
        if i + _AHEAD < len(keys):
            prefetch(first + np.uint64(4) * _first_slot(tables[i + _AHEAD], keys[i + _AHEAD], mask))
        key, table = keys[i], tables[i]
        place = _first_slot(table, key, mask)
        slot = slots[place]
        while slot != np.uint32(0):
            found = np.uint64(slot - np.uint32(1))
            if known_keys[found] == key and known_tables[found] == table:
                break
            place = (place + one) & mask
            slot = slots[place]
        if slot == np.uint32(0) and add:
            known_tables[np.uint64(count)] = table
            known_keys[np.uint64(count)] = key
            count += np.uint32(1)
            slot = count
            slots[place] = slot
        numbers[i] = np.int32(np.int64(slot) - 1)
    return np.int64(count)  # type: ignore[return-value]


@kernel
def enter_kernel(tables: U16, keys: U64, slots: U32) -> None:
    """Enter rows 0, 1, 2, ... into slots, which are empty."""
    mask, one = np.uint64(len(slots) - 1), np.uint64(1)
    for i in range(len(keys)):
        place = _first_slot(tables[i], keys[i], mask)
        while slots[place] != np.uint32(0):
            place = (place + one) & mask
        slots[place] = np.uint32(i + 1)
