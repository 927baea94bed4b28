"""What tiered stores hold and have done, for summaries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hetero.embedding.ssd.rows import SsdUse


@dataclass(slots=True, kw_only=True)
class TierCounts:
    """Rows that calls asked for, by where they were: memory, SSD, nowhere (created). evicted: from memory to SSD."""

    memory: int = 0
    ssd: int = 0
    created: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse:
    """What a tiered store holds and has done. budget_bytes: of memory."""

    counts: TierCounts
    ssd: SsdUse
    memory_rows: int
    leased_rows: int
    memory_bytes: int
    budget_bytes: int


def added_up(uses: Iterable[TierUse]) -> dict[str, int]:
    """Counts of several stores, added up; empty for none."""
    total: dict[str, int] = {}
    for use in uses:
        counts = {
            "memory_hits": use.counts.memory,
            "ssd_hits": use.counts.ssd,
            "created": use.counts.created,
            "evicted": use.counts.evicted,
            "memory_rows": use.memory_rows,
            "leased_rows": use.leased_rows,
            "ssd_rows": use.ssd.rows,
            "memory_bytes": use.memory_bytes,
            "memory_budget_bytes": use.budget_bytes,
            "disk_bytes": use.ssd.disk_bytes,
            "disk_read_bytes": use.ssd.read_bytes,
            "disk_written_bytes": use.ssd.written_bytes,
            "evicted_bytes": use.ssd.row_bytes_written,
        }
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total
