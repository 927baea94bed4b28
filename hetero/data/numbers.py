"""Columns to numbers: Arrow arrays of numbers or text become numpy arrays that say what is missing or invalid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetero.data.buffers import Bool, bytes_view, is_text, missing_mask, string_slices, values_of
from hetero.kernels.text import BAD, EMPTY, OK, SLOW, parse_floats, parse_integers
from hetero.records import F64, I64, U64

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Numbers:
    """float64 [N] values; missing and invalid bool [N], None for nowhere. Where either holds the value is 0."""

    values: F64
    missing: Bool | None
    invalid: Bool | None


@dataclass(frozen=True, slots=True)
class Integers:
    """uint64 [N] values, negatives in two's complement; missing and invalid as in `Numbers`."""

    values: U64
    missing: Bool | None
    invalid: Bool | None


def numbers_of(array: pa.Array) -> Numbers:
    """A column of numbers (any width, booleans, decimals, null type) or of their text, as float64.

    Missing: null, or text that is empty or blank. Invalid: text that is not a number. NaN and infinities are
    values here.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not is_text(array.type):
        missing = missing_mask(array)
        return Numbers(np.asarray(values_of(array), np.float64), missing, None)
    values, status = float_slices(*_slices(array))
    return Numbers(values, _where(status == EMPTY), _where(status == BAD))


def integers_of(array: pa.Array) -> Integers:
    """A column of integers, or of their text, as 64-bit keys: all of int64 and uint64, nothing narrowed.

    Missing: null, or text that is empty or blank. Invalid: text that is not an integer of 64 bits.
    int64 and uint64 without nulls are not copied.
    """
    if pa.types.is_integer(array.type):
        return Integers(_as_keys(values_of(array)), missing_mask(array), None)
    values, status = integer_slices(*_slices(array))
    return Integers(values, _where(status == EMPTY), _where(status == BAD))


def float_slices(data: U8, starts: I64, stops: I64) -> tuple[F64, U8]:
    """Numbers in data[starts[i]:stops[i]], correctly rounded: float64 [N] and status uint8 [N] (OK, EMPTY, BAD)."""
    values = np.empty(len(starts), np.float64)
    status = np.empty(len(starts), np.uint8)
    parse_floats(data, starts, stops, values, status)
    slow = np.flatnonzero(status == SLOW)
    if len(slow):
        text = gather_text(data, starts[slow], stops[slow])
        values[slow] = pc.cast(pc.ascii_trim_whitespace(text), pa.float64()).to_numpy()
        status[slow] = OK
    return values, status


def integer_slices(data: U8, starts: I64, stops: I64) -> tuple[U64, U8]:
    """64-bit integers in data[starts[i]:stops[i]]: uint64 [N] and status uint8 [N] (OK, EMPTY, BAD)."""
    values = np.empty(len(starts), np.uint64)
    status = np.empty(len(starts), np.uint8)
    parse_integers(data, starts, stops, values, status)
    return values, status


def gather_text(data: U8, starts: I64, stops: I64) -> pa.Array:
    """The slices data[starts[i]:stops[i]] copied into one Arrow string array (not checked to be UTF-8)."""
    lengths = stops - starts
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    index = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[index])]
    return pa.LargeStringArray.from_buffers(len(lengths), buffers[1], buffers[2])


def _slices(array: pa.Array) -> tuple[U8, I64, I64]:
    """Text as slices; a null's slice is empty."""
    data, offsets = string_slices(array)
    wide = offsets.astype(np.int64, copy=False)
    starts, stops = wide[:-1], wide[1:]
    missing = missing_mask(array)
    if missing is not None:
        stops = np.where(missing, starts, stops)
    return bytes_view(data), np.ascontiguousarray(starts), np.ascontiguousarray(stops)


def _as_keys(values: npt.NDArray[np.integer]) -> U64:
    if values.dtype.kind == "i":
        return values.astype(np.int64, copy=False).view(np.uint64)
    return values.astype(np.uint64, copy=False)


def _where(mask: Bool) -> Bool | None:
    return mask if mask.any() else None
