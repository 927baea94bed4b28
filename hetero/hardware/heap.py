"""How the C library's heap of this process treats freed memory.

A step allocates and frees the same large arrays, tens of MB each. By default glibc maps what is above 32 MB anew each
time, and gives the heap's end back when much of it is free; a page the kernel hands out again costs 2.8 us on the
machine this was written on (4 KiB, a virtual machine): 88 ms for the 100 MB of a batch of 16384, against 18 ms where
memory is kept. `benchmarks.step` counts the page faults of a step with and without.
"""

from __future__ import annotations

import ctypes
import sys

# malloc.h of glibc
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let freed memory stay with this process for its next allocations; whether the C library can do so (glibc).

    To be called early: threads that have a heap of their own keep it, and those give memory back. The process's
    resident memory then never falls.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _LARGEST_INT), (_M_ARENA_MAX, 1))
    taken = [library.mallopt(name, value) == 1 for name, value in settings]
    return all(taken)
