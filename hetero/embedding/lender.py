"""Who holds the rows of a store: handing them to towers, and finding what a tower has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from hetero.embedding.group_keys import GroupKeys
from hetero.embedding.shards import Shards
from hetero.errors import LeaseError, ProtocolError
from hetero.kernels.index import MOST_HOLDERS, hold_kernel, holders_kernel
from hetero.kernels.leasing import held_kernel, lend_kernel
from hetero.records import F32, I32, U16, U64, KeySet

T = TypeVar("T")


class InParts(Protocol):
    """Calls work(start, stop) on ranges that cover [0, count), any number at once; what it returned."""

    def __call__(self, count: int, work: Callable[[int, int], T], /) -> list[T]: ...


class Lender:
    """The holders noted in a store's records. Keys are unique and as `GroupKeys.checked` gives them; whoever calls
    holds the store's lock."""

    def __init__(self, shards: Shards, names: GroupKeys, *, width: int, seeds: U64, shift: np.uint64) -> None:
        self._shards, self._names, self._width, self._seeds, self._shift = shards, names, width, seeds, shift

    def check_free(self, keys: KeySet) -> None:
        """Raises LeaseError naming the first of the rows that somebody holds."""
        holders = self._holders(keys)
        if holders.any():
            raise self._held(keys, holders, int(np.flatnonzero(holders)[0]))

    def lend(self, keys: KeySet, rows: F32, *, holder: int, in_parts: InParts) -> I32:
        """Hand the rows there are to `holder` (1 and up) and fill `rows` float32 [U, W]; positions of missing rows,
        ascending.

        Raises LeaseError when a row is held already; then nothing is leased. Raises ProtocolError for a holder that a
        record cannot note.
        """
        if holder > MOST_HOLDERS:
            raise ProtocolError(f"tower {holder - 1} asks for a lease; rows can note {MOST_HOLDERS} holders")

        def part(start: int, stop: int) -> tuple[I32, int, int]:
            missing = np.empty(stop - start, np.int32)
            place, out = self._place(keys[start:stop]), rows[start:stop]
            count, held = lend_kernel(*place, self._width, np.uint16(holder), out, missing)
            return missing[:count] + np.int32(start), start, stop if held < 0 else start + held

        parts = in_parts(len(keys), part)
        if sum(stop - start for _, start, stop in parts) < len(keys):
            for _, start, stop in parts:
                self.free(keys[start:stop])
            self.check_free(keys)
        return np.concatenate([missing for missing, _, _ in parts])

    def free(self, keys: KeySet) -> None:
        """Nobody holds these rows, as far as they are there."""
        hold_kernel(*self._place(keys), self._width, np.uint16(0))

    def places(self, keys: KeySet, *, holder: int) -> U64:
        """Addresses of the rows' records, uint64 [U], for as long as none is made or removed.

        Raises LeaseError naming the first of the rows that `holder` lacks.
        """
        places = np.empty(len(keys), np.uint64)
        lacking = held_kernel(*self._place(keys), self._width, np.uint16(holder), places)
        if lacking >= 0:
            raise self._held(keys, self._holders(keys), lacking)
        return places

    def _holders(self, keys: KeySet) -> U16:
        holders = np.empty(len(keys), np.uint16)
        holders_kernel(*self._place(keys), self._width, holders)
        return holders

    def _held(self, keys: KeySet, holders: U16, position: int) -> LeaseError:
        who = f"tower {int(holders[position]) - 1}" if holders[position] else "nobody"
        table, key = self._names.named(keys, position)
        return LeaseError(f"key {key} of table {table} is held by {who}")

    def _place(self, keys: KeySet) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.uint64]:
        return keys.tables, keys.keys, self._seeds, self._shards.description, self._shift
