"""What rows count of their use: shows, clicks, the day seen last and the day they came, float32 behind the state.

Shows and clicks stand as of the day the row was seen last; a row that is seen on a later day first takes the decay of
the days between. So nothing has to visit all rows when a day begins. Days are held plus 1, so that 0 is never; floats
hold whole numbers exactly up to 2^24.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.jit import inline, kernel
from hetero.records import F32, I32, U8

MOST_DAYS = 4096
KEPT, EXPIRED, LOW_SCORE, OVER_CAPACITY = range(4)


def decay_powers(decay: float) -> F32:
    """decay^n of n days, float32 [MOST_DAYS]; the last stands for all longer times."""
    powers = np.ones(MOST_DAYS, np.float32)
    for days in range(1, MOST_DAYS):
        powers[days] = powers[days - 1] * np.float32(decay)
    return powers


@inline
def _decay(powers: F32, days: Any) -> Any:
    return powers[min(max(int(days), 0), len(powers) - 1)]


@kernel
def count_uses_kernel(rows: F32, places: I32, first: int, counts: F32, day: int, powers: F32) -> None:
    """Note shows and clicks, counts float32 [n, 2], of rows[places] on a day. first: column of the shows."""
    now = np.float32(day + 1)
    for i in range(len(places)):
        at = places[i]
        seen = rows[at, first + 2]
        if seen == np.float32(0):
            rows[at, first + 3] = now
        elif seen != now:
            factor = _decay(powers, now - seen)
            rows[at, first] *= factor
            rows[at, first + 1] *= factor
        rows[at, first] += counts[i, 0]
        rows[at, first + 1] += counts[i, 1]
        rows[at, first + 2] = now


@kernel
def judge_kernel(
    rows: F32,
    first: int,
    day: int,
    powers: F32,
    show_weight: np.float32,
    click_weight: np.float32,
    min_score: np.float32,
    expire_days: int,
    scores: F32,
    verdicts: U8,
) -> None:
    """Score of every row when a day begins, and whether it goes: verdicts uint8 [n], KEPT, EXPIRED or LOW_SCORE.

    A row that was never seen, as one of a model without statistics, counts as seen on day 0, and only expires.
    min_score: -1 for none. expire_days: -1 for none.
    """
    now = np.float32(day + 1)
    for i in range(len(rows)):
        seen = rows[i, first + 2]
        factor = _decay(powers, now - seen)
        shows, clicks = rows[i, first] * factor, rows[i, first + 1] * factor
        scores[i] = (shows - clicks) * show_weight + clicks * click_weight
        verdicts[i] = np.uint8(0)
        if expire_days >= 0 and now - max(seen, np.float32(1)) > expire_days:
            verdicts[i] = np.uint8(1)
        elif seen != np.float32(0) and scores[i] < min_score:
            verdicts[i] = np.uint8(2)
