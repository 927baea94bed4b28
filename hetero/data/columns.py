"""The rules by which columns become labels, weights, dense values and keys; the same for every file format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hetero.data.buffers import is_list, missing_mask, values_of
from hetero.data.faults import RowFaults, show_cell
from hetero.data.ids import list_keys, row_ids, scalar_keys
from hetero.data.jagged import join, join_weights, take_rows
from hetero.data.numbers import numbers_of
from hetero.data.tokens import token_rows
from hetero.records import (
    F32,
    F64,
    I32,
    I64,
    U64,
    DataSpec,
    DenseFeature,
    DenseTransform,
    Jagged,
    TaskSpec,
)

_TILE_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Rows as read from a file, before any rule: one Arrow array a column, null or empty text where missing.

    lines: int64 [rows], where each row stands (as `MalformedRow.line`). dropped: (line, reason) of lines that
    made no row. faults: rows already known to be bad. factors: float32 per value of a list column (libsvm).
    """

    columns: Mapping[str, pa.Array]
    rows: int
    lines: I64
    dropped: tuple[tuple[int, str], ...] = ()
    faults: RowFaults
    factors: Mapping[str, F32] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Good rows as columns; the arrays of `ParsedSplit`."""

    labels: F32
    weights: F32 | None
    dense: F32
    sparse: tuple[Jagged, ...]
    gauc_ids: U64 | None
    tokens: tuple[I32, ...]
    tasks: F32 | None

    def take(self, rows: I64) -> Rows:
        """The rows numbered `rows` (int64 [n]), in that order, copied."""
        return Rows(
            labels=self.labels.take(rows),
            weights=None if self.weights is None else self.weights.take(rows),
            dense=self.dense.take(rows, axis=0),
            sparse=tuple(take_rows(jagged, rows) for jagged in self.sparse),
            gauc_ids=None if self.gauc_ids is None else self.gauc_ids.take(rows),
            tokens=tuple(tokens.take(rows, axis=0) for tokens in self.tokens),
            tasks=None if self.tasks is None else self.tasks.take(rows, axis=0),
        )


def convert(block: Block, *, spec: DataSpec) -> Rows:
    """The good rows of a block; every other row is marked in `block.faults` with its reason.

    Raises DataError when one split holds more keys than 32-bit offsets can number.
    """
    columns, faults = block.columns, block.faults
    labels = _labels(columns, column=spec.label, rows=block.rows, faults=faults)
    weights = None if spec.weight is None else _weights(columns[spec.weight], column=spec.weight, faults=faults)
    dense = _dense(columns, features=spec.dense, rows=block.rows, faults=faults)
    sparse = tuple(
        list_keys(columns[f.column], feature=f, faults=faults, factors=block.factors.get(f.column))
        if f.is_list or is_list(columns[f.column].type)
        else scalar_keys(columns[f.column], feature=f, faults=faults)
        for f in spec.sparse
    )
    gauc_ids = None if spec.gauc_column is None else row_ids(columns[spec.gauc_column])
    rows = Rows(
        labels=labels,
        weights=weights,
        dense=dense,
        sparse=sparse,
        gauc_ids=gauc_ids,
        tokens=tuple(token_rows(columns[text.column], feature=text, faults=faults) for text in spec.texts),
        tasks=_tasks(columns, tasks=spec.tasks, faults=faults),
    )
    good = faults.good_rows()
    return rows if good is None else rows.take(good)


def join_blocks(parts: Sequence[Rows], *, spec: DataSpec) -> Rows:
    """Rows of all blocks of a split in order; of none, zero rows of the right shapes."""
    if not parts:
        return _no_rows(spec)
    if len(parts) == 1:
        return parts[0]
    sizes = [len(part.labels) for part in parts]
    ids = [part.gauc_ids for part in parts if part.gauc_ids is not None]
    tasks = [part.tasks for part in parts if part.tasks is not None]
    return Rows(
        labels=np.concatenate([part.labels for part in parts]),
        weights=join_weights([part.weights for part in parts], sizes),
        dense=np.concatenate([part.dense for part in parts]),
        sparse=tuple(join([part.sparse[i] for part in parts]) for i in range(len(spec.sparse))),
        gauc_ids=np.concatenate(ids) if ids else None,
        tokens=tuple(np.concatenate([part.tokens[i] for part in parts]) for i in range(len(spec.texts))),
        tasks=np.concatenate(tasks) if tasks else None,
    )


def dense_column(array: pa.Array, *, column: str, faults: RowFaults) -> tuple[F64, npt.NDArray[np.bool_]]:
    """Values before fill and transform, float64 [rows], and bool [rows] where the cell holds a number.

    Text that is not a number is marked as a fault; NaN and infinities are numbers.
    """
    numbers = numbers_of(array)
    faults.mark(numbers.invalid, describe=lambda row: f"column '{column}': {show_cell(array, row)} is not a number")
    present = np.ones(len(array), np.bool_)
    for absent in (numbers.missing, numbers.invalid):
        if absent is not None:
            present &= ~absent
    return numbers.values, present


def _no_rows(spec: DataSpec) -> Rows:
    keys, offsets = np.empty(0, np.uint64), np.zeros(1, np.int32)
    return Rows(
        labels=np.empty(0, np.float32),
        weights=None if spec.weight is None else np.empty(0, np.float32),
        dense=np.empty((0, len(spec.dense)), np.float32),
        sparse=tuple(Jagged(keys.copy(), offsets.copy() if f.is_list else None) for f in spec.sparse),
        gauc_ids=None if spec.gauc_column is None else np.empty(0, np.uint64),
        tokens=tuple(np.empty((0, text.length), np.int32) for text in spec.texts),
        tasks=np.empty((0, len(spec.tasks)), np.float32) if spec.tasks else None,
    )


def _labels(columns: Mapping[str, pa.Array], *, column: str | None, rows: int, faults: RowFaults) -> F32:
    if column is None:
        return np.full(rows, np.nan, np.float32)
    labels, missing = _zeros_and_ones(columns[column], column=column, faults=faults)
    faults.mark(missing, describe=lambda row: f"label '{column}' is missing")
    return labels


def _tasks(columns: Mapping[str, pa.Array], *, tasks: Sequence[TaskSpec], faults: RowFaults) -> F32 | None:
    """float32 [rows, K], NaN where a label is missing."""
    if not tasks:
        return None
    found = []
    for task in tasks:
        labels, missing = _zeros_and_ones(columns[task.column], column=task.column, faults=faults)
        found.append(labels if missing is None else np.where(missing, np.float32(np.nan), labels))
    return np.stack(found, axis=1)


def _zeros_and_ones(array: pa.Array, *, column: str, faults: RowFaults) -> tuple[F32, npt.NDArray[np.bool_] | None]:
    """Labels float32 [rows], 0 where missing; bool [rows] where, None for nowhere. Others than 0 and 1 are faults."""
    numbers = numbers_of(array)
    outside = (numbers.values != 0.0) & (numbers.values != 1.0)
    bad = outside if numbers.invalid is None else outside | numbers.invalid
    faults.mark(bad, describe=lambda row: f"label '{column}': {show_cell(array, row)} is not 0 or 1")
    return numbers.values.astype(np.float32), numbers.missing


def _weights(array: pa.Array, *, column: str, faults: RowFaults) -> F32:
    numbers = numbers_of(array)
    faults.mark(numbers.missing, describe=lambda row: f"weight '{column}' is missing")
    with np.errstate(over="ignore", invalid="ignore"):
        weights = numbers.values.astype(np.float32)
        bad = ~(np.isfinite(weights) & (weights >= 0.0))
    bad = bad if numbers.invalid is None else bad | numbers.invalid
    faults.mark(bad, describe=lambda row: f"weight '{column}': {show_cell(array, row)} is not a finite number >= 0")
    return weights


def _dense(columns: Mapping[str, pa.Array], *, features: Sequence[DenseFeature], rows: int, faults: RowFaults) -> F32:
    """float32 [rows, D]: filled, transformed in float64, rounded once."""
    values = [_dense_values(columns[f.column], feature=f, faults=faults) for f in features]
    dense = np.empty((rows, len(features)), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, rows, _TILE_ROWS):
            tile = dense[start : start + _TILE_ROWS]
            for j, column in enumerate(values):
                tile[:, j] = column[start : start + _TILE_ROWS]
    if not np.isfinite(dense).all():
        for j, feature in enumerate(features):
            _mark_not_finite(dense[:, j], column=feature.column, array=columns[feature.column], faults=faults)
    return dense


def _mark_not_finite(values: F32, *, column: str, array: pa.Array, faults: RowFaults) -> None:
    faults.mark(
        ~np.isfinite(values),
        describe=lambda row: f"column '{column}': {show_cell(array, row)} makes no finite float32",
    )


def _dense_values(array: pa.Array, *, feature: DenseFeature, faults: RowFaults) -> npt.NDArray[Any]:
    """One column, ready to be rounded to float32; float32 and integers of up to 32 bits need no float64 copy."""
    narrow = pa.types.is_float32(array.type) or (pa.types.is_integer(array.type) and array.type.bit_width <= 32)
    if narrow and feature.transform is DenseTransform.NONE and missing_mask(array) is None:
        return values_of(array)
    values, present = dense_column(array, column=feature.column, faults=faults)
    if not present.all():
        values = np.where(present, values, feature.fill)
    return transformed(values, feature=feature)


def transformed(values: F64, *, feature: DenseFeature) -> F64:
    """The feature's transform in float64: x, sign(x) * log1p(|x|), or (x - mean) / std."""
    with np.errstate(all="ignore"):
        if feature.transform is DenseTransform.LOG:
            return np.copysign(np.log1p(np.abs(values)), values)
        if feature.transform is DenseTransform.STANDARD:
            return (values - feature.mean) / feature.std
    return values
