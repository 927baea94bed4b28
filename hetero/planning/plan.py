"""`plan(profile, cluster) -> Plan`: the cheapest split for a wanted throughput, or the fastest for nodes or money.

A profile is one or several chains, choices such as where multi-valued lookups are pooled; each is searched, the best is
taken. `explain` says what every alternative would have cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hetero.errors import PlanError
from hetero.planning.segments import Segment, Segments
from hetero.planning.split import Answer, Split, cheapest
from hetero.planning.tasks import Chain, Role
from hetero.records.cluster import ClusterSpec

_PRECISION = 1e-9
_SLOWEST = 1e-9
_MOST_ROUNDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """Tasks on nodes of one kind. throughput: samples a second it reaches. bound_by: what limits it."""

    tasks: tuple[str, ...]
    roles: tuple[Role, ...]
    kind: str
    nodes: int
    price: float
    throughput: float
    bound_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A split with everything said. throughput: samples a second; price: money an hour; chain: the choice taken.

    proven: whether no better split exists; else none is cheaper than `bound` an hour at this throughput.
    """

    chain: str
    stages: tuple[PlannedStage, ...]
    throughput: float
    price: float
    proven: bool
    bound: float

    @property
    def nodes(self) -> dict[str, int]:
        """Nodes by kind."""
        counts: dict[str, int] = {}
        for stage in self.stages:
            counts[stage.kind] = counts.get(stage.kind, 0) + stage.nodes
        return counts

    @property
    def cost_per_million(self) -> float:
        """Money for 1,000,000 samples."""
        return self.price / 3600 / self.throughput * 1e6


def plan_for_throughput(chains: Sequence[Chain], *, cluster: ClusterSpec, throughput: float) -> Plan:
    """The cheapest plan that reaches `throughput` samples a second. Raises PlanError when none does, with the most."""
    answers = [(segments, cheapest(segments, throughput=throughput)) for segments in _segments(chains, cluster)]
    found = [(segments, answer) for segments, answer in answers if answer.split is not None]
    if not found:
        raise PlanError(_out_of_reach(chains, cluster, throughput))
    return _plan(*min(found, key=lambda each: each[1].bound if each[1].split is None else each[1].split.price))


def plan_for_budget(chains: Sequence[Chain], *, cluster: ClusterSpec, price: float | None = None) -> Plan:
    """The fastest plan of the cluster's nodes, for at most `price` an hour. Raises PlanError when nothing fits."""
    best: Plan | None = None
    for segments in _segments(chains, cluster):
        answer = _fastest(segments, price, above=best.throughput if best else 0.0)
        if answer is not None:
            best = _plan(segments, answer)
    if best is None:
        raise PlanError(_nothing_fits(chains, cluster, price))
    return best


class Cheapest(Protocol):
    """`plan_for_throughput`, or another rule that finds plans."""

    def __call__(self, chains: Sequence[Chain], *, cluster: ClusterSpec, throughput: float) -> Plan: ...


def pareto(
    chains: Sequence[Chain],
    *,
    cluster: ClusterSpec,
    points: int = 16,
    fastest: Plan | None = None,
    cheapest: Cheapest = plan_for_throughput,
) -> list[Plan]:
    """Cheapest plans at throughputs up to the fastest, spread evenly by ratio; each costs more and does more."""
    fastest = fastest or plan_for_budget(chains, cluster=cluster)
    least = fastest.throughput / 1000
    front: list[Plan] = []
    for number in range(points):
        wanted = least * (fastest.throughput / least) ** (number / max(1, points - 1)) * (1 - _PRECISION)
        one = cheapest(chains, cluster=cluster, throughput=wanted)
        if not front or one.throughput > front[-1].throughput:
            front = [each for each in front if each.price < one.price]
            front.append(one)
    return front


def _segments(chains: Sequence[Chain], cluster: ClusterSpec) -> list[Segments]:
    if not chains:
        raise PlanError("there is no profile to plan from; give at least one chain of tasks")
    if not cluster.kinds:
        raise PlanError(f"cluster `{cluster.name}` has no kinds of node")
    return [Segments(chain, cluster) for chain in chains]


