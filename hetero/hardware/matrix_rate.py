"""How fast a device multiplies matrices: what a model's rate is held against."""

from __future__ import annotations

import torch

from hetero.hardware.timing import median_seconds

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
    repeats = _REPEATS.get(device.type, _REPEATS["cpu"])
    return 2.0 * edge**3 / median_seconds(lambda: left @ right, device=device, least=repeats, most=repeats)
