"""The dot interaction of DLRM as a module: dense vector and fields in, the top MLP's input out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hetero.kernels import interaction_torch
from hetero.kernels.interaction import Shape, backward_kernel, forward_kernel
from hetero.kernels.rows import over_rows
from hetero.towers.relu_layers import aligned_rows


class DotInteraction(nn.Module):
    """All dot products of unlike fields: block [B, F, E] -> [B, F * (F - 1) / 2].

    Order: the strictly lower triangle row by row, (1,0), (2,0), (2,1), (3,0) ... With `first` [B, E] that vector is
    field 0 and stands before the products too: -> [B, E + F * (F - 1) / 2], F counting it. float32; on the CPU rows of
    the result begin on cache lines. An exported graph holds the tensor operations.
    """

    lower: Tensor

    def __init__(self, fields: int) -> None:
        super().__init__()
        self.fields = fields
        self.register_buffer("lower", interaction_torch.lower_triangle(fields), persistent=False)

    def forward(self, block: Tensor, first: Tensor | None = None) -> Tensor:
        block, first = block.float(), None if first is None else first.float()
        if torch.compiler.is_exporting():
            return interaction_torch.forward(first, block, lower=self.lower)
        if block.device.type != "cpu":
            with torch.autocast(block.device.type, enabled=False):
                return interaction_torch.forward(first, block, lower=self.lower)
        shape = Shape(fields=self.fields, dim=block.shape[2], has_first=first is not None)
        apply: Callable[..., Tensor] = _Interaction.apply
        return apply(block, first, shape)


class _Interaction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: Tensor, first: Tensor | None, shape: Shape) -> Tensor:
        block, first = block.contiguous(), None if first is None else first.contiguous()
        out = aligned_rows(len(block), shape.columns)
        ctx.shape = shape
        ctx.save_for_backward(block, first)
        sources = _address(first), block.data_ptr(), out.data_ptr()
        sizes = shape.fields, shape.dim, out.stride(0)

        def part(start: int, stop: int) -> None:
            room = shape.room()
            forward_kernel(*sources, start, stop, *sizes, room.ctypes.data)

        over_rows(part, len(block), threads=torch.get_num_threads())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        block, first = ctx.saved_tensors
        shape: Shape = ctx.shape
        if grad.stride(1) != 1:
            grad = grad.contiguous()
        grad_block = torch.empty_like(block)
        grad_first = None if first is None else torch.empty_like(first)
        sources = _address(first), block.data_ptr(), grad.data_ptr(), _address(grad_first), grad_block.data_ptr()
        sizes = shape.fields, shape.dim, grad.stride(0)

        def part(start: int, stop: int) -> None:
            room = shape.room()
            backward_kernel(*sources, start, stop, *sizes, room.ctypes.data)

        over_rows(part, len(block), threads=torch.get_num_threads())
        return grad_block, grad_first, None


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
