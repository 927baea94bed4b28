"""The published table of traffic and bubbles of 4D strategies, as it was published and as it should read.

Published: PaddleFleetX, hybrid_parallelism.rst and its image hybrid_comm.png (old_develop). M parameters, L blocks, m
micro-batches, act = hidden x micro-batch x sequence, all in elements of 16 bits, per device and step:

    between machines   act * 2 * m, and M / pp with data parallelism (the text says 2M / pp)
    in a machine       act * 4L / pp * m, and 3M / pp * m with sharding
    bubble             (pp - 1) / (m + pp - 1)

What it leaves out: parameters of a rank are M / (pp tp); sharding stage 1 moves gradients and parameters once a step,
not 3M for each micro-batch; a block has two all-reduces in the backward too; a ring sends (n - 1) / n of the size; an
all-reduce sends it twice, and with sharding only the rank's shard of gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero.planning.mesh import Axis
from hetero.planning.mesh_plan import MeshPlan
from hetero.planning.pipeline import gpipe_bubble_share
from hetero.planning.traffic import traffic

_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRow:
    """Bytes that a device sends in a step, between machines and inside one, and the bubble's share of the step."""

    between_bytes: float
    inside_bytes: float
    bubble_share: float


def as_published(plan: MeshPlan) -> StrategyRow:
    """By the published formulas, word for word."""
    shape, mesh, count = plan.shape, plan.mesh, plan.micro_batches
    act = shape.hidden * plan.micro_batch * shape.sequence
    between = act * 2 * count + (shape.parameters / mesh.pp if mesh.dp > 1 else 0)
    inside = act * 4 * shape.layers / mesh.pp * count
    inside += 3 * shape.parameters / mesh.pp * count if mesh.shard > 1 else 0
    return StrategyRow(
        between_bytes=_BYTES * between,
        inside_bytes=_BYTES * inside,
        bubble_share=gpipe_bubble_share(mesh.pp, count),
    )


def as_corrected(plan: MeshPlan) -> StrategyRow:
    """By what the ranks send, see `hetero.planning.traffic`; the bubble is the same."""
    parts = traffic(plan).values()
    return StrategyRow(
        between_bytes=sum(part.sent_bytes for part in parts if part.crosses),
        inside_bytes=sum(part.sent_bytes for part in parts if not part.crosses),
        bubble_share=gpipe_bubble_share(plan.mesh.pp, plan.micro_batches),
    )


def missing_from_published(plan: MeshPlan) -> dict[Axis, float]:
    """Corrected / published bytes, axis by axis, where the table has a term for the axis."""
    shape, mesh, count = plan.shape, plan.mesh, plan.micro_batches
    act = shape.hidden * plan.micro_batch * shape.sequence
    terms = {
        Axis.PIPELINE: act * 2 * count,
        Axis.DATA: shape.parameters / mesh.pp,
        Axis.SHARD: 3 * shape.parameters / mesh.pp * count,
        Axis.TENSOR: act * 4 * shape.layers / mesh.pp * count,
    }
    return {axis: part.sent_bytes / (_BYTES * terms[axis]) for axis, part in traffic(plan).items()}
