"""What a server needs of a store of rows, whatever tiers stand behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from hetero.embedding.shards import MemoryUse
from hetero.embedding.store import Create, PushReport, RowsRead
from hetero.records import F32, KeySet


class Rows(Protocol):
    """The rows of one group on one server: `RowStore` in memory, `TieredStore` beyond it. See `RowStore`."""

    width: int

    def pull(self, keys: KeySet, *, create: Create) -> F32: ...

    def push(self, keys: KeySet, gradients: F32) -> PushReport: ...

    def read_rows(self, keys: KeySet) -> RowsRead: ...

    def write_rows(self, keys: KeySet, rows: F32) -> None: ...

    def check_free(self, keys: KeySet) -> None: ...

    def lease(self, keys: KeySet, *, holder: int) -> F32: ...

    def give_back(self, keys: KeySet, rows: F32, *, holder: int) -> None: ...

    def scan(self) -> Iterator[tuple[KeySet, F32]]: ...

    def count(self) -> int: ...

    def count_by_table(self) -> dict[str, int]: ...

    def memory(self) -> MemoryUse: ...

    def close(self) -> None: ...
