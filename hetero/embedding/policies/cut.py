"""A cut of rows with policies: the rows, but for those that only stand for keys a tower has, and keys without rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hetero.embedding.cut import RowChunk
from hetero.embedding.key_words import KeyWords
from hetero.embedding.rows import RowsCut
from hetero.records import U16, KeySet

Words = tuple[KeySet, U16]


class PolicyCut:
    """A `RowsCut` around that of a store. without_row: keys to leave out.

    words: by `waiting` and `dropped`, what `WaitingKeys` and `DroppedKeys` held.
    """

    def __init__(self, inner: RowsCut, *, without_row: KeyWords, waiting: Words, dropped: Words) -> None:
        self.mark = inner.mark
        self.width = inner.width
        self.held = inner.held - len(without_row)
        self.words: Mapping[str, Words] = {"waiting": waiting, "dropped": dropped}
        self._inner = inner
        self._without_row = without_row

    @property
    def statistics(self) -> Mapping[str, np.dtype[Any]]:
        return self._inner.statistics

    def chunks(self) -> Iterator[RowChunk]:
        """As `StoreCut.chunks`."""
        for chunk in self._inner.chunks():
            if len(self._without_row):
                stay = self._without_row.words(chunk.keys) == 0
                keys = chunk.keys[stay]
                chunk = RowChunk(keys, chunk.rows[stay], {n: values[stay] for n, values in chunk.statistics.items()})
            yield chunk

    def deleted(self) -> tuple[KeySet, ...]:
        return self._inner.deleted()

    def close(self) -> None:
        self._inner.close()
