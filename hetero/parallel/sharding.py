"""Data parallel and sharding by `fully_shard`: copies along `dp`, split along `shard`.

Stage 3 keeps parameters split outside a block's own computation; 2 keeps them whole from a micro-batch's forward to its
backward; both reduce gradients over `shard` after every micro-batch. 1 is as 2, and reduces them after the last
micro-batch only, which all stages do over `dp`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hetero.records.mesh import DeepPrecision, MeshSpec
from hetero.towers.transformer import Transformer

# Logits are a view where the last matrix product is one of two dimensions; nothing here changes them in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")

_HALF = {DeepPrecision.BF16: torch.bfloat16, DeepPrecision.FP16: torch.float16}


def needs_sharding(spec: MeshSpec) -> bool:
    """Whether `fully_shard` has work: ranks to share with, or half-precision copies to make."""
    return spec.data_ways > 1 or spec.precision in _HALF


def activation_dtype(precision: DeepPrecision) -> torch.dtype:
    """Of what flows between blocks and between pipeline stages."""
    if precision in _HALF:
        return _HALF[precision]
    return torch.float64 if precision is DeepPrecision.FP64 else torch.float32


def shard_part(part: Transformer, spec: MeshSpec, mesh: DeviceMesh) -> None:
    """Apply `fully_shard` in place: every block on its own, the rest together. Gradients are summed, not averaged."""
    half = _HALF.get(spec.precision)
    policy = (
        MixedPrecisionPolicy() if half is None else MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    )
    for block in part.blocks.values():
        fully_shard(block, mesh=mesh, reshard_after_forward=spec.sharding == 3, mp_policy=policy)
    fully_shard(part, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    for unit in sharded_units(part):
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)


def sharded_units(part: nn.Module) -> list[FSDPModule]:
    return [module for module in part.modules() if isinstance(module, FSDPModule)]


def prepare_micro_batch(part: nn.Module, spec: MeshSpec, *, last: bool) -> None:
    """Before a micro-batch's backward: whether gradients are reduced after it and parameters split again."""
    if isinstance(part, FSDPModule):
        reduces = last or (spec.sharding > 1 and spec.shard > 1)
        part.set_is_last_backward(reduces)
        part.set_requires_gradient_sync(reduces)
        part.set_requires_all_reduce(last)
        part.set_reshard_after_backward(last or spec.sharding == 3)


def split_again(parts: Sequence[nn.Module]) -> None:
    """Let go of whole parameters, such as those that a forward pass without a backward left."""
    for part in parts:
        for unit in sharded_units(part):
            unit.reshard()
