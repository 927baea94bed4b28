"""Linear layers with ReLU as one autograd function on the CPU: matrix products by torch, the rest in few passes.

    y[0] = x;   y[l + 1] = relu(y[l] @ w[l].T + b[l]);   a last layer of one output may lack the ReLU

Equal to `nn.Sequential` of `nn.Linear` and `nn.ReLU` but for rounding. What it leaves out: the copy of the bias before
each product, the ReLU's second output, and in the backward pass one pass for the mask, one for the bias's sum and
several for a last layer of one output. Rows of inputs, weights and gradients begin on cache lines
(`hetero.kernels.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hetero.kernels.dense import (
    BLOCK_ROWS,
    bias_relu_kernel,
    from_thin,
    last_backward_kernel,
    relu_backward_kernel,
    thin_backward_kernel,
    thin_forward_kernel,
    thin_weights,
)
from hetero.kernels.rows import LINE_FLOATS, line_up, over_rows
from hetero.kernels.vectors import LANES

_THIN_INPUTS = 32


def relu_layers(x: Tensor, parameters: Sequence[Tensor], *, single_last: bool) -> Tensor:
    """x float32 [B, inputs] -> [B, outputs], on the CPU.

    parameters: weight [outputs, inputs] and bias [outputs] of each layer in turn, float32. single_last: the last layer
    has one output and no ReLU.
    """
    apply: Callable[..., Tensor] = _ReluLayers.apply
    return apply(x, single_last, *parameters)


def aligned_rows(rows: int, columns: int) -> Tensor:
    """Float32 [rows, columns], not filled, on the CPU, each row on a cache line."""
    return torch.empty(rows, line_up(columns))[:, :columns]


class _ReluLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, single_last: bool, *parameters: Tensor) -> Tensor:
        layers = [*zip(parameters[::2], parameters[1::2], strict=True)]
        values = [_on_lines(x)]
        for weight, bias in layers[:-1] if single_last else layers:
            values.append(_layer(values[-1], weight, bias))
        ctx.single_last = single_last
        ctx.save_for_backward(*parameters, *values)
        if not single_last:
            return values[-1]
        weight, bias = layers[-1]
        return (torch.mv(values[-1], weight[0]) + bias).unsqueeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.needs_input_grad) - 2
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        weights, values = saved[0:count:2], saved[count:]
        found: list[Tensor] = []
        layer = len(weights) - 1
        if ctx.single_last:
            masked, sums, last = _last_backward(grad.reshape(-1), weights[-1], values[-1])
            found = [last, grad.sum(0)]
            layer -= 1
        elif layer == 0 and _is_thin(weights[0]) and not ctx.needs_input_grad[0]:
            return None, None, *_thin_backward(grad, values[1], values[0])
        else:
            masked, sums = _relu_backward(grad, values[-1])
        while True:
            found = [torch.mm(masked.t(), values[layer]), sums, *found]
            if layer == 0 and not ctx.needs_input_grad[0]:
                return None, None, *found
            below = aligned_rows(len(masked), weights[layer].shape[1])
            torch.mm(masked, _on_lines(weights[layer]), out=below)
            if layer == 0:
                return below, None, *found
            layer -= 1
            if layer == 0 and _is_thin(weights[0]) and not ctx.needs_input_grad[0]:
                return None, None, *_thin_backward(below, values[1], values[0]), *found
            masked, sums = _relu_backward(below, values[layer + 1], in_place=True)


def _is_thin(weight: Tensor) -> bool:
    """Whether a first layer goes through the thin kernels."""
    return weight.shape[1] <= _THIN_INPUTS and weight.shape[0] % LANES == 0


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x @ weight.T + bias)."""
    out = aligned_rows(len(x), len(weight))
    columns, threads = out.shape[1], torch.get_num_threads()
    if not _is_thin(weight):
        torch.mm(x, _on_lines(weight).t(), out=out)
        place = out.data_ptr(), bias.data_ptr()
        over_rows(
            lambda start, stop: bias_relu_kernel(*place, start, stop, columns, out.stride(0)), len(x), threads=threads
        )
        return out
    turned = torch.from_numpy(thin_weights(weight.detach().numpy()))
    source = x.data_ptr(), x.stride(0), x.shape[1]
    result = turned.data_ptr(), bias.data_ptr(), out.data_ptr(), out.stride(0)
    over_rows(lambda start, stop: thin_forward_kernel(*source, *result, start, stop, columns), len(x), threads=threads)
    return out


def _thin_backward(given: Tensor, values: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a thin first layer's weight and bias."""
    if given.stride(1) != 1:
        given = given.contiguous()
    inputs, columns = x.shape[1], values.shape[1]
    sums = _block_sums(values)
    weight_sums = torch.zeros(len(sums), columns // LANES, inputs, LANES)
    sources = given.data_ptr(), given.stride(0), values.data_ptr(), values.stride(0), x.data_ptr(), x.stride(0), inputs
    results = sums.data_ptr(), weight_sums.data_ptr()
    over_rows(
        lambda start, stop: thin_backward_kernel(*sources, *results, start, stop, columns),
        len(given),
        threads=torch.get_num_threads(),
        block=BLOCK_ROWS,
    )
    return torch.from_numpy(from_thin(_total(weight_sums).numpy())), _total(sums)


def _on_lines(matrix: Tensor) -> Tensor:
    """The matrix with rows that begin on cache lines: itself, or a copy."""
    if matrix.stride(1) == 1 and matrix.stride(0) % LINE_FLOATS == 0:
        return matrix
    return aligned_rows(*matrix.shape).copy_(matrix)


def _relu_backward(given: Tensor, values: Tensor, *, in_place: bool = False) -> tuple[Tensor, Tensor]:
    """The gradient before the ReLU and its sum over rows."""
    if given.stride(1) != 1:
        given = given.contiguous()
    masked = given if in_place else aligned_rows(*given.shape)
    sums = _block_sums(given)
    addresses = given.data_ptr(), given.stride(0), values.data_ptr(), values.stride(0)
    results = masked.data_ptr(), masked.stride(0), sums.data_ptr()
    columns = given.shape[1]
    over_rows(
        lambda start, stop: relu_backward_kernel(*addresses, *results, start, stop, columns),
        len(given),
        threads=torch.get_num_threads(),
        block=BLOCK_ROWS,
    )
    return masked, _total(sums)


def _last_backward(given: Tensor, weight: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before the ReLU, its sum over rows, and the gradient of the last weights [1, H]."""
    given, factors = given.contiguous(), weight.contiguous()
    masked = aligned_rows(*values.shape)
    sums, weight_sums = _block_sums(values), _block_sums(values)
    addresses = given.data_ptr(), factors.data_ptr(), values.data_ptr(), values.stride(0)
    results = masked.data_ptr(), masked.stride(0), sums.data_ptr(), weight_sums.data_ptr()
    columns = values.shape[1]
    over_rows(
        lambda start, stop: last_backward_kernel(*addresses, *results, start, stop, columns),
        len(given),
        threads=torch.get_num_threads(),
        block=BLOCK_ROWS,
    )
    return masked, _total(sums), _total(weight_sums).unsqueeze(0)


def _block_sums(matrix: Tensor) -> Tensor:
    return torch.zeros(-(-len(matrix) // BLOCK_ROWS), matrix.shape[1])


def _total(block_sums: Tensor) -> Tensor:
    """Sum over blocks in order."""
    return torch.from_numpy(block_sums.numpy().sum(0))
