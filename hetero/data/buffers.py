"""Numpy views over Arrow arrays: contiguous columns, string buffers, missing values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetero.records import I32, I64

U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

_LARGEST_SMALL_BINARY = 2**31 - 1


def contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array, without a copy when it has one chunk; strings over 2 GiB become large."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    elif column.nbytes > _LARGEST_SMALL_BINARY and is_text(column.type):
        column = column.cast(pa.large_binary())
    return pa.concat_arrays(column.chunks)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are strings or bytes of any length."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists: ordinary, large or of fixed size."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def string_slices(array: pa.Array) -> tuple[U8, I32 | I64]:
    """Bytes and offsets of a string or binary array, without copies: value i is data[offsets[i]:offsets[i + 1]].

    Returns uint8 [bytes], read-only, and int32 (string, binary) or int64 (large ones) [N + 1].
    """
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    kind: Any = np.int64 if wide else np.int32
    _, offset_buffer, data_buffer = array.buffers()
    if offset_buffer is None or len(array) == 0:
        return bytes_view(b""), np.zeros(1, kind)
    offsets = np.frombuffer(offset_buffer, kind)[array.offset : array.offset + len(array) + 1]
    return bytes_view(data_buffer), offsets


def bytes_view(data: Any) -> U8:
    """Bytes of a buffer (None is empty) as a read-only uint8 array, so that kernels meet one array type."""
    return np.frombuffer(b"" if data is None else data, np.uint8)


def missing_mask(array: pa.Array) -> Bool | None:
    """bool [N], true where the value is null; None when none is."""
    if array.null_count == 0:
        return None
    return np.asarray(pc.is_null(array).to_numpy(zero_copy_only=False), np.bool_)


def values_of(array: pa.Array, *, fill: int | float = 0) -> npt.NDArray[Any]:
    """Values of a numeric array with `fill` in place of nulls; without a copy when there are none.

    Booleans come as uint8, decimals and half floats as float64.
    """
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    elif not (pa.types.is_integer(array.type) or pa.types.is_float32(array.type)):
        array = pc.cast(array, pa.float64(), safe=False)
    if array.null_count:
        array = array.fill_null(fill)
    return np.asarray(array.to_numpy(zero_copy_only=True))
