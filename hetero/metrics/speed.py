"""The speed of a run as a product: one tower's speed while it computes x towers x efficiency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedReport:
    """samples_per_s = single_tower_samples_per_s x towers x efficiency.

    single_tower_samples_per_s: rows a second of one tower's time not spent waiting. efficiency: share of the towers'
    time not spent waiting, [0, 1]. rest: share of the towers' time spent waiting, by role waited for; with efficiency
    it adds up to 1.
    """

    samples_per_s: float
    single_tower_samples_per_s: float
    towers: int
    efficiency: float
    rest: Mapping[str, float]

    @staticmethod
    def of(*, samples: int, seconds: float, towers: int, waits: Mapping[str, float]) -> SpeedReport | None:
        """samples: rows of all towers. seconds: of training. waits: seconds waited, of all towers, by role waited for.

        None when no time passed.
        """
        total = seconds * towers
        if total <= 0:
            return None
        rest = {role: waited / total for role, waited in waits.items() if waited > 0}
        worked = max(total - sum(waits.values()), 1e-9)
        return SpeedReport(
            samples_per_s=samples / seconds,
            single_tower_samples_per_s=samples / worked,
            towers=towers,
            efficiency=worked / total,
            rest=rest,
        )

    def to_dict(self) -> dict[str, object]:
        """The record as a summary holds it."""
        return asdict(self)

    def sentence(self) -> str:
        """`14,000 rows/s = 15,000 (one tower at work) x 1 tower x 0.93; the rest: waiting for reader 5%, server 2%`."""
        what = "tower" if self.towers == 1 else "towers"
        product = (
            f"{self.samples_per_s:,.0f} rows/s = {self.single_tower_samples_per_s:,.0f} (one tower at work)"
            f" x {self.towers} {what} x {self.efficiency:.2f}"
        )
        shares = sorted(self.rest.items(), key=lambda item: -item[1])
        waits = ", ".join(f"{role} {share:.1%}" for role, share in shares if share >= 0.0005)
        return f"{product}; the rest: waiting for {waits}" if waits else product
