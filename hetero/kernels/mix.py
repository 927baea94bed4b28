"""The 64-bit mix that spreads keys: buckets, index shards and slots, dedup and first values all start from it.

`mix64` is the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), a
bijection of 64-bit integers in which every input bit reaches every output bit.
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.jit import inline
from hetero.records import U64

_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@inline
def mix64(value: np.uint64) -> np.uint64:
    """Mix one uint64."""
    value ^= value >> np.uint64(30)
    value *= _FIRST
    value ^= value >> np.uint64(27)
    value *= _SECOND
    value ^= value >> np.uint64(31)
    return value


def mix64_reference(values: U64) -> U64:
    """`mix64` of every element, in numpy."""
    mixed = np.array(values, np.uint64)
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed
