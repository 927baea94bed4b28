"""What policies must do, on dictionaries, one key at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hetero.embedding.answers import Create
from hetero.records import F32, GroupSpec, KeySet
from tests.support.row_oracle import RowOracle

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SALT = 0xA0761D6478BD642F


def mix(value: int) -> int:
    """SplitMix64's finalizer."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


@dataclass
class Counted:
    """What a row counts, as of the day it was seen last."""

    shows: np.float32
    clicks: np.float32
    seen: int
    came: int


@dataclass
class PolicyOracle:
    """One group of one table. rows: weights and state by key. waiting: (steps that saw it, day of the last) by key."""

    group: GroupSpec
    buckets: int
    rows: RowOracle = field(init=False)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    counted: dict[int, Counted] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    day: int = 0

    def __post_init__(self) -> None:
        self.rows = RowOracle(self.group)
        self.table = self.group.tables[0].index
        self.seed = mix(self.group.tables[0].seed)

    def has_row(self, key: int) -> bool:
        return (self.table, key) in self.rows.rows

    def reads(self, key: int) -> bool:
        """Whether a key has a row in the step that sees it now; it is made."""
        if self.has_row(key):
            return True
        seen = self.waiting.get(key, (0, 0))[0] + 1
        spec = self.group.admission
        if spec is not None and spec.probability < 1:
            hashed = mix((mix(key ^ self.seed) + seen * _GOLDEN & _MASK) ^ _SALT)
            if hashed >= int(spec.probability * 2.0**64):
                return False
        elif spec is not None and (spec.score is not None or seen < spec.after):
            return False
        self.waiting.pop(key, None)
        return True

    def learns(self, key: int, *, shows: int, clicks: int) -> bool:
        """A step is over: count it. Whether the key's gradient is applied."""
        if not self.has_row(key):
            units = 1
            if self.group.admission is not None and self.group.admission.score is not None:
                units = shows - clicks + 10 * clicks
            self.waiting[key] = (min(self.waiting.get(key, (0, 0))[0] + units, 1023), self.day)
            return False
        if self.group.eviction is not None:
            old = self.counted.get(key)
            if old is None:
                old = self.counted[key] = Counted(np.float32(0), np.float32(0), self.day, self.day)
            factor = self._decay(self.day - old.seen)
            old.shows = old.shows * factor + np.float32(shows)
            old.clicks = old.clicks * factor + np.float32(clicks)
            old.seen = self.day
        return True

    def begin_day(self, day: int) -> None:
        self.day = day
        admission = self.group.admission
        if admission is not None and admission.forget_days is not None:
            old = [key for key, (_, seen) in self.waiting.items() if day - seen > admission.forget_days]
            for key in old:
                del self.waiting[key]
            self._note("forgotten", len(old))
        self._evict(day)
        self._widen(day)

    def _widen(self, day: int) -> None:
        admission = self.group.admission
        if admission is None or admission.score is None:
            return
        for key, (units, _) in list(self.waiting.items()):
            if units >= admission.score * 10:
                del self.waiting[key]
                own = KeySet(np.array([self.table], np.uint16), np.array([key], np.uint64))
                self.rows.pull(own, create=Create.YES)
                self.counted[key] = Counted(np.float32(units), np.float32(0), day, day)

    def _evict(self, day: int) -> None:
        spec = self.group.eviction
        if spec is None:
            return
        scores: dict[int, np.float32] = {}
        for key, counted in list(self.counted.items()):
            scores[key] = score = self.score(counted)
            if spec.expire_days is not None and day - counted.seen > spec.expire_days:
                self._drop(key, "expired")
            elif spec.min_score is not None and score < np.float32(spec.min_score):
                self._drop(key, "low_score")
        if spec.capacity is not None:
            by_bucket: dict[int, list[int]] = {}
            for key in self.counted:
                hashed = mix(key ^ self.seed)
                by_bucket.setdefault(hashed >> (65 - self.buckets.bit_length()), []).append(key)
            for keys in by_bucket.values():
                keys.sort(key=lambda key: (-scores[key], -self.counted[key].seen, mix(key ^ self.seed)))
                for key in keys[spec.capacity // self.buckets :]:
                    self._drop(key, "over_capacity")

    def score(self, counted: Counted) -> np.float32:
        spec = self.group.eviction
        assert spec is not None
        factor = self._decay(self.day - counted.seen)
        shows, clicks = counted.shows * factor, counted.clicks * factor
        return np.float32((shows - clicks) * np.float32(spec.show_weight) + clicks * np.float32(spec.click_weight))

    def row(self, key: int) -> F32:
        """The whole row, statistics included."""
        row = self.rows.rows[self.table, key]
        if self.group.eviction is None:
            return row
        counted = self.counted[key]
        return np.concatenate(
            [row, np.array([counted.shows, counted.clicks, counted.seen + 1, counted.came + 1], "f4")]
        )

    def _decay(self, days: int) -> np.float32:
        assert self.group.eviction is not None
        factor = np.float32(1)
        for _ in range(days):
            factor = factor * np.float32(self.group.eviction.decay)
        return factor

    def _drop(self, key: int, reason: str) -> None:
        del self.rows.rows[self.table, key]
        del self.counted[key]
        self._note(reason, 1)

    def _note(self, reason: str, rows: int) -> None:
        if rows:
            self.gone[reason] = self.gone.get(reason, 0) + rows
