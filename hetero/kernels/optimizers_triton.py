"""Row optimizers on CUDA devices: gather, update and scatter of a row in one pass, by a Triton kernel.

The contract is `hetero.optim.torch_path.update_at_`: weights float32 [slots, E], state float32 [slots, S], distinct
indices int32 [n], gradients float32 [n, E]; rows whose gradient is not finite stay as they are. Operations are single
IEEE ones, without fused multiply-add, and the mean of row-wise Adagrad goes by the fixed tree.

A program takes whole rows, so that a row's gradient is judged before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hetero.kernels.optimizers import LARGEST_GRADIENT

_BLOCK_FLOATS = 2048
"""Of one program: rows times padded width."""


def update_at(
    kind: int, hyper: Sequence[float], weights: Tensor, state: Tensor, index: Tensor, gradients: Tensor
) -> Tensor:
    """See the module's docstring. kind, hyper: as `hetero.kernels.optimizers` has them. Returns rejected, bool [n]."""
    rows, dim = gradients.shape
    rejected = torch.empty(rows, dtype=torch.int8, device=gradients.device)
    if rows:
        padded = triton.next_power_of_2(dim)
        block = max(1, _BLOCK_FLOATS // padded)
        _update_kernel[(triton.cdiv(rows, block),)](
            weights,
            state,
            index.to(torch.int32),
            gradients.contiguous(),
            rejected,
            rows,
            *hyper,
            kind=kind,
            dim=dim,
            width=state.shape[1],
            padded=padded,
            levels=padded.bit_length() - 1,
            block=block,
            penalized=hyper[7] != 0.0,
            largest=LARGEST_GRADIENT,
            enable_fp_fusion=False,
        )
    return rejected.bool()


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _update_kernel(
    weights: Any,
    state: Any,
    index: Any,
    gradients: Any,
    rejected: Any,
    rows: Any,
    lr: Any,
    eps: Any,
    beta1: Any,
    beta2: Any,
    rest1: Any,
    rest2: Any,
    l1: Any,
    l2: Any,
    beta: Any,
    kind: tl.constexpr,
    dim: tl.constexpr,
    width: tl.constexpr,
    padded: tl.constexpr,
    levels: tl.constexpr,
    block: tl.constexpr,
    penalized: tl.constexpr,
    largest: tl.constexpr,
) -> None:
    """`block` gradients, each to its row. kind: SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM, FTRL, from 0."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < rows
    slot = tl.load(index + at, mask=inside, other=0).to(tl.int64)
    column = tl.arange(0, padded)
    cells = inside[:, None] & (column < dim)[None, :]
    g = tl.load(gradients + at[:, None] * dim + column[None, :], mask=cells, other=0.0)
    bad = tl.max(tl.where(tl.abs(g) < largest, 0, 1), axis=1)
    tl.store(rejected + at, bad.to(tl.int8), mask=inside)
    written = cells & (bad == 0)[:, None]
    at_weight = weights + slot[:, None] * dim + column[None, :]
    at_state = state + slot[:, None] * width + column[None, :]
    w = tl.load(at_weight, mask=written, other=0.0)
    if penalized and kind != 4:
        g = g + l2 * w
    if kind == 0:
        tl.store(at_weight, w - lr * g, mask=written)
    elif kind == 1:
        total = tl.load(at_state, mask=written, other=1.0) + g * g
        tl.store(at_state, total, mask=written)
        tl.store(at_weight, w - tl.div_rn(lr * g, tl.sqrt_rn(total) + eps), mask=written)
    elif kind == 2:
        good = inside & (bad == 0)
        sums = tl.where(cells, g * g, 0.0)
        for level in tl.static_range(levels):  # upper half to lower half, as `tree_sum` of the CPU's kernel
            sums = tl.sum(tl.reshape(sums, [block, 2, padded >> (level + 1)]), axis=1)
        mean = tl.div_rn(tl.reshape(sums, [block]), tl.full([block], dim, tl.float32))
        total = tl.load(state + slot, mask=good, other=1.0) + mean
        tl.store(state + slot, total, mask=good)
        below = (tl.sqrt_rn(total) + eps)[:, None] + tl.zeros([block, padded], tl.float32)
        tl.store(at_weight, w - tl.div_rn(lr * g, below), mask=written)
    elif kind == 3:
        good = inside & (bad == 0)
        at_power = state + slot * width + 2 * dim
        power1 = tl.load(at_power, mask=good, other=0.0) * beta1
        power2 = tl.load(at_power + 1, mask=good, other=0.0) * beta2
        first = beta1 * tl.load(at_state, mask=written, other=0.0) + rest1 * g
        second = beta2 * tl.load(at_state + dim, mask=written, other=0.0) + rest2 * (g * g)
        tl.store(at_power, power1, mask=good)
        tl.store(at_power + 1, power2, mask=good)
        tl.store(at_state, first, mask=written)
        tl.store(at_state + dim, second, mask=written)
        whole = tl.zeros([block, padded], tl.float32)
        below = tl.sqrt_rn(tl.div_rn(second, (1.0 - power2)[:, None] + whole)) + eps
        tl.store(at_weight, w - tl.div_rn(lr * tl.div_rn(first, (1.0 - power1)[:, None] + whole), below), mask=written)
    else:
        z = tl.load(at_state, mask=written, other=0.0)
        n = tl.load(at_state + dim, mask=written, other=0.0)
        more = n + g * g
        root = tl.sqrt_rn(more)
        step = tl.zeros([block, padded], tl.float32) + lr
        z = z + (g - tl.div_rn(root - tl.sqrt_rn(n), step) * w)
        shrunk = tl.where(z > 0, z - l1, z + l1)
        solved = tl.div_rn(-shrunk, tl.div_rn(beta + root, step) + l2)
        tl.store(at_state, z, mask=written)
        tl.store(at_state + dim, more, mask=written)
        tl.store(at_weight, tl.where(tl.abs(z) <= l1, 0.0, solved), mask=written)
