"""What of a store changed when: epochs of rows, deletions, and the cut that is open."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.embedding.cut import KeptRows, StoreCut
from hetero.embedding.epochs import Epochs
from hetero.embedding.shards import Shards
from hetero.errors import ProtocolError
from hetero.kernels.cut import forget_epochs_kernel
from hetero.kernels.removal import remove_kernel
from hetero.records import I32, U64, KeySet

_NOTHING_KEPT = KeptRows.of(np.zeros(0, np.int64))


class Changes:
    """The changes of one store. Its lock is held in every call, except those of cuts."""

    def __init__(self, shards: Shards, *, width: int, seeds: U64, shift: np.uint64, lock: Any) -> None:
        self._shards, self._width, self._seeds, self._shift, self._lock = shards, width, seeds, shift, lock
        self._epochs = Epochs()
        self._cut: StoreCut | None = None
        self._deleted: list[tuple[int, KeySet]] = []

    @property
    def epoch(self) -> np.uint16:
        """The epoch now, as it stands in a record's field."""
        return self._epochs.field

    @property
    def kept_bytes(self) -> int:
        """Memory of rows kept for the cut that is open."""
        return 0 if self._cut is None else self._cut.kept_bytes

    def keep(self, keys: KeySet) -> None:
        """Keep rows that are about to change, where a cut needs them. Raises CapacityError."""
        if self._cut is not None:
            self._cut.keep(keys, self._seeds, self._shift)

    def begin(self, *, since: int | None) -> StoreCut:
        """Open a cut. Raises ProtocolError while one is open, or for a mark since which nothing can be told."""
        self._refuse_while_open()
        if since is not None and not self._epochs.tells_since(since):
            raise ProtocolError(f"rows cannot tell what changed since mark {since}; take a snapshot of all rows")
        self._forget_if_exhausted()
        deleted = [keys for epoch, keys in self._deleted if since is not None and epoch > since]
        self._cut = StoreCut(
            self._shards,
            self._epochs,
            self._lock,
            width=self._width,
            since=since,
            deleted=deleted,
            end=self._end,
        )
        return self._cut

    def mark(self) -> int:
        """A mark of now, without a cut. Raises ProtocolError while a cut is open."""
        self._refuse_while_open()
        self._forget_if_exhausted()
        return self._epochs.advance()

    def tells_since(self, mark: int) -> bool:
        """Whether `begin` would take this mark."""
        return self._epochs.tells_since(mark)

    def forget_before(self, mark: int) -> None:
        """Nobody will ask what changed since a mark before this one."""
        self._deleted = [(epoch, keys) for epoch, keys in self._deleted if epoch > mark]

    def remove(self, keys: KeySet) -> I32:
        """Take rows out of the shards; positions of those there were, int32, ascending."""
        removed = np.empty(len(keys), np.int32)
        kept, nodes_at = _NOTHING_KEPT, np.uint64(0)
        if self._cut is not None:
            kept, nodes_at = self._cut.room_for(2 * len(keys))
        count = remove_kernel(
            keys.tables,
            keys.keys,
            self._seeds,
            self._shards.description,
            self._shift,
            self._width,
            self._epochs.field,
            self._cut is not None,
            kept.ends,
            kept.nexts,
            kept.first_chunks,
            nodes_at,
            kept.heads,
            kept.counters,
            kept.chunk_rows,
            removed,
        )
        positions = removed[:count]
        if count and self._epochs.now:  # before the first mark there is none to ask since
            self._deleted.append((self._epochs.now, keys[positions]))
        return positions

    def _end(self) -> None:
        self._cut = None

    def _refuse_while_open(self) -> None:
        if self._cut is not None:
            raise ProtocolError("a snapshot's cut is open; one at a time")

    def _forget_if_exhausted(self) -> None:
        if self._epochs.exhausted:
            forget_epochs_kernel(self._shards.description, self._width)
            self._epochs.renewed()
