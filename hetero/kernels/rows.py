"""Rows of a batch split over a tower's threads, and memory that kernels work on well.

Kernels compute each row (or each block of rows) alone, so a result does not depend on how rows were split.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np

from hetero.records import F32

LINE_FLOATS = 16
"""Floats of a cache line. Rows that begin on one are worth it: with rows of 367 floats MKL's product
`gradient @ weight` ran at 43 GFLOP/s on a Zen 3 core, with the same rows 368 floats apart at 70."""
_SMALL_PARTS = 8
"""So many of the smallest parts a thread would make up all rows."""


def line_up(count: int) -> int:
    """`count` floats, rounded up to whole cache lines."""
    return -(-count // LINE_FLOATS) * LINE_FLOATS


def aligned_floats(count: int) -> F32:
    """Zeros on a cache line's boundary, float32 [count]."""
    memory = np.zeros(count + LINE_FLOATS, np.float32)
    start = -(int(memory.ctypes.data) // 4) % LINE_FLOATS
    return memory[start : start + count]


def over_rows(work: Callable[[int, int], object], rows: int, *, threads: int, block: int = 1) -> None:
    """Call work(start, stop) on parts that cover [0, rows), cut at multiples of `block`; threads take them in order.

    The calling thread is one of them. Where parts lie is a function of the arguments alone; who takes which is not.
    Raises what `work` raises.
    """
    edges = part_edges(rows, threads=threads, block=block)
    parts = deque(pairwise(edges))

    def take() -> None:
        while True:
            try:
                start, stop = parts.popleft()
            except IndexError:
                return
            work(start, stop)

    helpers = min(threads, len(edges) - 1) - 1
    others = [_pool().submit(take) for _ in range(helpers)]
    try:
        take()
    finally:
        for other in others:
            other.result()


def part_edges(rows: int, *, threads: int, block: int) -> list[int]:
    """Where parts begin and end: each is a share of what is left, so that the last ones are small.

    A thread that shares its core with others is then waited for no longer than a small part takes: two threads with
    half of the rows each spent a seventh of a tower's time waiting for each other.
    """
    blocks = -(-rows // block)
    if threads == 1:
        return [0, rows] if rows else [0]
    least = -(-blocks // (_SMALL_PARTS * threads))
    edges = [0]
    at = 0
    while at < blocks:
        at += max(least, (blocks - at) // (2 * threads))
        edges.append(min(rows, at * block))
    return edges


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, os.cpu_count() or 1), thread_name_prefix="rows")
