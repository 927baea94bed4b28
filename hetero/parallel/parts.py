"""This rank's parts of the model: built without memory, split, and then given the values that belong to it alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hetero.parallel.compose import blocks_per_stage
from hetero.parallel.mesh import Mesh
from hetero.parallel.recompute import recompute_blocks
from hetero.parallel.sharding import needs_sharding, shard_part, sharded_units
from hetero.parallel.tensor import split_tensors
from hetero.records.mesh import DeepPrecision, MeshSpec, PipelineSchedule
from hetero.records.transformer import TransformerSpec
from hetero.towers.transformer import Transformer, parts_of
from hetero.towers.transformer_initial import initial_value


def stages_of_rank(spec: MeshSpec, pipeline_rank: int) -> tuple[int, ...]:
    """Numbers of the stages that a pipeline rank holds: round robin, or for ZBV down and up again."""
    if spec.schedule is PipelineSchedule.ZBV and spec.pp > 1:
        return pipeline_rank, spec.stages - 1 - pipeline_rank
    return tuple(range(pipeline_rank, spec.stages, spec.pp))


def rank_of_stage(spec: MeshSpec, stage: int) -> int:
    """The pipeline rank that holds a stage."""
    return next(rank for rank in range(spec.pp) if stage in stages_of_rank(spec, rank))


def build_parts(model: TransformerSpec, mesh: Mesh, *, seed: int, whole: bool = True) -> dict[int, Transformer]:
    """This rank's parts by stage number, on its device, split along every axis, with their first values.

    whole: False leaves out the head, and what sums gradients over data ways, for a model that gives states.
    """
    spec = mesh.spec
    cut = [replace(part, head=whole) for part in parts_of(model, blocks_per_stage(spec, model))]
    master = torch.float64 if spec.precision is DeepPrecision.FP64 else torch.float32
    built: dict[int, Transformer] = {}
    for stage in stages_of_rank(spec, mesh.place.pp):
        with torch.device("meta"):
            part = Transformer(model, part=cut[stage]).to(master)
        recompute_blocks(part, spec.recompute)
        if spec.tp > 1:
            split_tensors(part, mesh.tensor)
        if whole and needs_sharding(spec):
            shard_part(part, spec, mesh.data)
        part.to_empty(device=mesh.device)
        _set_initial(part, model, mesh, seed=seed)
        for unit in sharded_units(part):  # fully_shard takes note of the memory that it now has
            unit.unshard()
            unit.reshard()
        built[stage] = part
    return built


def local_of(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: memory that the tensor shares."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    with torch.no_grad():
        return tensor.to_local()


def ranks_apart(parameter: Tensor, spec: MeshSpec) -> int:
    """How many ranks of one pipeline rank hold different pieces of a parameter; others hold copies of them."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh, pieces = parameter.device_mesh, 1
    for axis, placement in enumerate(parameter.placements):
        pieces *= 1 if placement.is_replicate() else mesh.size(axis)
    return pieces


def axes_split(parameter: Tensor) -> Iterator[tuple[str, int]]:
    """(axis, tensor dimension) of every cut of a parameter, in the order in which they are made: `tp` first."""
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        for name, placement in reversed(list(zip(names, parameter.placements, strict=True))):
            if not placement.is_replicate():
                yield name, placement.dim  # type: ignore[attr-defined]


@torch.no_grad()
def _set_initial(part: nn.Module, model: TransformerSpec, mesh: Mesh, *, seed: int) -> None:
    for name, parameter in part.named_parameters():
        value = initial_value(name, parameter.shape, model, seed=seed)
        for axis, dimension in axes_split(parameter):
            value = chunk_of(value, dimension, count=getattr(mesh.spec, axis), number=getattr(mesh.place, axis))
        local_of(parameter).copy_(value)


def chunk_of(value: Tensor, dimension: int, *, count: int, number: int) -> Tensor:
    """The `number`-th of `count` chunks; past the last one, which may be before `count`, nothing."""
    chunks = value.chunk(count, dim=dimension)
    return chunks[number] if number < len(chunks) else value.narrow(dimension, 0, 0)
