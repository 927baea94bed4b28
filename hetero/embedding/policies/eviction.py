"""Which rows go when a day begins: those not seen for long, of low score, or beyond a table's capacity.

A verdict is a function of the row's statistics and of the day alone; for the capacity, of the rows of the same table
and bucket too. Buckets belong to one server each, so the number of servers changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetero.kernels.mix import mix64_reference
from hetero.kernels.statistics import OVER_CAPACITY, decay_powers, judge_kernel
from hetero.optim.definition import STATISTICS
from hetero.records import F32, U8, U64, EvictionSpec, KeySet


@dataclass(frozen=True, slots=True)
class Judged:
    """keys with their verdicts uint8 [n] (`hetero.kernels.statistics`) and scores float32 [n]."""

    keys: KeySet
    verdicts: U8
    scores: F32


class Judge:
    """Judges rows of one group. seeds: mixed ones by table index. shift: leaves the bucket of a hash."""

    def __init__(self, spec: EvictionSpec, *, width: int, seeds: U64, shift: np.uint64) -> None:
        self._spec = spec
        self._first = width - len(STATISTICS)
        self._seeds, self._shift = seeds, shift
        self.powers = decay_powers(spec.decay)

    @property
    def first(self) -> int:
        """Column of a row's first statistic."""
        return self._first

    def judge(self, keys: KeySet, rows: F32, *, day: int) -> Judged:
        """Verdicts on rows float32 [n, W] when `day` begins, but for the capacity."""
        spec = self._spec
        scores, verdicts = np.empty(len(rows), np.float32), np.empty(len(rows), np.uint8)
        judge_kernel(
            rows,
            self._first,
            day,
            self.powers,
            np.float32(spec.show_weight),
            np.float32(spec.click_weight),
            np.float32(-1 if spec.min_score is None else spec.min_score),
            -1 if spec.expire_days is None else spec.expire_days,
            scores,
            verdicts,
        )
        return Judged(keys, verdicts, scores)

    def doomed(self, parts: Iterator[tuple[KeySet, F32]], *, day: int) -> Iterator[Judged]:
        """Of all rows of a store, those that go when `day` begins. With a capacity, 23 bytes a row are needed."""
        kept: list[tuple[KeySet, F32, F32]] = []
        gone: list[Judged] = []
        for keys, rows in parts:
            judged = self.judge(keys, rows, day=day)
            at = np.flatnonzero(judged.verdicts)
            if len(at):
                gone.append(Judged(keys[at], judged.verdicts[at], judged.scores[at]))
            if self._spec.capacity is not None:
                stay = np.flatnonzero(judged.verdicts == 0)
                kept.append((keys[stay], judged.scores[stay], rows[stay, self._first + 2].copy()))
        yield from gone
        if kept:
            yield self._beyond_capacity(kept)

    def _beyond_capacity(self, kept: list[tuple[KeySet, F32, F32]]) -> Judged:
        """Rows beyond their bucket's share: of the lowest score; of those, seen longest ago; of those, by hash."""
        assert self._spec.capacity is not None
        keys = KeySet(np.concatenate([k.tables for k, _, _ in kept]), np.concatenate([k.keys for k, _, _ in kept]))
        scores, seen = np.concatenate([s for _, s, _ in kept]), np.concatenate([s for _, _, s in kept])
        hashes = mix64_reference(keys.keys ^ self._seeds[keys.tables])
        bucket = (hashes >> self._shift).astype(np.int64)
        buckets = 1 << (64 - int(self._shift))
        place = keys.tables.astype(np.int64) * buckets + bucket
        order = np.lexsort((hashes, -seen, -scores, place))
        starts = np.flatnonzero(np.r_[True, place[order][1:] != place[order][:-1]])
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
        over = order[rank >= self._spec.capacity // buckets]
        verdicts = np.full(len(over), OVER_CAPACITY, np.uint8)
        return Judged(keys[over], verdicts, scores[over])
