"""Tensor and sequence parallel: which module is split how.

Between blocks every rank holds its share of the tokens; a block gathers them before attention and MLP, whose first
matrices are split by columns and whose second by rows, and scatters the sums (Korthikanti et al. 2022). Embedding and
output projection are split by rows of the vocabulary.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from hetero.records.transformer import MlpKind, TransformerSpec
from hetero.towers.transformer import Transformer

_BY_TOKENS = Shard(1)


def split_tensors(part: Transformer, mesh: DeviceMesh) -> None:
    """Split a part over the tensor-parallel ranks, in place, each rank cutting its share out of the whole."""
    plan: dict[str, ParallelStyle] = {}
    if part.embed is not None:
        plan["embed.tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=_BY_TOKENS)
        if part.embed.positions is not None:
            plan["embed.positions"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))
    for number in part.blocks:
        plan |= {f"blocks.{number}.{name}": style for name, style in _block_plan(part.spec).items()}
    if part.norm is not None:
        plan["norm"] = SequenceParallel()
    if part.head is not None:
        plan["head"] = ColwiseParallel(input_layouts=_BY_TOKENS, output_layouts=Shard(-1))
    if part.tied_head is not None:
        plan["tied_head"] = PrepareModuleInputOutput(
            input_layouts=(_BY_TOKENS, Shard(0)),
            desired_input_layouts=(Replicate(), Shard(0)),
            output_layouts=Shard(-1),
            desired_output_layouts=Shard(-1),
            use_local_output=True,
        )
    parallelize_module(part, mesh, plan, src_data_rank=None)


def settle_gradients(part: nn.Module) -> None:
    """Sum gradients that the tensor-parallel ranks hold parts of: those of norms, which each saw for its own tokens."""
    for parameter in part.parameters():
        gradient = parameter.grad
        if not isinstance(gradient, DTensor) or not isinstance(parameter, DTensor):
            continue
        if gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


def _block_plan(spec: TransformerSpec) -> dict[str, ParallelStyle]:
    gather = PrepareModuleInput(input_layouts=(_BY_TOKENS,), desired_input_layouts=(Replicate(),))
    columns = ["attention.query", "attention.key", "attention.value", "mlp.up"]
    columns += ["mlp.gate"] if spec.mlp is MlpKind.GATED else []
    return {
        "attention_norm": SequenceParallel(),
        "attention": gather,
        "attention.output": RowwiseParallel(output_layouts=_BY_TOKENS),
        "mlp_norm": SequenceParallel(),
        "mlp": gather,
        "mlp.down": RowwiseParallel(output_layouts=_BY_TOKENS),
        **{name: ColwiseParallel() for name in columns},
    }
