"""Why a plan is as it is: what every alternative would cost, or what keeps it from being run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hetero.planning.plan import Plan
from hetero.planning.segments import Segment, Segments
from hetero.planning.split import cheapest
from hetero.planning.tasks import Chain
from hetero.records.cluster import ClusterSpec, NodeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Something the plan could have done. price: an hour at the plan's throughput, or None where it cannot be."""

    what: str
    price: float | None
    reason: str


def explain(plan: Plan, *, chains: Sequence[Chain], cluster: ClusterSpec) -> list[Alternative]:
    """Every other choice at the plan's throughput: other chains, all on one kind, each run of tasks on another kind."""
    wanted = plan.throughput * (1 - 1e-9)
    taken = next(chain for chain in chains if chain.name == plan.chain)
    segments = Segments(taken, cluster)
    return [
        *_other_chains(plan, chains, cluster, wanted),
        *_one_kind(plan, segments, wanted),
        *_other_kinds(plan, segments, wanted),
    ]


def _other_chains(plan: Plan, chains: Sequence[Chain], cluster: ClusterSpec, wanted: float) -> Iterator[Alternative]:
    for chain in chains:
        if chain.name != plan.chain:
            yield _judged(f"{chain.name} instead of {plan.chain}", plan, Segments(chain, cluster), wanted, forced=None)


def _one_kind(plan: Plan, segments: Segments, wanted: float) -> Iterator[Alternative]:
    count = len(segments.chain.tasks)
    for number, kind in enumerate(segments.cluster.kinds):
        if set(plan.nodes) != {kind.name}:
            whole = Segment(start=0, stop=count, kind=number)
            yield _judged(f"everything on {kind.name}", plan, segments, wanted, forced=whole)


def _other_kinds(plan: Plan, segments: Segments, wanted: float) -> Iterator[Alternative]:
    kind_of = {task: stage.kind for stage in plan.stages for task in stage.tasks}
    for start, stop in _groups(segments.chain):
        names = [task.name for task in segments.chain.tasks[start:stop]]
        for number, kind in enumerate(segments.cluster.kinds):
            if kind.name != kind_of[names[0]]:
                forced = Segment(start=start, stop=stop, kind=number)
                yield _judged(f"{' + '.join(names)} on {kind.name}", plan, segments, wanted, forced=forced)


def _groups(chain: Chain) -> list[tuple[int, int]]:
    """Runs of tasks that stay together."""
    starts = [number for number, task in enumerate(chain.tasks) if task.begins]
    return list(zip(starts, [*starts[1:], len(chain.tasks)], strict=True))


def _judged(what: str, plan: Plan, segments: Segments, wanted: float, *, forced: Segment | None) -> Alternative:
    answer = cheapest(segments, throughput=wanted, forced=forced)
    if answer.split is None:
        return Alternative(what=what, price=None, reason=_why_not(segments, wanted, forced, proven=answer.proven))
    price = answer.split.price
    more = price - plan.price
    # The price of a plan can be met by another: then nothing but the order of the search decides.
    reason = (
        f"costs {price:,.2f} an hour, {more:+,.2f} ({more / plan.price:+.1%})"
        if more > 1e-9 * plan.price
        else f"costs the same, {price:,.2f} an hour, at {answer.split.throughput:,.0f} samples/s"
    )
    return Alternative(what=what, price=price, reason=reason)


def _why_not(segments: Segments, wanted: float, forced: Segment | None, *, proven: bool) -> str:
    if not proven:
        return "no split was found within the search's effort"
    if forced is None:
        return f"does not reach {wanted:,.0f} samples/s with the cluster's nodes"
    kind = segments.cluster.kinds[forced.kind]
    for task in segments.chain.tasks[forced.start : forced.stop]:
        if kind.name not in task.usage:
            return f"{kind.name} cannot run {task.name}: {(task.reasons or {}).get(kind.name, 'no profile')}"
    return _shortage(segments, wanted, forced, kind)


def _shortage(segments: Segments, wanted: float, forced: Segment, kind: NodeKind) -> str:
    """Demand against what there is, of the forced tasks alone."""
    tasks = segments.chain.tasks[forced.start : forced.stop]
    seconds = sum(task.usage[kind.name].seconds(1.0) for task in tasks)
    memory = sum(task.memory_bytes for task in tasks) / max(kind.memory_bytes + kind.ssd_bytes, 1)
    need = max(seconds * wanted, memory)
    if need > kind.count:
        return f"takes {need:,.1f} nodes of {kind.name} for {wanted:,.0f} samples/s, there are {kind.count}"
    return f"does not reach {wanted:,.0f} samples/s: nodes of some kind, or the network to and from them, fall short"
