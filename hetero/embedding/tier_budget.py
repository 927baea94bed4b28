"""What a budget of memory holds: rows, beside the indexes of rows elsewhere and the buffers of calls and of the SSD."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.embedding.lease_table import LEASE_BYTES, LeaseTable
from hetero.embedding.resident import ROW_OVERHEAD_BYTES
from hetero.embedding.shards import SHARDS
from hetero.embedding.ssd.index import MOST_ENTRY_BYTES, SsdIndex
from hetero.embedding.ssd.layout import Layout
from hetero.embedding.ssd.rows import buffer_bytes
from hetero.errors import CapacityError
from hetero.kernels.ssd_records import PAGE
from hetero.optim.definition import group_width
from hetero.records import GroupSpec

_REGIONS_A_SHARD = 3
_HUGE_ROUNDING = 2 << 20
_HUGE_FROM = 4 << 20
_LEAST_ROWS = 64
_PART_BYTES = 4 << 20
_COPIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUse:
    """What an index takes that is not here: of a run that is only simulated."""

    memory_bytes: int
    row_count: int

    def __len__(self) -> int:
        return self.row_count


@dataclass(frozen=True, slots=True, kw_only=True)
class TierBudget:
    """total_bytes: of rows, indexes and buffers together. ssd_bytes: of the SSD's buffers. names: tables, for errors.

    width: floats of a row.
    """

    total_bytes: int
    ssd_bytes: int
    width: int
    names: str

    @property
    def row_bytes(self) -> float:
        """What a row in memory takes."""
        return 4 * self.width + ROW_OVERHEAD_BYTES

    @property
    def part_rows(self) -> int:
        """Rows of a part, when a call works part by part."""
        return self._part_bytes // (4 * self.width)

    def rows(self, *, leases: LeaseTable | IndexUse, index: SsdIndex | IndexUse, beside: int = 0) -> int:
        """Rows that memory may hold beside everything else, `beside` bytes among it.

        Raises CapacityError when those are none.
        """
        indexes = leases.memory_bytes + index.memory_bytes + beside
        room = self.total_bytes - self._buffers - indexes
        rounding = PAGE * _REGIONS_A_SHARD
        if room // SHARDS >= _HUGE_FROM:
            rounding += _HUGE_ROUNDING
        rows = int((room - SHARDS * rounding) // self.row_bytes)
        if rows < _LEAST_ROWS:
            raise CapacityError(
                f"rows of {self.names}: the budget of {self.total_bytes} bytes has no room for rows beside indexes "
                f"({index.memory_bytes} bytes for {index.row_count} rows on SSD, {leases.memory_bytes} for "
                f"{len(leases)} leased ones) and buffers ({self._buffers + SHARDS * rounding}); "
                "raise storage.memory_bytes"
            )
        return rows

    @property
    def _part_bytes(self) -> int:
        return min(_PART_BYTES, self.total_bytes // 64)

    @property
    def _buffers(self) -> int:
        return self.ssd_bytes + _COPIES * self._part_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBudget:
    """Of a store that holds a share of the rows of others: what they would hold with their budgets, in proportion.

    whole: of each of them. share: rows of this store / rows of one of them. empty_index, empty_leases: bytes of the
    indexes without rows, which are those of any store.
    """

    whole: TierBudget
    share: float
    empty_index: int
    empty_leases: int

    @property
    def total_bytes(self) -> int:
        return self.whole.total_bytes

    @property
    def names(self) -> str:
        return self.whole.names

    @property
    def row_bytes(self) -> float:
        return self.whole.row_bytes

    @property
    def part_rows(self) -> int:
        return max(1, int(self.whole.part_rows * self.share))

    def rows(self, *, leases: LeaseTable, index: SsdIndex, beside: int = 0) -> int:
        """As `TierBudget.rows`."""
        lent = self._of(leases.memory_bytes, len(leases), empty=self.empty_leases)
        indexed = self._of(index.memory_bytes, index.row_count, empty=self.empty_index)
        rows = self.whole.rows(leases=lent, index=indexed, beside=int(beside / self.share))
        return max(1, int(rows * self.share))

    def _of(self, memory_bytes: int, rows: int, *, empty: int) -> IndexUse:
        more = max(0, memory_bytes - empty)
        return IndexUse(memory_bytes=empty + int(more / self.share), row_count=int(rows / self.share))


def budget_for(group: GroupSpec, *, rows: int, ssd_rows: int, leased_rows: int, ssd_bytes: int) -> int:
    """A budget of memory that holds so many rows while so many others lie on SSD and with towers, in bytes."""
    width = group_width(group)
    indexes = MOST_ENTRY_BYTES * ssd_rows + LEASE_BYTES * leased_rows + SHARDS * (PAGE + 256)  # those of empty shards
    held = int(rows * (4 * width + ROW_OVERHEAD_BYTES)) + indexes
    rounding = PAGE * _REGIONS_A_SHARD + (_HUGE_ROUNDING if held // SHARDS >= _HUGE_FROM else 0)
    budget = 0
    while True:
        layout = Layout.fitting(width=width, identity=0, memory_bytes=budget, ssd_bytes=ssd_bytes)
        needed = held + buffer_bytes(layout) + _COPIES * min(_PART_BYTES, budget // 64) + SHARDS * rounding
        if needed <= budget:
            return budget
        budget = needed
