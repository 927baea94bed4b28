"""The servers' side of `geo`: differences of towers' copies are added, and a tower reads back what changed.

Consumes   first pulls of rows (a tower has a copy from then on); differences of copies
Produces   rows [E]; per exchange every row that the tower has a copy of and that changed since its last exchange
Waits for  nobody

For every tower the server keeps the rows that are due to it: those it has a copy of that somebody pushed, itself
included, since its last exchange. A row enters that list once and leaves it with the exchange, so an exchange costs
what it moves, and never a look at all rows. The tower's own rows are among them: with differences scaled by
1 / towers, or with others' pushes in between, the tower's copy is not what the server holds.

A row's staleness here is the pushes by others since the tower last read it, by pull or by exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.embedding.answers import Create
from hetero.embedding.rows import Rows
from hetero.errors import ProtocolError
from hetero.exchange.messages import (
    MAX_EXAMPLES,
    DifferencesReply,
    DifferencesRequest,
    PullRequest,
    PushReply,
    PushRequest,
    RejectedGradient,
    own_keys,
)
from hetero.exchange.staleness import StalenessCounts
from hetero.keys.numbering import KeyNumbers, grown
from hetero.records import F32, I32, GroupSpec, JobSpec, KeySet

_NO_COPY = -1


class CopiedRows:
    """Which tower has copies of which rows of one group, and what is due to it.

    since: int32 [rows, T], pushes by others since the tower last read the row, or -1 where it has no copy.
    """

    def __init__(self, group: GroupSpec, store: Rows, towers: int) -> None:
        self._names = {table.index: table.name for table in group.tables}
        self._dim = group.dim
        self._store = store
        self._numbers = KeyNumbers()
        self._since = np.full((0, towers), _NO_COPY, np.int32)
        self._is_due = np.zeros((0, towers), np.bool_)
        self._due: list[list[I32]] = [[] for _ in range(towers)]

    def note_pull(self, tower: int, keys: KeySet) -> None:
        """The tower reads these rows now, and has copies of them from now on."""
        numbers = self._numbers.number(keys)
        if len(self._numbers) > len(self._since):
            self._since = grown(self._since, 2 * len(self._numbers), fill=_NO_COPY)
            self._is_due = grown(self._is_due, 2 * len(self._numbers))
        self._since[numbers, tower] = 0

    def add(self, tower: int, keys: KeySet, differences: F32, *, staleness: StalenessCounts) -> list[tuple[str, int]]:
        """Add differences float32 [n, E] to rows; table and key of those that are not finite, which are not added.

        Raises ProtocolError for a row the tower has no copy of.
        """
        numbers = self._numbers.find(keys)
        if (numbers < 0).any() or (self._since[numbers, tower] == _NO_COPY).any():
            raise ProtocolError(f"server: tower {tower} sends differences of a row of {self._names} it never pulled")
        good = np.flatnonzero(np.isfinite(differences).all(1)).astype(np.int32)
        changed, added = numbers[good], keys[good]
        rows = self._store.read_rows(added).rows
        rows[:, : self._dim] += differences[good]
        self._store.write_rows(added, rows)
        staleness.add(self._since[changed, tower])
        for other in range(self._since.shape[1]):
            held = changed[self._since[changed, other] != _NO_COPY]
            if other != tower:
                self._since[held, other] += 1
            self._make_due(other, held)
        bad = np.setdiff1d(np.arange(len(keys)), good)
        self._make_due(tower, numbers[bad])
        return [(self._names[int(keys.tables[at])], int(keys.keys[at])) for at in bad]

    def take_due(self, tower: int) -> tuple[KeySet, F32]:
        """What is due to the tower, with the values now, float32 [n, E]; it has read them then."""
        due = np.concatenate([np.empty(0, np.int32), *self._due[tower]])
        self._due[tower] = []
        self._is_due[due, tower] = False
        self._since[due, tower] = 0
        keys = self._numbers.keys_of(due)
        return keys, self._store.pull(keys, create=Create.NO)

    def _make_due(self, tower: int, numbers: I32) -> None:
        fresh = numbers[~self._is_due[numbers, tower]]
        self._is_due[fresh, tower] = True
        self._due[tower].append(fresh)


class GeoTables:
    """The rule of `geo` on one server. stores: its rows, one a group."""

    def __init__(self, job: JobSpec, stores: Sequence[Rows]) -> None:
        self._job = job
        self._stores = stores
        self._copied: list[CopiedRows] = []
        self.forget_copies()
        self._next = [0] * job.towers.count
        self.steps_applied = 0
        self.rejected = 0
        self.staleness = StalenessCounts()

    def forget_copies(self) -> None:
        """No tower has a copy of any row, as at the start."""
        towers = self._job.towers.count
        self._copied = [
            CopiedRows(group, store, towers) for group, store in zip(self._job.groups, self._stores, strict=True)
        ]

    def note_pull(self, request: PullRequest) -> None:
        """A tower pulls rows it has no copies of yet."""
        for copied, keys in zip(self._copied, request.keys, strict=True):
            copied.note_pull(request.tower, own_keys(keys))

    def push(self, request: PushRequest) -> PushReply:
        """Raises ProtocolError: gradients stay with the tower."""
        raise ProtocolError(f"server: tower {request.tower} pushed gradients; in mode geo it sends differences")

    def exchange(self, request: DifferencesRequest, *, dense: F32) -> DifferencesReply:
        """Add a tower's differences; what is due to it comes back. dense: of the reply.

        Raises ProtocolError when it is not the tower's next exchange: a repeated one has no answer any more.
        """
        if request.sequence != self._next[request.tower]:
            raise ProtocolError(
                f"server: exchange number {request.sequence} of tower {request.tower} came, expected number "
                f"{self._next[request.tower]}"
            )
        self._next[request.tower] += 1
        bad: list[tuple[str, int]] = []
        for copied, keys, differences in zip(self._copied, request.keys, request.differences, strict=True):
            bad += copied.add(request.tower, own_keys(keys), differences, staleness=self.staleness)
        due = [copied.take_due(request.tower) for copied in self._copied]
        self.steps_applied = max(self.steps_applied, request.step + 1)
        self.rejected += len(bad)
        return DifferencesReply(
            keys=tuple(keys for keys, _ in due),
            rows=tuple(rows for _, rows in due),
            dense=dense,
            rejected=len(bad),
            examples=tuple(RejectedGradient(step=request.step, table=t, key=key) for t, key in bad[:MAX_EXAMPLES]),
        )
