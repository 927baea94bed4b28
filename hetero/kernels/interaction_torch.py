"""Dot products of unlike fields on any torch device: the contract of `hetero.kernels.interaction` in tensor operations.

Torch differentiates them; results agree with the numba kernels to 1e-6.
"""

from __future__ import annotations

import torch
from torch import Tensor


def forward(first: Tensor | None, block: Tensor, *, lower: Tensor) -> Tensor:
    """first [B, E] or None, block [B, F or F - 1, E] -> [B, columns]. lower: `lower_triangle(F)` on their device."""
    fields = block if first is None else torch.cat([first.unsqueeze(1), block], 1)
    products = torch.bmm(fields, fields.transpose(1, 2)).flatten(1).index_select(1, lower)
    return products if first is None else torch.cat([first, products], 1)


def lower_triangle(fields: int) -> Tensor:
    """Places of the strictly lower triangle of a flat [F, F] matrix, row by row: int64 [F * (F - 1) / 2]."""
    places: Tensor = torch.tril_indices(fields, fields, offset=-1)
    return places[0] * fields + places[1]
