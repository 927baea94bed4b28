"""Rows of one group with policies, around a store of any tiers: who gets a row, what it counts, and when it goes.

Consumes   unique keys; gradients, with shows and clicks where the table drops rows
Produces   rows; zeros for keys that have none yet
Waits for  nobody

A key without a row reads zeros, and its gradient is dropped and counted. While a tower leases it, it is leased as any
row, with its count beside it; when it comes back without having been admitted, it is forgotten by the store and its
count is noted here. So a count is told by whoever has it, and is the same for any windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hetero.embedding.answers import Create, PushReport, RowsRead
from hetero.embedding.key_words import KeyWords
from hetero.embedding.policies.admission import WaitingKeys
from hetero.embedding.policies.cut import PolicyCut
from hetero.embedding.policies.dropped import REASONS, DayDrops, DroppedKeys
from hetero.embedding.policies.eviction import Judge
from hetero.embedding.rows import TierRows
from hetero.embedding.shards import MemoryUse
from hetero.embedding.tiered import TieredStore
from hetero.kernels.statistics import count_uses_kernel
from hetero.records import F32, U16, U64, GroupSpec, KeySet

_AT_ONCE = 1 << 10


class PolicyRows:
    """A `Rows` with the policies of its group. One caller at a time; it owns `inner`.

    drops: what went, day by day. widened: keys that got their rows by score.
    """

    def __init__(self, inner: TierRows, group: GroupSpec, *, seeds: U64, shift: np.uint64) -> None:
        self.inner = inner
        self.width = inner.width
        self.drops: list[DayDrops] = []
        self.widened = 0
        self._group = group
        self._seeds, self._shift = seeds, shift
        self._names = {table.index: table.name for table in group.tables}
        self._waiting = WaitingKeys(group.admission, seeds=seeds, shift=shift) if group.admission else None
        self._lent = KeyWords(seeds=seeds, shift=shift)  # keys without a row that a tower has
        self._judge = Judge(group.eviction, width=inner.width, seeds=seeds, shift=shift) if group.eviction else None
        self._dropped = DroppedKeys(seeds=seeds, shift=shift) if group.eviction else None
        self._day = 0

    def pull(self, keys: KeySet, *, create: Create) -> F32:
        """Weights of unique keys, float32 [U, E]; zeros for those that have no row yet."""
        if create is Create.NO:
            return self.inner.pull(keys, create=create)
        if self._waiting is None:
            self._made(keys)
            return self.inner.pull(keys, create=create)
        has_row = self.inner.there(keys)
        lacking = np.flatnonzero(~has_row)
        comes = lacking[self._waiting.admitted(keys[lacking])]
        has_row[comes] = True
        self._made(keys[comes])
        rows = np.zeros((len(keys), self._group.dim), np.float32)
        rows[has_row] = self.inner.pull(keys[has_row], create=Create.YES)
        return rows

    def push(self, keys: KeySet, gradients: F32) -> PushReport:
        """Apply gradients float32 [U, E], or [U, E + 2] with shows and clicks, of keys that have rows; see `RowStore`.

        Those of other keys are dropped and counted: the step has seen them.
        """
        dim = self._group.dim
        if self._waiting is None:
            report = self.inner.push(keys, np.ascontiguousarray(gradients[:, :dim]))
            self._count_uses(keys, gradients)
            return report
        has_row = self.inner.there(keys)
        self._waiting.count_step(keys[~has_row], gradients[~has_row, dim:], day=self._day)
        own, places = keys[has_row], np.flatnonzero(has_row).astype(np.int32)
        report = self.inner.push(own, gradients[places, :dim])
        self._count_uses(own, gradients[places])
        return replace(report, rejected_at=places[report.rejected_at])

    def read_rows(self, keys: KeySet) -> RowsRead:
        return self.inner.read_rows(keys)

    def write_rows(self, keys: KeySet, rows: F32) -> None:
        """As `RowStore.write_rows`: the keys have rows now."""
        self._made(keys)
        self.inner.write_rows(keys, rows)

    def load_rows(self, keys: KeySet, rows: F32) -> None:
        self._made(keys)
        self.inner.load_rows(keys, rows)

    def reserve(self, rows: int) -> None:
        self.inner.reserve(rows)

    def check_free(self, keys: KeySet) -> None:
        self.inner.check_free(keys)

    def lease(self, keys: KeySet, *, holder: int) -> F32:
        """As `RowStore.lease`; where keys are admitted [U, W + 1], see `hetero.optim.definition.lease_width`."""
        lent = self.inner.lend(keys, holder=holder)
        lacking = keys[~lent.found]
        if self._waiting is None:
            self._made(lacking)
            return lent.rows
        seen = np.zeros((len(keys), 1), np.float32)
        seen[~lent.found, 0] = self._waiting.seen(lacking) + np.float32(1)
        self._lent.put(lacking, np.ones(len(lacking), np.uint16))
        return np.concatenate([lent.rows, seen], axis=1)

    def give_back(self, keys: KeySet, rows: F32, *, holder: int) -> None:
        """Take leased rows back, as `lease` gave them; keys that have no row yet are only counted."""
        if self._waiting is None:
            self.inner.give_back(keys, rows, holder=holder)
            return
        lacking, own = rows[:, self.width] != 0, np.ascontiguousarray(rows[:, : self.width])
        self.inner.check_held(keys, holder=holder)
        self.inner.drop_leased(keys[lacking], holder=holder)
        self.inner.give_back(keys[~lacking], own[~lacking], holder=holder)
        self._note_seen(keys, rows[:, self.width])
        self._lent.remove(keys[lacking])

    def note_leased(self, keys: KeySet, rows: F32, *, holder: int) -> None:
        """Note what leased rows and counts are now, for the cut that follows."""
        self.inner.note_leased(keys, np.ascontiguousarray(rows[:, : self.width]), holder=holder)
        if self._waiting is not None:
            self._note_seen(keys, rows[:, self.width])

    def delete_rows(self, keys: KeySet) -> int:
        return self.inner.delete_rows(keys)

    def begin_day(self, day: int) -> None:
        """Drop what is to go when a day begins; no row is leased."""
        self._day = day
        if self._waiting is not None:
            self._note_drops(self._waiting.forget(day), "forgotten")
        if self._judge is not None and self._dropped is not None:
            self._dropped.forget(day)
            for judged in list(self._judge.doomed(self.inner.scan(), day=day)):
                self._drop(judged.keys)
                self._dropped.add(judged.keys, judged.verdicts, day=day)
                for verdict, reason in REASONS.items():
                    self._note_drops(judged.keys[judged.verdicts == verdict], reason)
        if self._waiting is not None:
            self._widen(*self._waiting.ripe())
        self._tell_beside()

    def resume_day(self, day: int) -> None:
        """It is this day, which began before the snapshot that was loaded."""
        self._day = day

    def begin_snapshot(self, *, since: int | None = None) -> PolicyCut:
        """As `RowStore.begin_snapshot`: the rows, and the keys without one as they were told last."""
        nothing = (KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64)), np.empty(0, np.uint16))
        lent, words = self._lent.entries()
        without_row = KeyWords(seeds=self._seeds, shift=self._shift)
        without_row.put(lent, words)
        return PolicyCut(
            self.inner.begin_snapshot(since=since),
            without_row=without_row,
            waiting=self._waiting.entries() if self._waiting else nothing,
            dropped=self._dropped.entries() if self._dropped else nothing,
        )

    def load_words(self, kind: str, keys: KeySet, words: U16) -> None:
        """Take up what a snapshot's cut held under `kind`, `waiting` or `dropped`."""
        store: WaitingKeys | DroppedKeys | None = self._waiting if kind == "waiting" else self._dropped
        if store is not None:
            store.load(keys, words)

    def mark(self) -> int:
        return self.inner.mark()

    def tells_since(self, mark: int) -> bool:
        return self.inner.tells_since(mark)

    def forget_before(self, mark: int) -> None:
        self.inner.forget_before(mark)

    def scan(self) -> Iterator[tuple[KeySet, F32]]:
        return self.inner.scan()

    def count(self) -> int:
        return self.inner.count() - len(self._lent)

    def count_by_table(self) -> dict[str, int]:
        counts = self.inner.count_by_table()
        lent = np.bincount(self._lent.entries()[0].tables, minlength=max(self._names) + 1)
        return {name: counts[name] - int(lent[index]) for index, name in self._names.items()}

    def memory(self) -> MemoryUse:
        self._tell_beside()
        held = self.inner.memory()
        return replace(held, index_bytes=held.index_bytes + self._beside_bytes)

    def policy_counts(self) -> Mapping[str, int]:
        """What went so far by `<reason>/<table>`; keys that wait for a row now, and bytes of what is noted of keys
        without rows."""
        counts: Counter[str] = Counter()
        for drops in self.drops:
            counts[f"{drops.reason}/{drops.table}"] += drops.rows
        waiting = len(self._waiting) if self._waiting else 0
        return {**counts, "waiting": waiting, "widened": self.widened, "bytes": self._beside_bytes}

    def close(self) -> None:
        self.inner.close()

    @property
    def _beside_bytes(self) -> int:
        parts: list[Any] = [part for part in (self._waiting, self._dropped, self._lent) if part is not None]
        return sum(part.memory_bytes for part in parts)

    def _tell_beside(self) -> None:
        if isinstance(self.inner, TieredStore):
            self.inner.tiers.beside_bytes = self._beside_bytes

    def _note_seen(self, keys: KeySet, seen: F32) -> None:
        """Take what a tower tells of leased keys: 0 for those with a row, else 1 + the steps that saw them."""
        assert self._waiting is not None
        counted = np.flatnonzero(seen > 1)  # 1: no step has seen it
        self._waiting.put(keys[counted], (seen[counted] - 1).astype(np.uint16), day=self._day)
        come = keys[np.flatnonzero(seen == 0)]
        self._made(come)
        self._lent.remove(come)

    def _made(self, keys: KeySet) -> None:
        """Keys have rows from now on."""
        if self._waiting is not None:
            self._waiting.remove(keys)
        if self._dropped is not None:
            self._dropped.remove(keys)

    def _count_uses(self, keys: KeySet, told: F32) -> None:
        """Note shows and clicks, the last two columns of what was told."""
        if self._judge is None or not len(keys):
            return
        rows = self.inner.read_rows(keys).rows
        counts = np.ascontiguousarray(told[:, self._group.dim :])
        places = np.arange(len(keys), dtype=np.int32)
        count_uses_kernel(rows, places, self._judge.first, counts, self._day, self._judge.powers)
        self.inner.write_rows(keys, rows)

    def _widen(self, keys: KeySet, units: U16) -> None:
        """Make the rows of keys that have got their score, which is what they have counted so far."""
        self.widened += len(keys)
        self._made(keys)
        for start in range(0, len(keys), _AT_ONCE):
            part = keys[start : start + _AT_ONCE]
            self.inner.pull(part, create=Create.YES)
            if self._judge is not None:
                rows, first = self.inner.read_rows(part).rows, self._judge.first
                rows[:, first] = units[start : start + _AT_ONCE]
                rows[:, first + 2 :] = self._day + 1
                self.inner.write_rows(part, rows)

    def _note_drops(self, keys: KeySet, reason: str) -> None:
        for index, rows in enumerate(np.bincount(keys.tables).tolist()):
            if rows:
                self.drops.append(DayDrops(day=self._day, table=self._names[index], reason=reason, rows=rows))

    def _drop(self, keys: KeySet) -> None:
        for start in range(0, len(keys), _AT_ONCE):
            self.inner.delete_rows(keys[start : start + _AT_ONCE])
