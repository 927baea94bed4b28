"""Rows of one group by (table, key), in memory: pull, push, read, write, scan.

Consumes   unique keys; gradients
Produces   rows [E]; updated rows

What a row holds depends on nothing but its identity and its gradients: first values come from (table seed, key), and
rows are independent of each other, so threads, growth and the order of keys in a call change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import wraps
from threading import RLock
from typing import Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from hetero.embedding.answers import MAX_EXAMPLES, Create, PushReport, RowsRead
from hetero.embedding.changes import Changes
from hetero.embedding.cut import StoreCut
from hetero.embedding.group_keys import GroupKeys
from hetero.embedding.lender import Lender
from hetero.embedding.shards import SHARDS, MemoryUse, Shards
from hetero.errors import CapacityError, ProtocolError
from hetero.kernels.index import (
    copy_kernel,
    count_kernel,
    insert_kernel,
    read_kernel,
    tally_kernel,
    update_kernel,
    write_kernel,
)
from hetero.kernels.initial import NORMAL, UNIFORM, ZEROS
from hetero.kernels.leasing import set_held_kernel
from hetero.kernels.loading import load_kernel
from hetero.kernels.optimizers import update_room
from hetero.keys.routing import mixed_seeds
from hetero.optim.definition import KIND, group_width, hyper_array
from hetero.records import DEFAULT_BUCKETS, F32, I32, GroupSpec, Initializer, KeySet

P = ParamSpec("P")
T = TypeVar("T")

FIRST_VALUES = {Initializer.ZEROS: ZEROS, Initializer.UNIFORM: UNIFORM, Initializer.NORMAL: NORMAL}
_ROWS_AT_ONCE = 1 << 16
_SMALLEST_PART = 2048


def _in_turn(method: Callable[Concatenate[RowStore, P], T]) -> Callable[Concatenate[RowStore, P], T]:
    """A call that holds the store's lock."""

    @wraps(method)
    def locked(store: RowStore, *arguments: P.args, **named: P.kwargs) -> T:
        with store._lock:
            return method(store, *arguments, **named)

    return cast("Callable[Concatenate[RowStore, P], T]", locked)


