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

    huge_from: bytes from which it stands on huge pages. When the system has no more memory, calls raise OSError and the
    region is as it was.
    """

    def __init__(self, size: int, *, huge_from: int = _HUGE_FROM) -> None:
        self._huge_from = huge_from
        self._map = _mapped(size, huge_from)
        self.address = _address(self._map)

    @property
    def size(self) -> int:
        return len(self._map)

    def view(self, size: int) -> memoryview:
        """Its first bytes; while it lives the region can neither grow nor be cleared."""
        return memoryview(self._map)[:size]

    def grow(self, size: int) -> None:
        """Make room for `size` bytes; what it held stays."""
        if size <= len(self._map):
            return
        if _CAN_GROW and not len(self._map) < self._huge_from <= size:
            self._map.resize(_whole_pages(size, self._huge_from))
            _ask_for_huge_pages(self._map, self._huge_from)
            self.address = _address(self._map)
        else:
            larger = _mapped(size, self._huge_from)
            larger.write(self._map)
            self._replace(larger)

    def clear(self, size: int) -> None:
        """Hold zeroed memory of at least `size` bytes instead; what it held is gone."""
        self._replace(_mapped(size, self._huge_from))

    def _replace(self, fresh: mmap.mmap) -> None:
        self._map.close()
        self._map = fresh
        self.address = _address(fresh)


class FixedRegion:
    """Zeroed memory of at least `size` bytes at `address`, for good. It begins where a huge page may, so that it stands
    on huge pages but for its last part, and none is idle. When the system has no more memory, the call raises OSError.
    """

    def __init__(self, size: int) -> None:
        self.size = max(1, -(-size // _PAGE)) * _PAGE
        huge = self.size // _HUGE_PAGE * _HUGE_PAGE if _CAN_GROW else 0
        if not huge:
            self._map = _mapped(self.size, self.size + 1)
            self.address = _address(self._map)
            return
        self._map = mmap.mmap(-1, self.size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        first = _address(self._map)
        self.address = -(-first // _HUGE_PAGE) * _HUGE_PAGE
        with contextlib.suppress(OSError):  # a kernel without them: ordinary pages serve
            self._map.madvise(mmap.MADV_HUGEPAGE, self.address - first, huge)


def _mapped(size: int, huge_from: int) -> mmap.mmap:
    if _CAN_GROW:
        region = mmap.mmap(-1, _whole_pages(size, huge_from), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        _ask_for_huge_pages(region, huge_from)
        return region
    return mmap.mmap(-1, _whole_pages(size, huge_from))


def _ask_for_huge_pages(region: mmap.mmap, huge_from: int) -> None:
    if len(region) >= huge_from:
        with contextlib.suppress(OSError):  # a kernel without them: ordinary pages serve
            region.madvise(mmap.MADV_HUGEPAGE)


def _whole_pages(size: int, huge_from: int) -> int:
    page = _PAGE if size < huge_from else _HUGE_PAGE
    return max(1, -(-size // page)) * page


def _address(region: mmap.mmap) -> int:
    return int(np.frombuffer(region, np.uint8).ctypes.data)
