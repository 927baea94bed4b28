"""`hetero.towers.relu_layers` in bf16 on the CPU, as one autograd function: products by torch, the rest in few passes.

As torch's autocast of the same layers, but that gradients of biases and the last layer of one output are summed in
float32. What it leaves out: a mask, a sum and copies to and from float32 for every layer's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.autograd.function import once_differentiable

from hetero.kernels.dense import BLOCK_ROWS
from hetero.kernels.dense_bf16 import dot_kernel, last_backward_kernel, relu_backward_kernel
from hetero.kernels.rows import over_rows
from hetero.kernels.vectors import LANES


def fits_bf16(parameters: Sequence[Tensor], *, single_last: bool) -> bool:
    """Whether layers (as `relu_layers_bf16` takes them) have sizes that the kernels take."""
    hidden = parameters[:-2:2] if single_last else parameters[::2]
    return all(len(weight) % LANES == 0 for weight in hidden)


def relu_layers_bf16(x: Tensor, parameters: Sequence[Tensor], *, single_last: bool) -> Tensor:
    """x float32 [B, inputs] -> bf16 [B, outputs], or float32 [B, 1] with `single_last`, on the CPU.

    parameters: weight [outputs, inputs] and bias [outputs] of each layer in turn, float32, outputs multiples of 8 but
    for a single last one. single_last: the last layer has one output and no ReLU.
    """
    apply: Callable[..., Tensor] = _ReluLayersBf16.apply
    return apply(x, single_last, *parameters)


class _ReluLayersBf16(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, single_last: bool, *parameters: Tensor) -> Tensor:
        layers = [*zip(parameters[::2], parameters[1::2], strict=True)]
        hidden = layers[:-1] if single_last else layers
        weights = [weight.bfloat16() for weight, _ in hidden]
        values = [x.bfloat16()]
        for weight, (_, bias) in zip(weights, hidden, strict=True):
            values.append(functional.linear(values[-1], weight, bias.bfloat16()).relu_())
        ctx.single_last, ctx.layers = single_last, len(hidden)
        if not single_last:
            ctx.save_for_backward(*weights, *values)
            return values[-1]
        last, shift = layers[-1]
        ctx.save_for_backward(*weights, *values, last)
        return (_dot(values[-1], last[0]) + shift).unsqueeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        weights, values = saved[: ctx.layers], saved[ctx.layers : 2 * ctx.layers + 1]
        found: list[Tensor] = []
        if ctx.single_last:
            masked, sums, last = _last_backward(grad.float().reshape(-1).contiguous(), saved[-1], values[-1])
            found = [last, grad.float().sum(0)]
        else:
            masked = grad.to(torch.bfloat16, memory_format=torch.contiguous_format, copy=True)
            sums = _relu_backward(masked, values[-1])
        for layer in reversed(range(ctx.layers)):
            found = [(masked.t() @ values[layer]).float(), sums, *found]
            if layer == 0 and not ctx.needs_input_grad[0]:
                break
            masked = masked @ weights[layer]
            if layer == 0:
                return masked.float(), None, *found
            sums = _relu_backward(masked, values[layer])
        return None, None, *found


def _dot(values: Tensor, weights: Tensor) -> Tensor:
    rows, columns = values.shape
    threads = torch.get_num_threads()
    out, factors = torch.empty(rows + LANES), weights.contiguous()
    places = values.data_ptr(), factors.data_ptr(), out.data_ptr()
    over_rows(lambda start, stop: dot_kernel(*places, start, stop, columns), rows, threads=threads, block=BLOCK_ROWS)
    return out[:rows]


def _relu_backward(given: Tensor, values: Tensor) -> Tensor:
    """Make `given` the gradient before the ReLU; its sum over rows."""
    rows, columns = values.shape
    sums = _block_sums(rows, columns)
    places = given.data_ptr(), values.data_ptr(), sums.data_ptr()
    over_rows(
        lambda start, stop: relu_backward_kernel(*places, start, stop, columns),
        rows,
        threads=torch.get_num_threads(),
        block=BLOCK_ROWS,
    )
    return _total(sums)


def _last_backward(given: Tensor, weight: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before the ReLU, its sum over rows, and the gradient of the last weights [1, H]."""
    rows, columns = values.shape
    masked, factors = torch.empty_like(values), weight.contiguous()
    sums, weight_sums = _block_sums(rows, columns), _block_sums(rows, columns)
    sources = given.data_ptr(), factors.data_ptr(), values.data_ptr()
    results = masked.data_ptr(), sums.data_ptr(), weight_sums.data_ptr()
    over_rows(
        lambda start, stop: last_backward_kernel(*sources, *results, start, stop, columns),
        rows,
        threads=torch.get_num_threads(),
        block=BLOCK_ROWS,
    )
    return masked, _total(sums), _total(weight_sums).unsqueeze(0)


def _block_sums(rows: int, columns: int) -> Tensor:
    return torch.zeros(-(-rows // BLOCK_ROWS), columns)


def _total(block_sums: Tensor) -> Tensor:
    """Sum over blocks in order."""
    return torch.from_numpy(block_sums.numpy().sum(0))
