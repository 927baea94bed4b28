"""A shuffle of [0, n) that needs no memory: the place of any element is computed by itself.

A Feistel network over an even number of bits, walked along its cycle until it falls below n (Black and Rogaway 2002,
"Ciphers with arbitrary finite domains").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.kernels.mix import GOLDEN, mix64_reference
from hetero.records.arrays import I64, U64

_ROUNDS = 6
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Permutation:
    """The elements of [0, size) in an order that is a function of (size, seed)."""

    size: int
    seed: int

    def at(self, places: I64) -> I64:
        """Elements at `places`, int64 [n], each in [0, size)."""
        half = max(1, (max(self.size - 1, 1).bit_length() + 1) // 2)
        found = self._walk(places.astype(np.uint64), half)
        while (outside := found >= self.size).any():
            found[outside] = self._walk(found[outside], half)
        return found.astype(np.int64)

    def _walk(self, values: U64, half: int) -> U64:
        bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
        left, right = values >> bits, values & mask
        for number in range(_ROUNDS):
            key = np.uint64((self.seed * _ROUNDS + number + 1) * int(GOLDEN) & _WORD)
            left, right = right, left ^ (mix64_reference(right + key) & mask)
        return left << bits | right
