"""One server's part in a change of the number of servers: rows of the buckets that move are copied, sent and freed.

    move = ServerMove(stores, job, server=2, now=routing, then=routing.resized(4))
    for rows in move.copy(): ...            in the background, while the lane goes on: hand each to its target's `take`
    for rows in move.rest(): ...            in the lane, when nothing is leased or under way: what changed since
    the server answers by the new routing from here on
    for freed in move.free(): ...           in the background: the rows that are another's now

Until the new routing holds, what was taken is nobody's: `end` forgets it, as when a run stops in between. So a row has
one server at any time, and a snapshot, before which `end` is called, holds it once.

What changed since the copy is what the store's epochs tell (`hetero.embedding.cut`): a copy is a cut of all rows, what
is sent at the boundary one of those changed after it, and the keys deleted since.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hetero.embedding.rows import Rows, RowsCut
from hetero.errors import ProtocolError
from hetero.exchange.traffic import bytes_of
from hetero.kernels.partition import owners_kernel
from hetero.keys.routing import Routing, mixed_seeds, writable
from hetero.records import F32, I32, JobSpec, KeySet

PIECE_ROWS = 1 << 15
"""Rows that travel together, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRows:
    """Rows of one group on their way to the server that will hold them. target: that server. rows: float32 [n, W]; None
    for keys that were deleted since they were copied."""

    target: int
    group: int
    keys: KeySet
    rows: F32 | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Rows and bytes, keys included, that left a server."""

    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Sent) -> Sent:
        return Sent(rows=self.rows + other.rows, bytes=self.bytes + other.bytes)

    @staticmethod
    def of(moved: MovedRows) -> Sent:
        rows = 0 if moved.rows is None else moved.rows.nbytes
        return Sent(rows=len(moved.keys), bytes=bytes_of([moved.keys]) + rows)


class ServerMove:
    """See the module's docstring. Calls of several threads take turns. ended: by `end`."""

    def __init__(self, stores: Sequence[Rows], job: JobSpec, *, server: int, now: Routing, then: Routing) -> None:
        self.then = then
        self._stores = stores
        self._server = server
        self._from, self._to = writable(now.owners), writable(then.owners)
        self._seeds = mixed_seeds(job.groups)
        self._shift = np.uint64(65 - job.buckets.bit_length())
        self._lock = threading.Lock()
        self._reading: RowsCut | None = None
        self._marks: list[int] = []
        self._sent: list[tuple[int, KeySet]] = []
        self._taken: list[tuple[int, KeySet]] = []
        self.ended = False

    @property
    def leaves(self) -> bool:
        """Whether this server holds nothing by the new routing."""
        return self._server >= self.then.servers

    @property
    def sends(self) -> bool:
        """Whether buckets leave this server."""
        return bool(((self._from == self._server) & (self._to != self._server)).any())

    def copy(self) -> Iterator[MovedRows]:
        """Rows that move as they are now, in parts of about PIECE_ROWS; they go on changing here.

        Raises ProtocolError when `end` comes in between, or while a snapshot is being written.
        """
        for group in range(len(self._stores) if self.sends else 0):
            cut = self._begin(group, since=None)
            try:
                yield from self._moving(group, cut)
            finally:
                self._close(cut)
            self._marks.append(cut.mark)

    def rest(self) -> Iterator[MovedRows]:
        """What changed since the copy. Call when no row is leased and no push under way.

        Raises ProtocolError before the copy was read to its end.
        """
        if not self.sends:
            return
        if len(self._marks) != len(self._stores):
            raise ProtocolError(f"server {self._server}: asked for what changed since a copy that is not there")
        for group, mark in enumerate(self._marks):
            cut = self._begin(group, since=mark)
            try:
                for keys in cut.deleted():  # first: those made anew since are among the rows
                    yield from self._parts(group, keys, None)
                yield from self._moving(group, cut)
            finally:
                self._close(cut)

    def take(self, moved: MovedRows) -> None:
        """Hold rows that another server sent. Raises ProtocolError once the move was ended."""
        store = self._stores[moved.group]
        keys = KeySet(np.array(moved.keys.tables), np.array(moved.keys.keys))
        with self._lock:
            if self.ended:
                raise ProtocolError(f"server {self._server}: rows came for a change of servers that was given up")
            if moved.rows is None:
                store.delete_rows(keys)
                return
            store.load_rows(keys, np.array(moved.rows))
            self._taken.append((moved.group, keys))

    def free(self) -> Iterator[int]:
        """Forget the rows that moved, part by part; the number of each. Those of a server that leaves go with it.

        The stores forget which they were too: the next snapshot must be one of all rows.
        """
        while True:
            with self._lock:
                if not self._sent:
                    break
                group, keys = self._sent.pop()
                freed = self._stores[group].delete_rows(keys)
            yield freed
        with self._lock:
            marks, self._marks = self._marks, []
            for store in self._stores if marks else ():
                store.forget_before(store.mark())

    def end(self, *, holds: Routing) -> None:
        """Leave only what is this server's by the routing that holds, however far the move has come."""
        with self._lock:
            self.ended = True
            reading, self._reading = self._reading, None
            if reading is not None:
                reading.close()
            taken, self._taken = self._taken, []
            if holds.version < self.then.version:
                for group, keys in taken:
                    self._stores[group].delete_rows(keys)
                return
        for _ in self.free():
            pass

    def _begin(self, group: int, *, since: int | None) -> RowsCut:
        with self._lock:
            if self.ended:
                raise ProtocolError(f"server {self._server}: the change of servers was given up")
            self._reading = self._stores[group].begin_snapshot(since=since)
            return self._reading

    def _close(self, cut: RowsCut) -> None:
        with self._lock:
            if self._reading is cut:
                self._reading = None
                cut.close()

    def _moving(self, group: int, cut: RowsCut) -> Iterator[MovedRows]:
        """The rows of a cut that move, gathered to parts worth a call."""
        if cut.statistics:
            raise ProtocolError(f"rows hold {', '.join(cut.statistics)} besides, which would be lost in a move")
        waiting: dict[int, list[MovedRows]] = {}
        for chunk in cut.chunks():
            for part in self._parts(group, chunk.keys, chunk.rows):
                gathered = waiting.setdefault(part.target, [])
                gathered.append(part)
                if sum(len(small.keys) for small in gathered) >= PIECE_ROWS:
                    yield self._noted(_joined(waiting.pop(part.target)))
        for gathered in waiting.values():
            yield self._noted(_joined(gathered))

    def _parts(self, group: int, keys: KeySet, rows: F32 | None) -> Iterator[MovedRows]:
        """Copies of those that move, by target."""
        now, then = self._owners(keys, self._from), self._owners(keys, self._to)
        moving = (now == self._server) & (then != self._server)
        for target in np.unique(then[moving]).tolist():
            at = np.flatnonzero(moving & (then == target))
            yield MovedRows(
                target=target,
                group=group,
                keys=keys[at],
                rows=None if rows is None else rows[at],
            )

    def _owners(self, keys: KeySet, owners: I32) -> I32:
        out = np.empty(len(keys), np.int32)
        owners_kernel(keys.tables, keys.keys, self._seeds, self._shift, owners, out)
        return out

    def _noted(self, moved: MovedRows) -> MovedRows:
        if not self.leaves:
            self._sent.append((moved.group, moved.keys))
        return moved


def _joined(parts: Sequence[MovedRows]) -> MovedRows:
    first = parts[0]
    if len(parts) == 1:
        return first
    return MovedRows(
        target=first.target,
        group=first.group,
        keys=KeySet(
            np.concatenate([part.keys.tables for part in parts]), np.concatenate([part.keys.keys for part in parts])
        ),
        rows=np.concatenate([part.rows for part in parts if part.rows is not None]),
    )
