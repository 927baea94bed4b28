"""Keys made to measure: `mix64` is a bijection, so a key can be found for any hash, and collisions need no search."""

from __future__ import annotations

import numpy as np

from hetero.kernels.mix import mix64_reference
from hetero.records import U64

_MASK = (1 << 64) - 1
_FIRST_INVERSE = pow(0xBF58476D1CE4E5B9, -1, 1 << 64)
_SECOND_INVERSE = pow(0x94D049BB133111EB, -1, 1 << 64)


def unmix64(mixed: int) -> int:
    """The number whose mix64 is `mixed`."""
    value = _undo_xor_shift(mixed, 31) * _SECOND_INVERSE & _MASK
    value = _undo_xor_shift(value, 27) * _FIRST_INVERSE & _MASK
    return _undo_xor_shift(value, 30)


def keys_with_hashes(hashes: list[int], *, seed: int) -> U64:
    """Keys of a table with this seed whose hashes are these, uint64 [n]."""
    mixed_seed = int(mix64_reference(np.array([seed], np.uint64))[0])
    return np.array([unmix64(hashed) ^ mixed_seed for hashed in hashes], np.uint64)


def colliding_hashes(count: int, *, bucket: int = 5, fingerprint: int = 0xAB, start: int = 0xFFFFFFFF) -> list[int]:
    """Hashes of one bucket of 4096, with one fingerprint and one first slot: in the index they differ by key alone.

    start: 0xFFFFFFFF is the last slot of a shard, so that probing wraps around. Up to 4096 hashes.
    """
    return [bucket << 52 | number << 40 | fingerprint << 32 | start for number in range(count)]


def _undo_xor_shift(value: int, shift: int) -> int:
    undone = value
    for _ in range(64 // shift):
        undone = value ^ (undone >> shift)
    return undone
