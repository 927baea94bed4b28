"""What a store of rows must do, on a dictionary: rows made and updated by the references in numpy."""

from __future__ import annotations

import numpy as np

from hetero.embedding.answers import Create, PushReport, RowsRead
from hetero.kernels.initial import NORMAL, UNIFORM, ZEROS, first_weights_reference
from hetero.kernels.mix import mix64_reference
from hetero.kernels.optimizers import LARGEST_GRADIENT
from hetero.optim.definition import first_state, row_width, update_reference
from hetero.records import F32, GroupSpec, Initializer, KeySet

_FIRST = {Initializer.ZEROS: ZEROS, Initializer.UNIFORM: UNIFORM, Initializer.NORMAL: NORMAL}


class RowOracle:
    """The calls of `RowStore`, one key at a time."""

    def __init__(self, group: GroupSpec) -> None:
        self._group = group
        self._names = {table.index: table.name for table in group.tables}
        seeds = mix64_reference(np.array([table.seed for table in group.tables], np.uint64))
        self._seeds = {table.index: int(seed) for table, seed in zip(group.tables, seeds, strict=True)}
        self.width = row_width(group.optimizer, group.dim)
        self.rows: dict[tuple[int, int], F32] = {}

    def pull(self, keys: KeySet, *, create: Create) -> F32:
        if create is Create.YES:
            self._make(keys)
        return self.read_rows(keys).rows[:, : self._group.dim]

    def push(self, keys: KeySet, gradients: F32) -> PushReport:
        self._make(keys)
        rejected = []
        for identity, gradient in zip(pairs(keys), gradients, strict=True):
            if (np.abs(gradient) < LARGEST_GRADIENT).all():
                old = self.rows[identity][None]
                with np.errstate(all="ignore"):
                    self.rows[identity] = update_reference(self._group.optimizer, old, gradient[None])[0]
            else:
                rejected.append((self._names[identity[0]], identity[1]))
        return PushReport(applied=len(keys) - len(rejected), rejected=len(rejected), examples=tuple(rejected[:8]))

    def read_rows(self, keys: KeySet) -> RowsRead:
        nothing = np.zeros(self.width, np.float32)
        rows = [self.rows.get(identity, nothing) for identity in pairs(keys)]
        found = np.array([identity in self.rows for identity in pairs(keys)], np.bool_)
        return RowsRead(np.array(rows, np.float32).reshape(len(keys), self.width), found)

    def write_rows(self, keys: KeySet, rows: F32) -> None:
        self.rows.update(zip(pairs(keys), rows.copy(), strict=True))

    def count_by_table(self) -> dict[str, int]:
        counts = dict.fromkeys(self._names.values(), 0)
        for table, _ in self.rows:
            counts[self._names[table]] += 1
        return counts

    def _make(self, keys: KeySet) -> None:
        spec = self._group.init
        for table, seed in self._seeds.items():
            mine = [key for at, key in pairs(keys) if at == table and (at, key) not in self.rows]
            values = np.array(mine, np.uint64)
            weights = first_weights_reference(
                seed, values, dim=self._group.dim, first=_FIRST[spec.kind], scale=spec.scale
            )
            with np.errstate(all="ignore"):
                rows = np.concatenate([weights, first_state(self._group.optimizer, weights)], axis=1)
            self.rows.update(zip([(table, key) for key in mine], rows, strict=True))


def pairs(keys: KeySet) -> list[tuple[int, int]]:
    """The identities of a KeySet, (table, key)."""
    return list(zip(keys.tables.tolist(), keys.keys.tolist(), strict=True))
