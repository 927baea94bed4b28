"""What was dropped and why: counted by table, and told of a key until it comes again or REMEMBER_DAYS have passed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.embedding.key_words import KeyWords
from hetero.kernels.statistics import EXPIRED, LOW_SCORE, OVER_CAPACITY
from hetero.records import U16, U64, KeySet

REASONS = {EXPIRED: "expired", LOW_SCORE: "low_score", OVER_CAPACITY: "over_capacity"}
REMEMBER_DAYS = 30

_DAY_BITS = np.uint16(14)
_DAY = np.uint16((1 << 14) - 1)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Why and on which day a row was dropped."""

    reason: str
    day: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DayDrops:
    """Rows of a table that went when a day began, or, for the reason `forgotten`, keys that waited for a row."""

    day: int
    table: str
    reason: str
    rows: int


class DroppedKeys:
    """The keys of one group on one server whose rows were dropped. A word is the verdict << 14 | the day's low bits."""

    def __init__(self, *, seeds: U64, shift: np.uint64) -> None:
        self._words = KeyWords(seeds=seeds, shift=shift)

    @property
    def memory_bytes(self) -> int:
        return self._words.memory_bytes

    def add(self, keys: KeySet, verdicts: np.ndarray, *, day: int) -> None:
        """Note that unique keys have lost their rows on a day."""
        self._words.put(keys, (verdicts.astype(np.uint16) << _DAY_BITS | np.uint16(day & int(_DAY))).astype(np.uint16))

    def remove(self, keys: KeySet) -> None:
        """They have rows again."""
        if len(self._words):
            self._words.remove(keys)

    def forget(self, day: int) -> None:
        """Forget those of long ago when `day` begins."""
        keys, words = self._words.entries()
        old = ((day - (words & _DAY).astype(np.int64)) & int(_DAY)) > REMEMBER_DAYS
        self._words.remove(keys[old])

    def entries(self) -> tuple[KeySet, U16]:
        """All keys and their words, for a snapshot."""
        return self._words.entries()

    def load(self, keys: KeySet, words: U16) -> None:
        """Take entries of a snapshot."""
        self._words.put(keys, words)


def told(word: int) -> Dropped:
    """What a word says. Days beyond 16383 are told modulo 16384."""
    return Dropped(REASONS[word >> int(_DAY_BITS)], word & int(_DAY))
