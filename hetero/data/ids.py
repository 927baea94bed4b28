"""Columns to keys: integers as they are, text by its hash, numbers by their bucket; scalars and lists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hetero.data.buffers import Bool, is_text, missing_mask
from hetero.data.faults import RowFaults, show_cell
from hetero.data.hashing import MISSING_KEY, hash_strings
from hetero.data.jagged import keep_last, row_offsets
from hetero.data.numbers import integers_of, numbers_of
from hetero.errors import DataError
from hetero.records import F32, I32, U64, IdKind, Jagged, Missing, SparseFeature


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys uint64 [N] of values; missing and invalid bool [N], None for nowhere."""

    values: U64
    missing: Bool | None
    invalid: Bool | None


def scalar_keys(array: pa.Array, *, feature: SparseFeature, faults: RowFaults) -> Jagged:
    """One key a row; a missing value becomes MISSING_KEY or, under `Missing.SKIP`, no key."""
    keys = _keys_of(array, feature=feature)
    faults.mark(keys.invalid, describe=lambda row: _reason(array, row, feature=feature))
    if keys.missing is None:
        return Jagged(keys.values)
    if feature.missing is Missing.KEY:
        return Jagged(np.where(keys.missing, np.uint64(MISSING_KEY), keys.values))
    return Jagged(keys.values[~keys.missing], row_offsets((~keys.missing).astype(np.int32)))


def list_keys(array: pa.Array, *, feature: SparseFeature, faults: RowFaults, factors: F32 | None = None) -> Jagged:
    """The keys of each row's list. Null lists are empty; null elements and empty pieces of text are left out.

    Text is split at `feature.separator`. `factors` (float32, one per element) become the weights.
    """
    elements, offsets = _elements(array, feature=feature)
    keys = _keys_of(elements, feature=feature)
    bad = _either(keys.invalid, keys.missing)
    if bad is not None:
        at = np.flatnonzero(bad)
        rows = np.searchsorted(offsets, at, side="right") - 1
        first = dict(zip(rows[::-1].tolist(), at[::-1].tolist(), strict=True))
        bad_rows = np.zeros(len(array), np.bool_)
        bad_rows[rows] = True
        faults.mark(bad_rows, describe=lambda row: _reason(elements, first[row], feature=feature))
    return keep_last(Jagged(keys.values, offsets, factors), most=feature.max_length)


def row_ids(array: pa.Array) -> U64:
    """uint64 [N] ids that group rows: keys as under `IdKind.AUTO`, MISSING_KEY where missing."""
    keys = _ids_of(array, ids=IdKind.AUTO)
    return keys.values if keys.missing is None else np.where(keys.missing, np.uint64(MISSING_KEY), keys.values)


def _reason(array: pa.Array, at: int, *, feature: SparseFeature) -> str:
    wanted = "a 64-bit integer" if feature.boundaries is None else "a number to put in a bucket"
    return f"column '{feature.column}': {show_cell(array, at)} is not {wanted}"


def _keys_of(array: pa.Array, *, feature: SparseFeature) -> _Keys:
    if feature.boundaries is None:
        return _ids_of(array, ids=feature.ids)
    numbers = numbers_of(array)
    boundaries = np.sort(np.array(feature.boundaries, np.float64))
    buckets = np.searchsorted(boundaries, numbers.values, side="right")
    return _Keys(buckets.astype(np.uint64), numbers.missing, _either(numbers.invalid, np.isnan(numbers.values)))


def _ids_of(array: pa.Array, *, ids: IdKind) -> _Keys:
    if pa.types.is_dictionary(array.type) and not is_text(array.type.value_type):
        array = array.dictionary_decode()
    number = pa.types.is_integer(array.type)
    if ids is IdKind.INTEGER or (number and ids is IdKind.AUTO):
        plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        if pa.types.is_null(plain.type):
            plain = plain.cast(pa.int64())
        integers = integers_of(plain)
        return _Keys(integers.values, integers.missing, integers.invalid)
    missing = missing_mask(array)
    if not (_is_bytes(array.type) or pa.types.is_dictionary(array.type)):
        array = array.cast(pa.string())
    return _Keys(hash_strings(array), missing, None)


def _is_bytes(kind: pa.DataType) -> bool:
    return is_text(kind) or bool(pa.types.is_fixed_size_binary(kind))


def _elements(array: pa.Array, *, feature: SparseFeature) -> tuple[pa.Array, I32]:
    """The elements of all rows, nulls and empty pieces left out, and their int32 [rows + 1] offsets."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        array = array.cast(pa.list_(pa.int64()))
    split = is_text(array.type)
    if split and not feature.separator:
        raise DataError(f"sparse feature '{feature.name}' has an empty separator; give the text between its values")
    if split:
        array = pc.split_pattern(array, feature.separator)
    elements = array.flatten()
    offsets = row_offsets(pc.fill_null(pc.list_value_length(array), 0).to_numpy())
    keep = None if elements.null_count == 0 else ~np.asarray(missing_mask(elements))
    if split:
        keep = pc.greater(pc.binary_length(elements), 0).to_numpy(zero_copy_only=False)
    if keep is None or keep.all():
        return elements, offsets
    kept_before = np.zeros(len(keep) + 1, np.int32)
    np.cumsum(keep, out=kept_before[1:])
    return elements.filter(pa.array(keep)), kept_before[offsets]


def _either(a: Bool | None, b: Bool | None) -> Bool | None:
    if a is None:
        return b if b is not None and b.any() else None
    merged = a if b is None else a | b
    return merged if merged.any() else None
