"""Which buckets a file of a snapshot holds, as ranges [start, stop)."""

from __future__ import annotations

import numpy as np

from hetero.checkpoint.manifest import JobRecord, Ranges


def overlaps(ranges: Ranges, record: JobRecord, mine: np.ndarray) -> bool:
    """Whether a file with these ranges, of a snapshot of `record`, may hold rows of the buckets marked in `mine`, bool
    [buckets]."""
    finest = max(record.buckets, len(mine))
    spread = np.repeat(mine, finest // len(mine))
    scale = finest // record.buckets
    return any(bool(spread[start * scale : stop * scale].any()) for start, stop in ranges)


def bucket_ranges(buckets: np.ndarray) -> Ranges:
    """Ascending numbers as runs [start, stop)."""
    if not len(buckets):
        return ()
    breaks = np.flatnonzero(np.diff(buckets) != 1) + 1
    runs = np.split(buckets, breaks)
    return tuple((int(run[0]), int(run[-1]) + 1) for run in runs)
