"""Blocks of a token stream in training order: what a step holds is a function of (tokens, seed, position) alone.

    stream    t0 t1 t2 ... tn       cut every `context` tokens, from a first token that changes with the epoch
    epoch 0   block 17, block 3, ...            a shuffle by (seed, epoch)
    position  0         1       ...  N    N+1   counts on over epochs; it is the whole cursor

A step of batch size B takes positions [cursor, cursor + B), and way w of W takes the w-th of W equal parts of them: so
any number of data ways reads the same batches, and a run may go on with another number of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetero.data.permutation import Permutation
from hetero.data.token_store import TokenStore
from hetero.errors import DataError
from hetero.records.arrays import I64

_SHIFT_PRIME = 1_000_003


class TokenBlocks:
    """Blocks of `length` tokens every `stride`. Raises DataError when the stream holds none.

    For a causal model length is stride + 1: targets are the inputs one token on.
    """

    def __init__(self, store: TokenStore, *, stride: int, length: int, seed: int) -> None:
        self._store = store
        self._stride = stride
        self._length = length
        self._seed = seed
        self.per_epoch = (len(store) - length - stride + 1) // stride + 1
        if self.per_epoch < 1:
            raise DataError(
                f"{store.folder}: {len(store)} tokens hold no block of {length} from a free first token; give more "
                f"text, or lower the context ({stride})"
            )

    def at(self, positions: I64) -> I64:
        """Blocks at `positions` [n] of the training order: int64 [n, length]."""
        starts = np.concatenate([self._starts(epoch, places) for epoch, places in self._by_epoch(positions)])
        return np.stack([self._store.slice(int(start), self._length) for start in starts])

    @property
    def ordered(self) -> int:
        """Blocks of the stream cut from its very beginning, for evaluation."""
        return (len(self._store) - self._length) // self._stride + 1

    def ordered_at(self, number: int) -> I64:
        """Block `number` of the stream in its own order: int64 [length]."""
        return self._store.slice(number * self._stride, self._length)

    def _by_epoch(self, positions: I64) -> Iterator[tuple[int, I64]]:
        epochs = positions // self.per_epoch
        for epoch in dict.fromkeys(epochs.tolist()):
            yield epoch, positions[epochs == epoch] - epoch * self.per_epoch

    def _starts(self, epoch: int, places: I64) -> I64:
        seed = self._seed * _SHIFT_PRIME + epoch
        first = int(Permutation(size=self._stride, seed=seed).at(np.zeros(1, np.int64))[0])
        return first + self._stride * Permutation(size=self.per_epoch, seed=seed).at(places)


def positions_of(cursor: int, *, batch_size: int, way: int, ways: int) -> I64:
    """The positions that data way `way` of `ways` takes in the step that begins at `cursor`."""
    share = batch_size // ways
    return np.arange(cursor + way * share, cursor + (way + 1) * share, dtype=np.int64)
