"""Memory for the large arrays of splits, which a reader makes and drops all the while.

The C library gives such memory back to the system when it is freed, and pages that come anew are cleared first: a fifth
of a reader's time (13.6 MB of keys a split, 2 MiB pages).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.region import Region
from hetero.records import U64

_FAR_TOO_LARGE = 4


class _Block:
    """A region that an array stands on: the array and its views hold the block, and without any the region is free."""

    def __init__(self, region: Region, size: int, free: list[Region]) -> None:
        self._region = region
        self._free = free
        self.__array_interface__ = {"data": (region.address, False), "shape": (size,), "typestr": "=u8", "version": 3}

    def __del__(self) -> None:
        self._free.append(self._region)


class Blocks:
    """Arrays whose memory is taken again once nothing looks at them any more. Any thread may make and drop them.

    Memory stays at the most that was in use at once: a window's splits come free together and are needed again.
    """

    def __init__(self) -> None:
        self._free: list[Region] = []

    def empty(self, rows: int, columns: int) -> U64:
        """uint64 [rows, columns], not filled."""
        size = rows * columns
        block: Any = _Block(self._take(8 * max(1, size)), size, self._free)
        flat: U64 = np.asarray(block)
        return flat.reshape(rows, columns)

    def _take(self, size: int) -> Region:
        """A free region of at least `size` bytes that is not far too large, or a new one."""
        while True:
            try:
                region = self._free.pop()
            except IndexError:
                return Region(size)
            if size <= region.size <= _FAR_TOO_LARGE * size:
                return region
