"""How often every row of a model was updated, as Adam's state tells: evidence of what was trained, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetero.checkpoint.manifest import FileKind
from hetero.checkpoint.rows import read_part
from hetero.records import F32, I64, RowOptimizer, RowOptimizerSpec
from pipelines.models import find_model

_IDENTITY = np.dtype([("table", np.uint16), ("key", np.uint64)])
_LEAST_POWER = 1e-30  # of beta1; below, beta2's is further from the end of float32


@dataclass(frozen=True, slots=True)
class Updates:
    """Identities (table uint16, key uint64) [R], sorted, and int64 [R] updates of each."""

    rows: np.ndarray
    counts: I64


def updates_of(run: Path) -> Updates | None:
    """Of every row of a run's model in tables with Adam; None without such tables."""
    model = find_model(run)
    snapshot = model.snapshot()
    rows, counts = [np.empty(0, _IDENTITY)], [np.empty(0, np.int64)]
    groups = {n: group for n, group in enumerate(model.spec.groups) if group.optimizer.kind is RowOptimizer.ADAM}
    if not groups:
        return None
    for entry in snapshot.manifest.of_kind(FileKind.ROWS):
        if entry.group not in groups:
            continue
        group = groups[entry.group]
        for chunk in read_part(snapshot, entry):
            identity = np.empty(len(chunk.keys), _IDENTITY)
            identity["table"], identity["key"] = chunk.keys.tables, chunk.keys.keys
            rows.append(identity)
            counts.append(adam_steps(chunk.rows, group.optimizer, dim=group.dim))
    joined = np.concatenate(rows)
    order = np.argsort(joined, order=("table", "key"))
    return Updates(joined[order], np.concatenate(counts)[order])


def adam_steps(rows: F32, optimizer: RowOptimizerSpec, *, dim: int) -> I64:
    """Updates of each row, from the powers of beta1 and beta2 that it keeps. rows float32 [R, W]."""
    first, second = rows[:, 3 * dim].astype(np.float64), rows[:, 3 * dim + 1].astype(np.float64)
    with np.errstate(divide="ignore"):
        by_first = np.log(first) / np.log(float(np.float32(optimizer.beta1)))
        by_second = np.log(second) / np.log(float(np.float32(optimizer.beta2)))
    steps: I64 = np.rint(np.where(first > _LEAST_POWER, by_first, by_second)).astype(np.int64)
    return steps


def difference(base: Updates, other: Updates) -> tuple[int, int]:
    """Updates that `other` lacks of those in `base`, and those it has beyond, added up over rows."""
    rows = np.concatenate([base.rows, other.rows])
    signed = np.concatenate([-base.counts, other.counts])
    _, where = np.unique(rows, return_inverse=True)
    sums = np.zeros(where.max(initial=-1) + 1, np.int64)
    np.add.at(sums, where, signed)
    return int(-sums[sums < 0].sum()), int(sums[sums > 0].sum())
