"""Seconds of short work, as rates are measured: the median of some calls, after one that does not count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

_CPU = torch.device("cpu")


def median_seconds(
    work: Callable[[], object], *, device: torch.device = _CPU, least: int = 5, most: int = 5, lasting_s: float = 0.0
) -> float:
    """Seconds of one call of work, above 0. device: what it leaves to this device is waited for.

    It is called `least` times, and while all of that took less than lasting_s up to `most` times.
    """
    times: list[float] = []
    _timed(work, device)
    while len(times) < least or (len(times) < most and sum(times) < lasting_s):
        times.append(_timed(work, device))
    return statistics.median(times)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return max(time.perf_counter() - began, 1e-9)