class RowStore:
    """The rows of one group on one server. `threads` share the work of a call; calls of several threads take turns.

    buckets: of the job; the shard of a row is its bucket modulo 64. What holds while a snapshot is written beside:
    `hetero.embedding.cut`.
    """

    def __init__(self, group: GroupSpec, *, threads: int = 1, buckets: int = DEFAULT_BUCKETS) -> None:
        self.width = group_width(group)
        self._group = group
        self._keys = GroupKeys(group)
        self._seeds = mixed_seeds([group])
        self._shift = np.uint64(65 - buckets.bit_length())
        self._shards = Shards(width=self.width, seeds=self._seeds)
        self._lender = Lender(self._shards, self._keys, width=self.width, seeds=self._seeds, shift=self._shift)
        self._kind = KIND[group.optimizer.kind]
        self._hyper = hyper_array(group.optimizer)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rows") if threads > 1 else None
        self._lock = RLock()
        self._changes = Changes(self._shards, width=self.width, seeds=self._seeds, shift=self._shift, lock=self._lock)

    @property
    def shards(self) -> Shards:
        """The rows' memory, for kernels that move rows between tiers."""
        return self._shards

    def checked(self, keys: KeySet) -> KeySet:
        """The keys as kernels take them. Raises ProtocolError for other types, or a table that is not the group's."""
        return self._keys.checked(keys)

    @_in_turn
    def pull(self, keys: KeySet, *, create: Create) -> F32:
        """Weights of unique keys, float32 [U, E]. Raises ProtocolError for a table that is not the group's."""
        keys = self._keys.checked(keys)
        out = np.empty((len(keys), self._group.dim), np.float32)
        missing = self._read(keys, out)
        if create is Create.YES and len(missing):
            self._insert(keys, missing, out=out)
        return out

    @_in_turn
    def push(self, keys: KeySet, gradients: F32) -> PushReport:
        """Apply merged gradients float32 [U, E] of unique keys; a row that does not exist is made first.

        A row whose gradient holds NaN, infinity or a magnitude from 2^56 on is left as it is, counted and named.
        Raises ProtocolError for a table that is not the group's, or gradients of another shape.
        """
        keys = self._keys.checked(keys)
        gradients = _floats(gradients, shape=(len(keys), self._group.dim), what="gradients")
        self._changes.keep(keys)
        missing, rejected = self._update(keys, gradients)
        if len(missing):
            self._insert(keys, missing)
            _, rejected_new = self._update(keys[missing], gradients[missing])
            rejected = np.sort(np.concatenate([rejected, missing[rejected_new]]))
        return PushReport(
            applied=len(keys) - len(rejected),
            rejected=len(rejected),
            examples=tuple(self._keys.named(keys, int(i)) for i in rejected[:MAX_EXAMPLES]),
            rejected_at=rejected,
        )

    @_in_turn
    def read_rows(self, keys: KeySet) -> RowsRead:
        """Whole rows of unique keys, with optimizer state; creates nothing."""
        keys = self._keys.checked(keys)
        rows = np.empty((len(keys), self.width), np.float32)
        found = np.ones(len(keys), np.bool_)
        found[self._read(keys, rows)] = False
        return RowsRead(rows, found)

    @_in_turn
    def write_rows(self, keys: KeySet, rows: F32) -> None:
        """Insert or overwrite whole rows float32 [U, W] of unique keys. Raises ProtocolError as `push` does."""
        keys = self._keys.checked(keys)
        rows = _floats(rows, shape=(len(keys), self.width), what="rows")
        self._changes.keep(keys)
        self._insert_missing(keys)
        write_kernel(*self._place(keys), self.width, rows, self._changes.epoch)

    @_in_turn
    def check_free(self, keys: KeySet) -> None:
        """Raises LeaseError naming the first of the rows that somebody holds."""
        self._lender.check_free(self._keys.checked(keys))

    @_in_turn
    def lease(self, keys: KeySet, *, holder: int) -> F32:
        """Hand whole rows float32 [U, W] of unique keys to `holder` (1 and up), making those that do not exist.

        Raises LeaseError when a row is held already; then nothing is leased. Raises ProtocolError for a holder above
        1023, which a record cannot note.
        """
        return self.lend(keys, holder=holder).rows

    @_in_turn
    def lend(self, keys: KeySet, *, holder: int) -> RowsRead:
        """`lease`, telling which of the rows were there before."""
        keys = self._keys.checked(keys)
        rows = np.empty((len(keys), self.width), np.float32)
        missing = self._lender.lend(keys, rows, holder=holder, in_parts=self._in_parts)
        if len(missing):
            try:
                self._insert(keys, missing, out=rows, holder=holder)
            except CapacityError:
                self._lender.free(keys)
                raise
        there = np.ones(len(keys), np.bool_)
        there[missing] = False
        return RowsRead(rows, there)

    @_in_turn
    def drop_leased(self, keys: KeySet, *, holder: int) -> None:
        """Forget rows of unique keys that `holder` has. Raises LeaseError when it lacks one; then none is."""
        keys = self._keys.checked(keys)
        self._lender.places(keys, holder=holder)
        self._changes.remove(keys)

    @_in_turn
    def check_held(self, keys: KeySet, *, holder: int) -> None:
        """Raises LeaseError naming the first of the rows that `holder` lacks."""
        self._lender.places(self._keys.checked(keys), holder=holder)

    @_in_turn
    def there(self, keys: KeySet) -> np.ndarray:
        """Which of unique keys have rows, bool [n]."""
        keys = self._keys.checked(keys)
        there = np.ones(len(keys), np.bool_)
        there[self._read(keys, np.empty((len(keys), 0), np.float32))] = False
        return there

    @_in_turn
    def give_back(self, keys: KeySet, rows: F32, *, holder: int) -> None:
        """Take leased rows float32 [U, W] back. Raises LeaseError when `holder` lacks one; then none is taken."""
        self._set_held(keys, rows, holder=holder, then=0)

    @_in_turn
    def note_leased(self, keys: KeySet, rows: F32, *, holder: int) -> None:
        """Set rows float32 [U, W] that `holder` has and keeps. Raises LeaseError when it lacks one; then none is."""
        self._set_held(keys, rows, holder=holder, then=holder)

    def scan(self) -> Iterator[tuple[KeySet, F32]]:
        """All rows in parts, shard by shard: keys and float32 [n, W]. Not while other threads call."""
        for shard in range(SHARDS):
            rows_in = self._shards.rows_in(shard)
            for start in range(0, rows_in, _ROWS_AT_ONCE):
                count = min(_ROWS_AT_ONCE, rows_in - start)
                tables, keys = np.empty(count, np.uint16), np.empty(count, np.uint64)
                rows = np.empty((count, self.width), np.float32)
                copy_kernel(self._shards.description, shard, self.width, start, tables, keys, rows)
                yield KeySet(tables, keys), rows

    @_in_turn
    def load_rows(self, keys: KeySet, rows: F32) -> None:
        """`write_rows` for many rows of which most are new. Raises CapacityError besides."""
        keys = self._keys.checked(keys)
        rows = _floats(rows, shape=(len(keys), self.width), what="rows")
        self._changes.keep(keys)
        epoch, begins = self._changes.epoch, [0] * SHARDS

        def shards(start: int, stop: int) -> int:
            begin = begins[start]
            begins[start] = load_kernel(*self._place(keys), self.width, rows, epoch, start, stop, begin)
            return begins[start]

        while (at := min(self._in_parts(SHARDS, shards, smallest=1))) < len(keys):
            self._make_room(keys, np.arange(at, len(keys), dtype=np.int32))

    @_in_turn
    def reserve(self, rows: int) -> None:
        """Make room for about this many more rows at once, so that they come without growing. Raises CapacityError."""
        self._shards.make_room(np.full(SHARDS, rows // SHARDS, np.uint64))

    @_in_turn
    def delete_rows(self, keys: KeySet) -> int:
        """Forget rows of unique keys; returns how many there were. Raises LeaseError, then none is deleted."""
        self.check_free(keys)
        return len(self._changes.remove(self._keys.checked(keys)))

    @_in_turn
    def begin_snapshot(self, *, since: int | None = None) -> StoreCut:
        """Settle the rows as they are now, or those changed since an earlier mark; the cut reads them while others
        call, and is to be closed.

        Raises ProtocolError while another cut is open, or for a mark since which changes cannot be told.
        """
        return self._changes.begin(since=since)

    @_in_turn
    def mark(self) -> int:
        """A mark of now: `begin_snapshot(since=mark)` holds what changed after it. Raises ProtocolError in a cut."""
        return self._changes.mark()

    @_in_turn
    def tells_since(self, mark: int) -> bool:
        """Whether `begin_snapshot` would take this mark: it is not too many cuts ago."""
        return self._changes.tells_since(mark)

    @_in_turn
    def forget_before(self, mark: int) -> None:
        """Free what is kept to tell changes since marks before this one: nobody will ask."""
        self._changes.forget_before(mark)

    @_in_turn
    def count(self) -> int:
        """Rows held."""
        return self._shards.row_count

    @_in_turn
    def count_by_table(self) -> dict[str, int]:
        """Rows held, by table name."""
        rows_of = np.zeros(len(self._seeds), np.int64)
        tally_kernel(self._shards.description, self.width, rows_of)
        return {name: int(rows_of[index]) for index, name in self._keys.names.items()}

    @_in_turn
    def memory(self) -> MemoryUse:
        """Bytes in use."""
        return replace(self._shards.memory(), kept_bytes=self._changes.kept_bytes)

    def close(self) -> None:
        """End the threads. Rows stay; later calls work without help."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _set_held(self, keys: KeySet, rows: F32, *, holder: int, then: int) -> None:
        """Overwrite rows float32 [U, W] that `holder` has; `then` has them afterwards, 0 for nobody."""
        keys = self._keys.checked(keys)
        rows = _floats(rows, shape=(len(keys), self.width), what="rows", writable=False)
        places = self._lender.places(keys, holder=holder)
        self._changes.keep(keys)
        set_held_kernel(places, self.width, np.uint64(rows.ctypes.data), self._changes.epoch, np.uint16(then))

    def _place(self, keys: KeySet) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.uint64]:
        return keys.tables, keys.keys, self._seeds, self._shards.description, self._shift

    def _read(self, keys: KeySet, out: F32) -> I32:
        """Fill `out`; positions of missing rows, ascending."""

        def part(start: int, stop: int) -> I32:
            missing = np.empty(stop - start, np.int32)
            own = keys[start:stop]
            count = read_kernel(*self._place(own), self.width, out[start:stop], missing)
            return missing[:count] + np.int32(start)

        return np.concatenate(self._in_parts(len(keys), part))

    def _update(self, keys: KeySet, gradients: F32) -> tuple[I32, I32]:
        """Apply gradients; positions of missing rows and of gradients that are not finite."""

        def part(start: int, stop: int) -> tuple[I32, I32]:
            missing, rejected = np.empty(stop - start, np.int32), np.empty(stop - start, np.int32)
            own = keys[start:stop]
            room = update_room(self._group.dim)
            absent, bad = update_kernel(
                *self._place(own),
                self.width,
                self._kind,
                self._hyper,
                gradients[start:stop],
                missing,
                rejected,
                room,
                self._changes.epoch,
            )
            return missing[:absent] + np.int32(start), rejected[:bad] + np.int32(start)

        parts = self._in_parts(len(keys), part)
        return np.concatenate([missing for missing, _ in parts]), np.concatenate([rejected for _, rejected in parts])

    def _insert_missing(self, keys: KeySet) -> None:
        missing = np.flatnonzero(~self.there(keys)).astype(np.int32)
        if len(missing):
            self._insert(keys, missing)

    def _insert(self, keys: KeySet, missing: I32, *, out: F32 | None = None, holder: int = 0) -> None:
        """Make rows, which `holder` has; `out` gets their first columns. Raises CapacityError."""
        self._make_room(keys, missing)
        group = self._group
        insert_kernel(
            keys.tables,
            keys.keys,
            missing,
            self._seeds,
            self._shards.description,
            self._shift,
            self.width,
            group.dim,
            self._kind,
            self._hyper,
            FIRST_VALUES[group.init.kind],
            np.float32(group.init.scale),
            np.float32(group.optimizer.initial_accumulator),
            self._changes.epoch | np.uint16(holder),
            np.empty((len(keys), 0), np.float32) if out is None else out,
        )

    def _make_room(self, keys: KeySet, picked: I32) -> None:
        """Room for the picked rows, should all be new. Raises CapacityError."""
        needed = np.zeros(SHARDS, np.uint64)
        count_kernel(keys.tables, keys.keys, picked, self._seeds, self._shift, needed)
        self._shards.make_room(needed)

    def _in_parts(self, count: int, work: Callable[[int, int], T], *, smallest: int = _SMALLEST_PART) -> list[T]:
        """`work(start, stop)` over ranges of the rows, one a thread; rows are unique, so no two touch one record."""
        if self._pool is None or count < 2 * smallest:
            return [work(0, count)]
        cuts = [count * part // self._threads for part in range(self._threads + 1)]
        return list(self._pool.map(work, cuts[:-1], cuts[1:]))


def _floats(values: F32, *, shape: tuple[int, int], what: str, writable: bool = True) -> F32:
    """C-contiguous float32, as kernels read them; writable where one takes the array itself.

    Raises ProtocolError for another shape.
    """
    if values.shape != shape:
        raise ProtocolError(f"{what}: got shape {values.shape}, expected {shape}")
    return np.require(values, np.float32, ("C", "A", "W") if writable else ("C", "A"))
