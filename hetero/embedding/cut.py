"""A consistent cut of a store's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from hetero.records import F32, KeySet


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Some rows of a store: rows float32 [n, W]; statistics by name, one array [n] each, where there are any."""

    keys: KeySet
    rows: F32
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict)


class StoreCut:
    """The rows a store held when `RowStore.begin_snapshot` was called, or those changed since an earlier mark.

    mark: what to pass as `since` for changes after this cut. held: rows in the store at the cut. width: floats a row.
    """

    def __init__(self, chunks: Callable[[], Iterator[RowChunk]], *, mark: int, held: int, width: int) -> None:
        self._chunks = chunks
        self.mark = mark
        self.held = held
        self.width = width

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, once, part by part, in any one thread."""
        return self._chunks()

    def deleted(self) -> Iterator[KeySet]:
        """Keys deleted since the earlier mark, part by part; none without one."""
        return iter(())

    def close(self) -> None:
        """End the cut, read out or not."""
