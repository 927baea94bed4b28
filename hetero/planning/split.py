"""Exact search for the cheapest split of a chain of tasks over kinds of node that reaches a throughput.

Without limits the cost of a stage depends on its own nodes alone, so dynamic programming over (first task of a stage,
kind) is exact. Where the cheapest split takes more nodes of a kind than there are, `limited` goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.planning.limited import Path, cheapest_path, cheapest_within
from hetero.planning.segments import NEVER, Segment, Segments
from hetero.records.arrays import I64


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A segment on so many nodes."""

    segment: Segment
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Stages that cover a chain. price: money an hour of all nodes. throughput: samples a second of the slowest."""

    stages: tuple[Stage, ...]
    price: float
    throughput: float

    @property
    def cost_per_sample(self) -> float:
        """Money for 1 sample."""
        return self.price / 3600 / self.throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Cheapest split for a throughput, or None. proven: whether nothing cheaper exists (or nothing at all)."""

    split: Split | None
    proven: bool
    bound: float = 0.0


def cheapest(segments: Segments, *, throughput: float, forced: Segment | None = None) -> Answer:
    """The cheapest split that reaches a throughput within the cluster's nodes.

    forced: tasks that must be on this segment's kind, for alternatives that `explain` looks into.
    """
    nodes = segments.nodes_for(throughput)
    if forced is not None:
        nodes = _only(nodes, forced)
    prices = np.array([kind.price for kind in segments.cluster.kinds])
    limits = np.array([kind.count for kind in segments.cluster.kinds], dtype=np.int64)
    nodes[nodes > limits[:, None, None]] = NEVER
    free = cheapest_path(nodes, prices)
    if free is None:
        return Answer(split=None, proven=True, bound=np.inf)
    if free.fits_in(limits):
        return Answer(split=_split(segments, free), proven=True, bound=free.cost)
    found = cheapest_within(nodes, prices, limits)
    split = None if found.path is None else _split(segments, found.path)
    return Answer(split=split, proven=found.proven, bound=found.bound)


def _only(nodes: I64, forced: Segment) -> I64:
    """Without the segments that would place a task of `forced` on another kind."""
    nodes = nodes.copy()
    starts, stops = np.arange(nodes.shape[1])[:, None], np.arange(nodes.shape[2])[None, :]
    touches = (starts < forced.stop) & (stops > forced.start)
    others = np.arange(nodes.shape[0]) != forced.kind
    nodes[others[:, None, None] & touches[None]] = NEVER
    return nodes


def _split(segments: Segments, path: Path) -> Split:
    stages = (
        Stage(segment=Segment(start=start, stop=stop, kind=kind), nodes=nodes)
        for start, stop, kind, nodes in path.steps
    )
    return split_of(segments, tuple(stages))


def split_of(segments: Segments, stages: tuple[Stage, ...]) -> Split:
    """Stages with their price and throughput."""
    kinds = segments.cluster.kinds
    return Split(
        stages=stages,
        price=sum(kinds[stage.segment.kind].price * stage.nodes for stage in stages),
        throughput=min(segments.throughput(stage.segment, stage.nodes) for stage in stages),
    )
