"""How fast a device multiplies matrices: what a model's rate is held against."""

from __future__ import annotations

import statistics
import time

import torch

_SIZE = {"cpu": 768, "cuda": 8192}
_REPEATS = {"cpu": 5, "cuda": 20}


def matrix_rate(device: torch.device, dtype: torch.dtype, *, size: int | None = None) -> float:
    """FLOP/s of square products of random matrices, the median of a few; 2 * size^3 operations each.

    size: default, 768 on a CPU and 8192 on a device, at which both are near their best.
    """
    edge = size or _SIZE.get(device.type, _SIZE["cpu"])
    generator = torch.Generator().manual_seed(0)
    left = torch.randn((edge, edge), generator=generator).to(device=device, dtype=dtype)
    right = torch.randn((edge, edge), generator=generator).to(device=device, dtype=dtype)
    times = []
    for _ in range(1 + _REPEATS.get(device.type, _REPEATS["cpu"])):
        _wait(device)
        started = time.perf_counter()
        left @ right
        _wait(device)
        times.append(time.perf_counter() - started)
    return 2.0 * edge**3 / statistics.median(times[1:])


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
