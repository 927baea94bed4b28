"""How rows move between memory and SSD: what comes in, what goes out for it, what is read where it is.

Consumes   unique keys of one store
Produces   rows in memory, or read where they are
Waits for  the disk, for rows that lie there
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hetero.embedding.answers import RowsRead
from hetero.embedding.lease_table import LeaseTable
from hetero.embedding.resident import ResidentRows
from hetero.embedding.ssd.rows import SsdRows
from hetero.embedding.store import RowStore
from hetero.embedding.tier_budget import SampledBudget, TierBudget
from hetero.embedding.tier_use import TierCounts
from hetero.errors import CapacityError
from hetero.kernels.residency import MOST_USES
from hetero.records import I32, U64, KeySet

# Evicting some more than needed makes appends larger and the hands' rounds rarer.
_EXTRA_SHARE = 32


class Tiers:
    """The rows of one store in memory and on SSD. One caller at a time.

    budget: of rows, indexes and buffers together; leases: of the store, which it holds too. most_rows: in memory, where
    the budget has room for more (for measurements). beside_bytes: of the budget, taken by who wraps the store. They may
    be set at any time, and budget before the first row. Raises CapacityError when the budget holds no rows at all.
    """

    def __init__(
        self,
        memory: RowStore,
        ssd: SsdRows,
        leases: LeaseTable,
        *,
        seeds: U64,
        shift: np.uint64,
        budget: TierBudget,
    ) -> None:
        self.memory = memory
        self.ssd = ssd
        self.resident = ResidentRows(memory, seeds=seeds, shift=shift)
        self.counts = TierCounts()
        self.budget: TierBudget | SampledBudget = budget
        self.most_rows: int | None = None
        self.beside_bytes = 0
        self._leases = leases
        self.capacity()

    def capacity(self) -> int:
        """Rows that memory may hold beside everything else. Raises CapacityError when those are none."""
        capacity = self.budget.rows(leases=self._leases, index=self.ssd.index, beside=self.beside_bytes)
        return capacity if self.most_rows is None else min(capacity, self.most_rows)

    def by_parts(self, keys: KeySet, work: Callable[[int, KeySet], None]) -> None:
        """`work(start, keys)` over parts that fit memory, in order."""
        size = max(1, min(self.budget.part_rows, self.capacity() // 4))
        for start in range(0, len(keys), size):
            work(start, keys[start : start + size])

    def bring(self, keys: KeySet) -> I32:
        """Let all rows be in memory that exist, and room be there for the others; positions of those."""
        self.resident.next_turn()
        missing = self.resident.touch(keys)
        self.counts.memory += len(keys) - len(missing)
        if not len(missing):
            return missing
        self.make_room(len(missing))
        found = self.ssd.take(keys[missing])
        came = np.flatnonzero(found.found)
        self.counts.ssd += len(came)
        if len(came):
            coming = keys[missing[came]]
            self.memory.write_rows(coming, found.rows[came])
            self.resident.note(coming, np.minimum(found.uses[came] + 1, MOST_USES).astype(np.uint8))
        nowhere: I32 = missing[~found.found]
        return nowhere

    def read(self, keys: KeySet, columns: int) -> RowsRead:
        """Rows where they are: first columns float32 [U, columns], zeros where there is none."""
        read = self.memory.read_rows(keys)
        rows = np.ascontiguousarray(read.rows[:, :columns])
        missing = np.flatnonzero(~read.found).astype(np.int32)
        if len(missing):
            below = self.ssd.read(keys[missing], columns=columns)
            rows[missing] = below.rows
            read.found[missing] = below.found
        return RowsRead(rows, read.found)

    def make_room(self, coming: int) -> None:
        """Evict until so many more rows fit. Raises CapacityError when rows of this turn alone fill memory."""
        capacity = self.capacity()
        over = self.memory.count() + coming - capacity
        if over > 0:
            self._evict(over + capacity // _EXTRA_SHARE)
        if self.memory.count() + coming > capacity:
            raise CapacityError(
                f"rows of {self.budget.names}: one call needs {coming} rows more in memory, the budget of "
                f"{self.budget.total_bytes} bytes holds {capacity}, of {self.budget.row_bytes:.0f} bytes each; raise "
                "storage.memory_bytes or roles.servers"
            )

    def shrink(self) -> None:
        """Evict what no longer fits since leases and the index on SSD have grown."""
        over = self.memory.count() - self.capacity()
        if over > 0:
            self.resident.next_turn()
            self._evict(over)

    def _evict(self, wanted: int) -> None:
        most = max(1, self.budget.part_rows)
        while wanted > 0:
            out = self.resident.evict(min(wanted, most))
            if not len(out.keys):
                return
            self.ssd.append(out.keys, out.rows, out.uses)
            self.counts.evicted += len(out.keys)
            wanted -= len(out.keys)
