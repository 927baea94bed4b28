"""64-bit hashes of Arrow columns: xxHash64 (seed 0) of a value's bytes, the key of every id that is text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hetero.data.buffers import contiguous, is_text, string_slices
from hetero.kernels.xxhash64 import hash_slices, hash_text
from hetero.records import U64

__all__ = ["MISSING_KEY", "hash_strings", "hash_text"]

MISSING_KEY: int = hash_text("")
"""The key of a missing value under `Missing.KEY`: 0xEF46DB3751D8E999, the hash of no bytes."""


def hash_strings(column: pa.Array | pa.ChunkedArray) -> U64:
    """xxHash64 of each value's bytes (strings as UTF-8), uint64 [N]; a null's hash has no meaning.

    Takes strings and bytes of any Arrow layout, slices and chunks included. Of a dictionary array the
    dictionary is hashed once. Raises TypeError for other types.
    """
    array = contiguous(column)
    if pa.types.is_dictionary(array.type):
        indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        hashes = hash_strings(array.dictionary)
        return hashes[indices] if len(hashes) else np.full(len(indices), MISSING_KEY, np.uint64)
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.large_binary())
    if not is_text(array.type):
        raise TypeError(f"hash_strings takes strings or bytes, not {array.type}; cast the column first")
    data, offsets = string_slices(array)
    out = np.empty(len(array), np.uint64)
    hash_slices(data, offsets, out)
    return out
