"""Which keys a group's stores may be asked for, and how kernels take them."""

from __future__ import annotations

import numpy as np

from hetero.errors import ProtocolError
from hetero.records import U16, GroupSpec, KeySet


class GroupKeys:
    """The tables of a group. names: by number."""

    def __init__(self, group: GroupSpec) -> None:
        self.names = {table.index: table.name for table in group.tables}
        self._known = np.zeros(max(self.names, default=0) + 1, np.bool_)
        self._known[list(self.names)] = True

    def checked(self, keys: KeySet) -> KeySet:
        """The keys as kernels take them: a strided or read-only array would be a type of its own, compiled apart.

        Raises ProtocolError for other types, or a table that is not the group's.
        """
        tables, values = keys.tables, keys.keys
        if tables.shape != values.shape or tables.dtype != np.uint16 or values.dtype != np.uint64:
            raise ProtocolError(
                f"keys: tables are {tables.dtype} {tables.shape}, keys {values.dtype} {values.shape}; "
                "expected uint16 and uint64 of one length"
            )
        if len(keys) and not self._are_known(tables):
            strange = sorted(set(np.unique(tables).tolist()) - set(self.names))
            raise ProtocolError(f"rows of table {strange[0]} were asked of the group of {sorted(self.names.values())}")
        return KeySet(np.require(tables, None, ("C", "A", "W")), np.require(values, None, ("C", "A", "W")))

    def named(self, keys: KeySet, position: int) -> tuple[str, int]:
        """Table and key at a position."""
        return self.names[int(keys.tables[position])], int(keys.keys[position])

    def _are_known(self, tables: U16) -> bool:
        first, last = int(tables.min()), int(tables.max())
        return last < len(self._known) and bool(
            self._known[first] if first == last else self._known[first : last + 1].all() or self._known[tables].all()
        )
