"""Plans whose towers are on two kinds of node, with shares of the batch by speed: tried beside those of one kind.

So many nodes of one kind and so many of another are taken as one node of a kind of its own that can run nothing but the
tower, with the speed, the network and the price of all of them; the rest of the split is searched for as ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hetero.errors import PlanError
from hetero.planning.plan import Plan, PlannedStage, plan_for_budget, plan_for_throughput
from hetero.planning.tasks import Chain, Role, Task, Usage
from hetero.records.cluster import ClusterSpec, NodeKind

_MOST_COUNTS = 24
"""Numbers of nodes of the first kind that are tried for each pair of kinds."""
_ROUNDS = 24
_PRECISION = 1e-6
_WORTH = 1.02
"""A plan with towers on two kinds must be faster by this than one with towers on one kind."""


def cheapest_plan(chains: Sequence[Chain], *, cluster: ClusterSpec, throughput: float) -> Plan:
    """As `plan_for_throughput`, towers on two kinds of node allowed where the tower is a stage by itself."""
    try:
        best: Plan | None = plan_for_throughput(chains, cluster=cluster, throughput=throughput)
    except PlanError:
        best = None
    for plan in _mixed(chains, cluster, throughput):
        if best is None or plan.price < best.price * (1 - _PRECISION):
            best = plan
    return best or plan_for_throughput(chains, cluster=cluster, throughput=throughput)  # raises, and says why


def fastest_plan(chains: Sequence[Chain], *, cluster: ClusterSpec, price: float | None = None) -> Plan:
    """As `plan_for_budget`, towers on two kinds of node allowed where that is faster by 2%. Of plans as fast, the
    cheapest."""
    best = plan_for_budget(chains, cluster=cluster, price=price)
    low, high = best.throughput * _WORTH, 2 * best.throughput * max(len(cluster.kinds), 1)
    for _ in range(_ROUNDS):
        wanted = (low * high) ** 0.5
        found = next((plan for plan in _mixed(chains, cluster, wanted) if price is None or plan.price <= price), None)
        if found is None:
            high = wanted
        else:
            best, low = found, max(found.throughput, wanted)
        if high <= low * (1 + 1e-3):
            break
    return cheapest_plan(chains, cluster=cluster, throughput=best.throughput * (1 - _PRECISION))


def _mixed(chains: Sequence[Chain], cluster: ClusterSpec, throughput: float) -> Iterator[Plan]:
    """The cheapest plans at a throughput with towers on every pair of kinds."""
    for chain in chains:
        tower = chain.tasks[-1]
        if tower.role is not Role.TOWER or not tower.begins or tower.parallel < 1 or tower.memory_bytes:
            continue
        able = [kind for kind in cluster.kinds if kind.name in tower.usage]
        for number, first in enumerate(able):
            for second in able[number + 1 :]:
                for counts in _counts(tower, first, second, throughput):
                    plan = _with(chain, cluster, (first, second), counts, throughput)
                    if plan is not None:
                        yield plan


def _rate(tower: Task, kind: NodeKind) -> float:
    """Samples a second of one node's towers."""
    usage = tower.usage[kind.name]
    return 1 / max(usage.cpu_s, usage.device_s, 1e-15)


def _counts(tower: Task, first: NodeKind, second: NodeKind, throughput: float) -> Iterator[tuple[int, int]]:
    """Fewest nodes of both that reach it, one of each at least."""
    rates = _rate(tower, first), _rate(tower, second)
    most = min(first.count, math.ceil(throughput / rates[0]))
    for count in sorted({max(1, round(most * n / _MOST_COUNTS)) for n in range(1, _MOST_COUNTS + 1)}) if most else ():
        others = math.ceil((throughput - count * rates[0]) / rates[1] - 1e-9)
        if 1 <= others <= second.count:
            yield count, others


def _with(
    chain: Chain, cluster: ClusterSpec, pair: tuple[NodeKind, NodeKind], counts: tuple[int, int], throughput: float
) -> Plan | None:
    """The cheapest plan whose towers are on these nodes; None when the rest does not fit on what is left."""
    tower, name = chain.tasks[-1], " + ".join(f"{n} x {kind.name}" for n, kind in zip(counts, pair, strict=True))
    parts = list(zip(counts, pair, strict=True))
    both = NodeKind(
        name=name,
        count=1,
        price=sum(n * kind.price for n, kind in parts),
        cores=sum(n * kind.cores for n, kind in parts),
        memory_bytes=1,
        network_bytes_per_s=sum(n * kind.network_bytes_per_s for n, kind in parts),
    )
    speed = sum(n * _rate(tower, kind) for n, kind in parts)
    alone = replace(tower, usage={name: Usage(device_s=1 / speed)}, reasons=None)
    taken = {kind.name: n for n, kind in parts}
    left = tuple(replace(kind, count=kind.count - taken.get(kind.name, 0)) for kind in cluster.kinds)
    try:
        plan = plan_for_throughput(
            [replace(chain, tasks=(*chain.tasks[:-1], alone))],
            cluster=ClusterSpec(name=cluster.name, kinds=(*left, both)),
            throughput=throughput,
        )
    except PlanError:
        return None
    stage = plan.stages[-1]
    split = tuple(
        PlannedStage(
            tasks=stage.tasks,
            roles=stage.roles,
            kind=kind.name,
            nodes=n,
            price=n * kind.price,
            throughput=stage.throughput * n * _rate(tower, kind) / speed,
            bound_by=stage.bound_by,
        )
        for n, kind in parts
    )
    return replace(plan, stages=(*plan.stages[:-1], *split))
