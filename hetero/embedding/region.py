"""Memory that grows in place: private anonymous maps, which the kernel extends without copying.

Untouched pages cost no resident memory. Regions ask for huge pages, since rows are read in random order.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

_PAGE = mmap.PAGESIZE
_CAN_GROW = hasattr(mmap, "MAP_ANONYMOUS") and hasattr(mmap, "MADV_HUGEPAGE")  # Linux: mremap


class Region:
    """Zeroed memory of at least `size` bytes at `address`, which may change when it grows."""

    def __init__(self, size: int) -> None:
        self._map = _mapped(size)
        self.address = _address(self._map)

    @property
    def size(self) -> int:
        return len(self._map)

    def grow(self, size: int) -> None:
        """Make room for `size` bytes; what it held stays. Where the system cannot extend a map it is copied once."""
        if size <= len(self._map):
            return
        if _CAN_GROW:
            self._map.resize(_whole_pages(size))
            _ask_for_huge_pages(self._map)
        else:
            larger = _mapped(size)
            larger[: len(self._map)] = self._map[:]
            self._map.close()
            self._map = larger
        self.address = _address(self._map)

    def clear(self, size: int) -> None:
        """Hold zeroed memory of at least `size` bytes instead; what it held is gone."""
        self._map.close()
        self._map = _mapped(size)
        self.address = _address(self._map)


def _mapped(size: int) -> mmap.mmap:
    if _CAN_GROW:
        region = mmap.mmap(-1, _whole_pages(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        _ask_for_huge_pages(region)
        return region
    return mmap.mmap(-1, _whole_pages(size))


def _ask_for_huge_pages(region: mmap.mmap) -> None:
    with contextlib.suppress(OSError):  # a kernel without them: ordinary pages serve
        region.madvise(mmap.MADV_HUGEPAGE)


def _whole_pages(size: int) -> int:
    return max(1, -(-size // _PAGE)) * _PAGE


def _address(region: mmap.mmap) -> int:
    return int(np.frombuffer(region, np.uint8).ctypes.data)
