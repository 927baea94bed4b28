"""Activation recomputation: a block's activations are made again in its backward pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from hetero.records.mesh import Recompute
from hetero.towers.transformer import Transformer

_KEPT = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.linear.default})


def recompute_blocks(part: Transformer, kind: Recompute) -> None:
    """Change the blocks' forward in place. Call before `split_tensors` and `shard_part`, whose hooks stay outside."""
    if kind is Recompute.NONE:
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if kind is Recompute.SELECTIVE:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    for block in part.blocks.values():
        block.forward = partial(checkpoint, block.forward, **options)


def _policy(context: object, operation: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
