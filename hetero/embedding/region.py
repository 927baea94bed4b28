"""Memory that grows in place: private anonymous maps, which the kernel extends without copying.

Untouched pages cost no resident memory. Rows are read in random order, so large regions stand on whole huge pages, of
which the last may be idle; a small region becomes a large one by a copy.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

_PAGE = mmap.PAGESIZE
_HUGE_PAGE = 1 << 21
_HUGE_FROM = 1 << 22
_CAN_GROW = hasattr(mmap, "MAP_ANONYMOUS") and hasattr(mmap, "MADV_HUGEPAGE")  # Linux: mremap


class Region:
    """Zeroed memory of at least `size` bytes at `address`, which may change when it grows.

    When the system has no more memory, calls raise OSError and the region is as it was.
    """

    def __init__(self, size: int) -> None:
        self._map = _mapped(size)
        self.address = _address(self._map)

    @property
    def size(self) -> int:
        return len(self._map)

    def grow(self, size: int) -> None:
        """Make room for `size` bytes; what it held stays."""
        if size <= len(self._map):
            return
        if _CAN_GROW and not len(self._map) < _HUGE_FROM <= size:
            self._map.resize(_whole_pages(size))
            _ask_for_huge_pages(self._map)
            self.address = _address(self._map)
        else:
            larger = _mapped(size)
            larger.write(self._map)
            self._replace(larger)

    def clear(self, size: int) -> None:
        """Hold zeroed memory of at least `size` bytes instead; what it held is gone."""
        self._replace(_mapped(size))

    def _replace(self, fresh: mmap.mmap) -> None:
        self._map.close()
        self._map = fresh
        self.address = _address(fresh)


def _mapped(size: int) -> mmap.mmap:
    if _CAN_GROW:
        region = mmap.mmap(-1, _whole_pages(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        _ask_for_huge_pages(region)
        return region
    return mmap.mmap(-1, _whole_pages(size))


def _ask_for_huge_pages(region: mmap.mmap) -> None:
    if len(region) >= _HUGE_FROM:
        with contextlib.suppress(OSError):  # a kernel without them: ordinary pages serve
            region.madvise(mmap.MADV_HUGEPAGE)


def _whole_pages(size: int) -> int:
    page = _PAGE if size < _HUGE_FROM else _HUGE_PAGE
    return max(1, -(-size // page)) * page


def _address(region: mmap.mmap) -> int:
    return int(np.frombuffer(region, np.uint8).ctypes.data)
