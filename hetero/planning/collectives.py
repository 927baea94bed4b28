"""Seconds of collectives by the alpha-beta model: latency a message, bytes over bandwidth.

Sizes are those of the whole tensor: what each rank holds (all-reduce, reduce-scatter's input, all-to-all) or ends with
(all-gather). Formulas: Thakur, Rabenseifner, Gropp 2005, "Optimization of collective communication operations in
MPICH". RING: n - 1 neighbours in turn; all-to-all pairwise. TREE: recursive halving and doubling, all-to-all by Bruck;
log2(n) rounded up. HIERARCHICAL: inside machines, then across with one part for each rank of a machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from hetero.errors import PlanError
from hetero.hardware.devices import Link


class Collective(Enum):
    """What a group of ranks does together."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


class Algorithm(Enum):
    """How the ranks do it."""

    RING = "ring"
    TREE = "tree"
    HIERARCHICAL = "hierarchical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a group's ranks are: `inside` ranks on each of `machines` machines.

    inside_link: between devices of a machine, each has its own. across_link: of a machine, shared by all its groups.
    sharing: groups of a machine that use its link at once.
    """

    inside: int
    machines: int
    inside_link: Link
    across_link: Link
    sharing: int = 1

    @property
    def ranks(self) -> int:
        return self.inside * self.machines

    @property
    def own_across_link(self) -> Link:
        """The part of a machine's link that one group has."""
        return self.across_link.shared_by(self.sharing)


def seconds(collective: Collective, *, size_bytes: float, place: Place, algorithm: Algorithm) -> float:
    """Time of one collective in a group. Raises PlanError for fewer than one rank."""
    if min(place.inside, place.machines, place.sharing) < 1:
        raise PlanError(f"a group of {place.inside} x {place.machines} ranks cannot be: each must be 1 or more")
    if place.ranks == 1:
        return 0.0
    if algorithm is Algorithm.HIERARCHICAL and place.inside > 1 and place.machines > 1:
        return _hierarchical(collective, size_bytes, place)
    flat = Algorithm.RING if algorithm is Algorithm.HIERARCHICAL else algorithm
    rounds, volume = _rounds_and_volume(collective, flat, place.ranks)
    if place.machines == 1:
        return rounds * place.inside_link.latency_s + volume * size_bytes / place.inside_link.bytes_per_s
    across = place.own_across_link
    slowest = min(place.inside_link.bytes_per_s, across.bytes_per_s / _crossing(collective, flat, place))
    return rounds * across.latency_s + volume * size_bytes / slowest


def fastest(collective: Collective, *, size_bytes: float, place: Place) -> float:
    """Time by the best algorithm for the size and the place, as libraries choose it."""
    return min(seconds(collective, size_bytes=size_bytes, place=place, algorithm=each) for each in Algorithm)


def _rounds_and_volume(collective: Collective, algorithm: Algorithm, ranks: int) -> tuple[int, float]:
    """(messages one after the other, bytes a rank sends / size)."""
    rounds = ranks - 1 if algorithm is Algorithm.RING else math.ceil(math.log2(ranks))
    volume = (ranks - 1) / ranks
    if collective is Collective.ALL_REDUCE:
        return 2 * rounds, 2 * volume
    if collective is Collective.ALL_TO_ALL and algorithm is Algorithm.TREE:
        return rounds, rounds / 2
    return rounds, volume


def _crossing(collective: Collective, algorithm: Algorithm, place: Place) -> float:
    """Ranks of one machine whose messages cross its link at once, at the same size.

    In a ring one rank of each machine has its neighbour on the next. Pairwise and recursive exchanges cross with all.
    """
    if algorithm is Algorithm.RING and collective is not Collective.ALL_TO_ALL:
        return 1
    return place.inside


def _hierarchical(collective: Collective, size_bytes: float, place: Place) -> float:
    inner = Place(inside=place.inside, machines=1, inside_link=place.inside_link, across_link=place.across_link)
    outer = Place(
        inside=1,
        machines=place.machines,
        inside_link=place.inside_link,
        across_link=place.across_link,
        sharing=place.sharing * place.inside,
    )

    def ring(one: Collective, size: float, where: Place) -> float:
        return seconds(one, size_bytes=size, place=where, algorithm=Algorithm.RING)

    if collective is Collective.ALL_TO_ALL:
        return ring(collective, size_bytes, inner) + ring(collective, size_bytes, outer)
    part = size_bytes / place.inside
    if collective is Collective.ALL_REDUCE:
        inside = ring(Collective.REDUCE_SCATTER, size_bytes, inner) + ring(Collective.ALL_GATHER, size_bytes, inner)
        return inside + ring(Collective.ALL_REDUCE, part, outer)
    return ring(collective, size_bytes, inner) + ring(collective, part, outer)
