"""Rows of one group in two tiers: memory up to a budget, files on SSD for the rest. Calls and bits are `RowStore`'s.

Consumes   unique keys; gradients
Produces   rows [E]; updated rows
Waits for  the disk, in calls that need rows from it; a write only when the disk is slower than rows are evicted

A row is in exactly one place: memory, SSD, or with the tower that leases it. A training pull or push brings it into
memory, an evaluation's reads it where it is. A lease takes it out of both, without a detour through memory, and
its return brings it into memory. Before rows come in, others go: `hetero.kernels.residency` says which.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hetero.embedding.answers import Create, PushParts, PushReport, RowsRead
from hetero.embedding.lease_table import NOBODY, LeaseTable, ToldLeases
from hetero.embedding.shards import MemoryUse
from hetero.embedding.ssd.references import Hold
from hetero.embedding.ssd.rows import SsdRows, buffer_bytes
from hetero.embedding.store import FIRST_VALUES, RowStore
from hetero.embedding.tier_budget import TierBudget
from hetero.embedding.tier_use import TierUse, added_up
from hetero.embedding.tiered_cut import TieredCut
from hetero.embedding.tiers import Tiers
from hetero.errors import ProtocolError
from hetero.kernels.residency import MOST_USES, first_rows_kernel
from hetero.optim.definition import KIND, hyper_array
from hetero.records import DEFAULT_BUCKETS, F32, I32, U64, GroupSpec, KeySet


class TieredStore:
    """The rows of one group on one server, beyond memory. One caller at a time; it owns `ssd`.

    memory_bytes: budget of rows, indexes and buffers together. folders: to be deleted when it is closed.
    Raises CapacityError when the budget holds no rows at all.
    """

    def __init__(
        self,
        group: GroupSpec,
        *,
        ssd: SsdRows,
        seeds: U64,
        shift: np.uint64,
        memory_bytes: int,
        threads: int = 1,
        buckets: int = DEFAULT_BUCKETS,
        folders: Sequence[Path] = (),
    ) -> None:
        self._group = group
        self._names = {table.index: table.name for table in group.tables}
        self._memory = RowStore(group, threads=threads, buckets=buckets)
        self.width = self._memory.width
        self._leases = LeaseTable(seeds=seeds, shift=shift)
        self._ssd = ssd
        self._seeds = seeds
        budget = TierBudget(
            total_bytes=memory_bytes,
            ssd_bytes=buffer_bytes(ssd.layout),
            width=self.width,
            names=", ".join(sorted(self._names.values())),
        )
        self.tiers = Tiers(self._memory, ssd, self._leases, seeds=seeds, shift=shift, budget=budget)
        self._resident, self._counts = self.tiers.resident, self.tiers.counts
        self._folders = folders
        self._told = ToldLeases()
        self._hyper = hyper_array(group.optimizer)
        self._fresh: I32 = np.empty(0, np.int32)
        self._rows_of = ssd.rows_of.copy()

    def pull(self, keys: KeySet, *, create: Create) -> F32:
        """Weights of unique keys, float32 [U, E]; `Create.NO` moves no row. Raises as `RowStore.pull` does, and
        LeaseError for a row that a tower holds."""
        keys = self._free(keys)
        if create is Create.NO:
            return self.tiers.read(keys, self._group.dim).rows
        out = np.empty((len(keys), self._group.dim), np.float32)

        def work(start: int, part: KeySet) -> None:
            self._bring_or_make(part)
            out[start : start + len(part)] = self._memory.pull(part, create=Create.YES)
            self._settle(part)

        self.tiers.by_parts(keys, work)
        return out

    def push(self, keys: KeySet, gradients: F32) -> PushReport:
        """Apply merged gradients float32 [U, E] of unique keys, as `RowStore.push` does. Raises LeaseError too."""
        keys = self._free(keys)
        if gradients.shape != (len(keys), self._group.dim):
            raise ProtocolError(f"gradients: got shape {gradients.shape}, expected {(len(keys), self._group.dim)}")
        told = PushParts()

        def work(start: int, part: KeySet) -> None:
            self._bring_or_make(part)
            told.add(self._memory.push(part, gradients[start : start + len(part)]), start=start)
            self._settle(part)

        self.tiers.by_parts(keys, work)
        return told.report()

    def read_rows(self, keys: KeySet) -> RowsRead:
        """Whole rows of unique keys, with optimizer state; creates and moves nothing. Raises LeaseError."""
        return self.tiers.read(self._free(keys), self.width)

    def write_rows(self, keys: KeySet, rows: F32) -> None:
        """Insert or overwrite whole rows float32 [U, W] of unique keys. Raises ProtocolError, LeaseError."""
        keys = self._free(keys)
        self._check_shape(keys, rows)

        def work(start: int, part: KeySet) -> None:
            self._resident.next_turn()
            missing = self._resident.touch(part)
            elsewhere = part[missing]
            there = self._ssd.discard(elsewhere)
            self._count_new(elsewhere[~there])
            self.tiers.make_room(len(missing))
            self._memory.write_rows(part, rows[start : start + len(part)])
            self._resident.note(elsewhere, np.zeros(len(elsewhere), np.uint8))
            self._ssd.tick()

        self.tiers.by_parts(keys, work)

    def load_rows(self, keys: KeySet, rows: F32) -> None:
        """`write_rows` of rows of a snapshot."""
        self.write_rows(keys, rows)

    def reserve(self, rows: int) -> None:
        """Let about this many more rows come without growing the index of those on SSD."""
        self._ssd.reserve(max(0, rows - self.tiers.capacity()))

    def check_free(self, keys: KeySet) -> None:
        """Raises LeaseError naming the first of the rows that somebody holds."""
        self._free(keys)

    def lease(self, keys: KeySet, *, holder: int) -> F32:
        """Hand whole rows float32 [U, W] of unique keys to `holder` (1 and up), making those that do not exist.

        Raises LeaseError when a row is held already; then nothing is leased.
        """
        return self.lend(keys, holder=holder).rows

    def lend(self, keys: KeySet, *, holder: int) -> RowsRead:
        """`lease`, telling which of the rows were there before."""
        self._leases.check_holder(holder)
        keys = self._free(keys)
        read = self._memory.read_rows(keys)
        rows, uses = read.rows, self._resident.remove(keys)
        missing = np.flatnonzero(~read.found).astype(np.int32)
        found = self._ssd.take_into(keys, missing, rows=rows, uses=uses)
        uses = np.minimum(uses + 1, MOST_USES).astype(np.uint8)
        fresh = missing[~found]
        uses[fresh] = 0
        self._first_rows(keys, fresh, rows)
        self._count_new(keys[fresh])
        self._counts.memory += len(keys) - len(missing)
        self._counts.ssd += len(missing) - len(fresh)
        self._leases.add(keys, holder=holder, uses=uses)
        self.tiers.shrink()
        there = np.ones(len(keys), np.bool_)
        there[fresh] = False
        return RowsRead(rows, there)

    def check_held(self, keys: KeySet, *, holder: int) -> None:
        """Raises LeaseError naming the first of the rows that `holder` lacks."""
        self._leases.check(self._memory.checked(keys), holder=holder, names=self._names)

    def drop_leased(self, keys: KeySet, *, holder: int) -> None:
        """Forget rows of unique keys that `holder` has and that were made for it. Raises LeaseError when it lacks
        one; then none is."""
        keys = self._memory.checked(keys)
        self.check_held(keys, holder=holder)
        self._leases.remove(keys)
        self._rows_of -= np.bincount(keys.tables, minlength=len(self._rows_of))
        if not len(self._leases):
            self._forget_noted()

    def there(self, keys: KeySet) -> np.ndarray:
        """Which of unique keys have rows, bool [n]. Those on SSD come to memory, where the call that follows finds
        and counts them."""
        keys = self._free(keys)
        there = np.ones(len(keys), np.bool_)

        def work(start: int, part: KeySet) -> None:
            nowhere = self.tiers.bring(part)
            there[start + nowhere] = False
            self._counts.memory -= len(part) - len(nowhere)
            self._ssd.tick()

        self.tiers.by_parts(keys, work)
        return there

    def give_back(self, keys: KeySet, rows: F32, *, holder: int) -> None:
        """Take leased rows float32 [U, W] back. Raises LeaseError when `holder` lacks one; then none is taken."""
        keys = self._memory.checked(keys)
        self.check_held(keys, holder=holder)
        self._check_shape(keys, rows)

        def work(start: int, part: KeySet) -> None:
            uses = self._leases.uses(part)
            self._resident.next_turn()
            self.tiers.make_room(len(part))
            self._leases.remove(part)
            self._memory.write_rows(part, rows[start : start + len(part)])
            self._resident.note(part, uses)
            self._ssd.tick()

        self.tiers.by_parts(keys, work)
        if not len(self._leases):
            self._forget_noted()

    def note_leased(self, keys: KeySet, rows: F32, *, holder: int) -> None:
        """Take down rows float32 [U, W] that `holder` has and keeps, for the cut that follows. Raises LeaseError when
        it lacks one; then none is."""
        keys = self._memory.checked(keys)
        self.check_held(keys, holder=holder)
        self._check_shape(keys, rows)
        self._ssd.compaction.paused = True
        self._told.add(keys, self._ssd.append_copies(keys, np.require(rows, None, ("C", "A", "W"))))

    def delete_rows(self, keys: KeySet) -> int:
        """Forget rows of unique keys; returns how many there were. Raises LeaseError, then none is deleted."""
        keys = self._free(keys)
        there = self._memory.read_rows(keys).found
        self._resident.remove(keys)
        there |= self._ssd.delete(keys)
        self._rows_of -= np.bincount(keys.tables[there], minlength=len(self._rows_of))
        return int(there.sum())

    def begin_snapshot(self, *, since: int | None = None) -> TieredCut:
        """Settle the rows as they are now; the cut reads them while others call, and is to be closed.

        Raises ProtocolError for a mark (changes since one are not told) and while towers hold rows they have not told
        with `note_leased`, CapacityError where the files have no room for the rows in memory.
        """
        if since is not None:
            raise ProtocolError("rows on SSD do not tell what changed since a snapshot; set snapshots.deltas to 0")
        noted = self._told.still(self._leases)
        if len(noted) != len(self._leases):
            raise ProtocolError(
                f"a snapshot begins while towers hold {len(self._leases)} rows of "
                f"{self.tiers.budget.names} and have told the values of {len(noted)}"
            )
        self._ssd.compaction.paused = True
        try:
            copies = [self._ssd.append_copies(keys, rows) for keys, rows in self._memory.scan()]
            return TieredCut(self._ssd, np.concatenate([noted, *copies]))
        finally:
            self._forget_noted()

    def mark(self) -> int:
        """Of no use here: `tells_since` takes none."""
        return 0

    def tells_since(self, mark: int) -> bool:
        """Never: changes since a mark are not told."""
        return False

    def forget_before(self, mark: int) -> None:
        """Nothing is kept for marks."""

    def scan(self) -> Iterator[tuple[KeySet, F32]]:
        """All rows in parts, but for leased ones, which their holders have: keys and float32 [n, W]."""
        yield from self._memory.scan()
        yield from self._ssd.scan()

    def scan_memory(self) -> Iterator[tuple[KeySet, F32]]:
        """The rows in memory alone, as `scan`."""
        return self._memory.scan()

    def seal(self) -> Hold:
        """Bring the rows on SSD to disk and refer to them. With the rows in memory and the leased ones, which are newer
        where the files hold a row too, this is all the store has."""
        return self._ssd.seal()

    def count(self) -> int:
        """Rows held, leased ones included."""
        return int(self._rows_of.sum())

    def count_by_table(self) -> dict[str, int]:
        """Rows held, by table name."""
        return {name: int(self._rows_of[index]) for index, name in self._names.items()}

    def memory(self) -> MemoryUse:
        """Bytes in use: rows, indexes of both tiers and of leases, buffers."""
        held = self._memory.memory()
        indexes = held.index_bytes + self._memory.count() + self._leases.memory_bytes + self._ssd.use().index_bytes
        return MemoryUse(index_bytes=indexes + self._ssd.use().buffer_bytes, row_bytes=held.row_bytes)

    def use(self) -> TierUse:
        return TierUse(
            counts=self._counts,
            ssd=self._ssd.use(),
            memory_rows=self._memory.count(),
            leased_rows=len(self._leases),
            memory_bytes=self.memory().total_bytes,
            budget_bytes=self.tiers.budget.total_bytes,
        )

    def close(self) -> None:
        """End the threads and let go of the files."""
        self._memory.close()
        self._ssd.close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _bring_or_make(self, keys: KeySet) -> None:
        """`_bring`, and count the others as made, which the caller is about to do."""
        self._fresh = self.tiers.bring(keys)
        self._count_new(keys[self._fresh])

    def _settle(self, keys: KeySet) -> None:
        """Note the rows that the call has made, and let the disk's work go on."""
        if len(self._fresh):
            self._resident.note(keys[self._fresh], np.zeros(len(self._fresh), np.uint8))
            self._fresh = self._fresh[:0]
        self._ssd.tick()

    def _first_rows(self, keys: KeySet, picked: I32, rows: F32) -> None:
        group = self._group
        first_rows_kernel(
            keys.tables,
            keys.keys,
            picked,
            self._seeds,
            group.dim,
            KIND[group.optimizer.kind],
            self._hyper,
            FIRST_VALUES[group.init.kind],
            np.float32(group.init.scale),
            np.float32(group.optimizer.initial_accumulator),
            rows,
        )

    def _count_new(self, keys: KeySet) -> None:
        self._counts.created += len(keys)
        self._rows_of += np.bincount(keys.tables, minlength=len(self._rows_of))

    def _free(self, keys: KeySet) -> KeySet:
        """The keys as kernels take them. Raises LeaseError for one that is held."""
        keys = self._memory.checked(keys)
        if len(self._leases):
            self._leases.check(keys, holder=NOBODY, names=self._names)
        return keys

    def _check_shape(self, keys: KeySet, rows: F32) -> None:
        if rows.shape != (len(keys), self.width):
            raise ProtocolError(f"rows: got shape {rows.shape}, expected {(len(keys), self.width)}")

    def _forget_noted(self) -> None:
        self._told = ToldLeases()
        self._ssd.compaction.paused = False


def tier_counts(stores: Sequence[object]) -> dict[str, int]:
    """Counts of all tiered stores among a server's, added up; empty where there is none."""
    return added_up(store.use() for store in stores if isinstance(store, TieredStore))