def _fastest(segments: Segments, price: float | None, *, above: float) -> Answer | None:
    """By halving between what is reached and what is out of reach, until nothing above the best is left."""
    best: Answer | None = None
    reached, out_of_reach, proven = above, _most(segments), True
    wanted = max(out_of_reach * _SLOWEST, reached * (1 + _PRECISION))
    for _ in range(_MOST_ROUNDS):
        if out_of_reach <= reached * (1 + _PRECISION) or out_of_reach <= wanted:
            break
        answer = cheapest(segments, throughput=wanted)
        if answer.split is not None and (price is None or answer.split.price <= price):
            best, reached = answer, max(answer.split.throughput, wanted)
            improved = True
        else:
            improved = False
            proven &= answer.proven or (price is not None and answer.bound > price)
            out_of_reach = wanted
        if reached == 0:
            return None
        wanted = _between(reached, out_of_reach, just_above=improved)
    return None if best is None else Answer(split=best.split, proven=proven and best.proven, bound=best.bound)


def _between(low: float, high: float, *, just_above: bool) -> float:
    """Halfway by ratio while far apart; when close just above what is reached, which is often the most, or halfway."""
    if high > low * 1.01:
        return float((low * high) ** 0.5)
    return low * (1 + 2 * _PRECISION) if just_above else (low + high) / 2


def _most(segments: Segments) -> float:
    """A throughput no split reaches: the slowest task alone on all nodes of its best kind."""
    kinds, tasks = segments.cluster.kinds, segments.chain.tasks
    slowest = float("inf")
    for task in tasks:
        rates = [
            kind.count / max(task.usage[kind.name].seconds(1.0) * task.parallel, 1e-15)
            for kind in kinds
            if kind.name in task.usage and kind.count > 0
        ]
        slowest = min(slowest, max(rates, default=0.0))
    return slowest * 2


def _plan(segments: Segments, answer: Answer) -> Plan:
    split = answer.split
    assert split is not None
    return Plan(
        chain=segments.chain.name,
        stages=tuple(_stages(segments, split)),
        throughput=split.throughput,
        price=split.price,
        proven=answer.proven,
        bound=answer.bound,
    )


def _stages(segments: Segments, split: Split) -> Iterator[PlannedStage]:
    kinds = segments.cluster.kinds
    for stage in split.stages:
        segment = stage.segment
        tasks = segments.chain.tasks[segment.start : segment.stop]
        yield PlannedStage(
            tasks=tuple(task.name for task in tasks),
            roles=tuple(dict.fromkeys(task.role for task in tasks)),
            kind=kinds[segment.kind].name,
            nodes=stage.nodes,
            price=kinds[segment.kind].price * stage.nodes,
            throughput=segments.throughput(segment, stage.nodes),
            bound_by=_bound_by(segments, segment, stage.nodes),
        )


def _bound_by(segments: Segments, segment: Segment, nodes: int) -> str:
    at = segment.kind, segment.start, segment.stop
    if segments.network_s[at] / nodes > segments.serial_s[at] + segments.shared_s[at] / nodes:
        return "network"
    return "memory" if segments.least_nodes[at] == nodes and nodes > 1 else "computation"


def _out_of_reach(chains: Sequence[Chain], cluster: ClusterSpec, throughput: float) -> str:
    try:
        best = plan_for_budget(chains, cluster=cluster)
    except PlanError as error:
        return str(error)
    slowest = min(best.stages, key=lambda stage: stage.throughput)
    return (
        f"{throughput:,.0f} samples/s are out of reach of cluster `{cluster.name}`: all its nodes reach "
        f"{best.throughput:,.0f}, held up by {' + '.join(slowest.tasks)} on {slowest.nodes} x {slowest.kind} "
        f"({slowest.bound_by}). (1) ask for less; (2) more nodes of {slowest.kind}; (3) another kind for those tasks"
    )


def _nothing_fits(chains: Sequence[Chain], cluster: ClusterSpec, price: float | None) -> str:
    for task in chains[0].tasks:
        able = [kind for kind in cluster.kinds if kind.name in task.usage]
        if not able:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in (task.reasons or {}).items())
            return f"no kind of node of cluster `{cluster.name}` can run task `{task.name}` ({reasons or 'no profile'})"
        room = sum(kind.count * (kind.memory_bytes + kind.ssd_bytes) for kind in able)
        if task.memory_bytes > max(kind.count * (kind.memory_bytes + kind.ssd_bytes) for kind in able):
            return (
                f"task `{task.name}` needs {task.memory_bytes / 2**30:,.1f} GiB on nodes of one kind; all kinds that "
                f"can run it have {room / 2**30:,.1f} GiB together. (1) more nodes; (2) SSD for rows; (3) a smaller dim"
            )
    money = "" if price is None else f" for {price:g} an hour"
    return (
        f"cluster `{cluster.name}` cannot run the job{money}: every split takes more nodes of some kind than there "
        "are, or more money. (1) more nodes; (2) a higher price; (3) kinds of node that can run more of the tasks"
    )
