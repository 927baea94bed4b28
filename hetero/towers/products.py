"""Matrix products of towers on the CPU, by the library that is better at them there."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hetero.hardware.blas import numpy_multiplies_better
from hetero.kernels.rows import over_rows

_BLOCK_ROWS = 32
"""Parts are whole panels of a library's inner kernel."""


def multiply(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
    """out [n, m] = left [n, k] @ right [k, m]; float32, without gradient, on the CPU; returns `out`.

    Uses as many threads as torch is set to.
    """
    if not numpy_multiplies_better():
        return torch.mm(left, right, out=out)
    first, second, result = left.numpy(), right.numpy(), out.numpy()
    over_rows(
        lambda start, stop: np.matmul(first[start:stop], second, out=result[start:stop]),
        len(first),
        threads=torch.get_num_threads(),
        block=_BLOCK_ROWS,
    )
    return out
