"""Keys that have no row yet, and how often each was seen: exact, and bounded by what is seen in a number of days.

A key is here, or it has a row, or neither. Counts are by (table, key), so that no key is ever counted for another:
with whom it is confused would depend on servers and windows. An entry takes 20 bytes at most, where a row of dim 16
takes 100. What was not seen for `forget_days` is forgotten when a day begins: a sliding window, as in Monolith's
SlidingHashFilter.

An entry is one uint16: steps that saw the key, or tenths of its score (10 bits) | the last one's day modulo 64 << 10.
"""

from __future__ import annotations

import numpy as np

from hetero.embedding.key_words import KeyWords
from hetero.kernels.admission import MOST_SEEN, admitted_kernel
from hetero.records import F32, U16, U64, AdmissionSpec, KeySet

MOST_DAYS = 63
_SEEN_BITS = np.uint16(10)
_SEEN = np.uint16(MOST_SEEN)


SHOW_UNITS, CLICK_UNITS = 1, 10
"""Tenths of a score. They are whole, so that sums are exact in any order."""


def units_of(spec: AdmissionSpec, told: F32) -> U16:
    """What a step counts for keys without a row, uint16 [n]. told: float32 [n, 2], shows and clicks, or [n, 0]."""
    if spec.score is None:
        return np.ones(len(told), np.uint16)
    shows, clicks = told[:, 0].astype(np.int64), told[:, 1].astype(np.int64)
    units = (shows - clicks) * SHOW_UNITS + clicks * CLICK_UNITS
    counted: U16 = np.minimum(units, MOST_SEEN).astype(np.uint16)
    return counted


def rule(spec: AdmissionSpec) -> tuple[int, np.uint64]:
    """`after` and `bound` as `hetero.kernels.admission` takes them."""
    if spec.score is not None:
        return MOST_SEEN + 1, np.uint64(0)
    if spec.probability >= 1.0:
        return spec.after, np.uint64(0)
    return 0, np.uint64(int(spec.probability * 2.0**64))


def seen_and_day(word: int) -> tuple[int, int]:
    """Steps that saw a key, and the day of the last modulo 64, from its word."""
    return word & MOST_SEEN, word >> int(_SEEN_BITS)


class WaitingKeys:
    """The keys of one group on one server that wait for a row."""

    def __init__(self, spec: AdmissionSpec, *, seeds: U64, shift: np.uint64) -> None:
        self._spec = spec
        self._forget_days = spec.forget_days
        self._after, self._bound = rule(spec)
        self._seeds = seeds
        self._words = KeyWords(seeds=seeds, shift=shift)

    def __len__(self) -> int:
        return len(self._words)

    @property
    def memory_bytes(self) -> int:
        return self._words.memory_bytes

    def seen(self, keys: KeySet) -> U16:
        """Steps that saw each key so far, uint16 [n]; 0 for unknown ones, and for those with a row."""
        return np.asarray(self._words.words(keys) & _SEEN)

    def admitted(self, keys: KeySet) -> np.ndarray:
        """Which of unique keys without a row get one in the step that sees them now, bool [n]."""
        out = np.empty(len(keys), np.bool_)
        admitted_kernel(keys.tables, keys.keys, self.seen(keys), self._seeds, self._after, self._bound, out)
        return out

    def count_step(self, keys: KeySet, told: F32, *, day: int) -> None:
        """A step has seen unique keys that have no row. told: shows and clicks, float32 [n, 2], or [n, 0]."""
        self.put(keys, np.minimum(self.seen(keys) + units_of(self._spec, told), _SEEN), day=day)

    def ripe(self) -> tuple[KeySet, U16]:
        """Keys that get a row by their score when a day begins, and the units they have."""
        keys, words = self._words.entries()
        if self._spec.score is None:
            return keys[:0], words[:0]
        units = words & _SEEN
        enough = units >= self._spec.score * CLICK_UNITS
        return keys[enough], units[enough]

    def put(self, keys: KeySet, seen: U16, *, day: int) -> None:
        """Let unique keys have been seen so often (at least once), last on a day."""
        self._words.put(keys, (seen | np.uint16(day % (MOST_DAYS + 1)) << _SEEN_BITS).astype(np.uint16))

    def remove(self, keys: KeySet) -> None:
        """Forget unique keys, those that are here: they have rows now."""
        self._words.remove(keys)

    def forget(self, day: int) -> KeySet:
        """Forget keys that were not seen for too many days when `day` begins; which."""
        if self._forget_days is None:
            return KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64))
        keys, words = self._words.entries()
        age = (day - (words >> _SEEN_BITS).astype(np.int64)) % (MOST_DAYS + 1)
        old = age > self._forget_days
        gone = keys[old]
        self._words.remove(gone)
        return gone

    def entries(self) -> tuple[KeySet, U16]:
        """All keys and their words, for a snapshot."""
        return self._words.entries()

    def load(self, keys: KeySet, words: U16) -> None:
        """Take entries of a snapshot."""
        self._words.put(keys, words)
