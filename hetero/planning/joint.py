"""Text and clicks: which accelerator nodes the text half takes and on which mesh, which nodes read and hold rows.

A step takes as long as its slower side: rows are fetched while the text half trains.

    text side     mesh search over so many nodes of one kind, plus the head on the data ways    mesh_search
    sparse side   cheapest nodes that read, parse, look up as many samples a second             plan

Each is the estimate that plans of deep and of wide jobs are made of. Every kind and power of two of nodes is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hetero.errors import PlanError
from hetero.planning.memory import Memory
from hetero.planning.mesh import DeviceGrid
from hetero.planning.mesh_plan import FP32_ADAM, ShardingStage
from hetero.planning.mesh_search import Candidate, Space, search
from hetero.planning.plan import Plan, plan_for_budget, plan_for_throughput
from hetero.planning.profile import Rates
from hetero.planning.schedules import Schedule
from hetero.planning.shape import Recompute, TransformerShape
from hetero.planning.tasks import Chain
from hetero.records.cluster import ClusterSpec, NodeKind

SSD_READS_PER_S = 1.5e5
"""Rows a node reads from its SSD, assumed from one machine's cold reads (design, section 6)."""
RUNS = Space(
    schedules=((Schedule.GPIPE, 1),),
    recomputes=(Recompute.NONE,),
    shardings=(ShardingStage.OPTIMIZER,),
    state=FP32_ADAM,
)
"""What the text half can do today; shard degrees above 1 are left out of what is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointWork:
    """A job of text and clicks. texts: of one sample. head_flops: forward and backward of a sample outside the text
    half. sparse: tasks up to the lookup, on each kind of node. reads: rows of a sample. rows, row_bytes: of all tables.
    """

    shape: TransformerShape
    texts: int
    batch: int
    head_flops: float
    sparse: Chain
    reads: float
    rows: int
    row_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRows:
    """All tables' rows on `nodes` nodes. Bytes of one node: rows in memory, rows on SSD, and what it has of each."""

    nodes: int
    memory_bytes: float
    ssd_bytes: float
    memory_there: int
    ssd_there: int

    @staticmethod
    def on(kind: NodeKind, nodes: int, held_bytes: float) -> HeldRows:
        """As many in memory as fit, the others on SSD."""
        memory = min(held_bytes / nodes, kind.memory_bytes)
        return HeldRows(
            nodes=nodes,
            memory_bytes=memory,
            ssd_bytes=held_bytes / nodes - memory,
            memory_there=kind.memory_bytes,
            ssd_there=kind.ssd_bytes,
        )

    @property
    def memory_share(self) -> float:
        """Of the rows in memory."""
        whole = self.memory_bytes + self.ssd_bytes
        return self.memory_bytes / whole if whole else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlan:
    """kind, nodes: of the text half. runs: whether the runtime can lay it out so today.

    Seconds of a step: text_s (of it exchange_s of gradients), head_s, sparse_s of the sparse side at its fastest (of it
    ssd_s reading rows that are not in memory); step_s: the slower side's. bound_by: `text` or `sparse`. price: money an
    hour of both.
    """

    kind: str
    nodes: int
    mesh: str
    runs: bool
    memory: Memory
    device_bytes: int
    text_s: float
    exchange_s: float
    head_s: float
    sparse: Plan
    sparse_s: float
    ssd_s: float
    step_s: float
    samples_per_s: float
    price: float
    bound_by: str
    rows: HeldRows
    was_simulated: bool

    @property
    def cost_per_million(self) -> float:
        """Money for 1,000,000 samples."""
        return self.price / 3600 / self.samples_per_s * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class JointFound:
    """best: the plan taken. others: each other choice of nodes with its plan, or why there is none."""

    best: JointPlan
    others: tuple[tuple[str, JointPlan | str], ...]


def plan_joint(
    work: JointWork, *, cluster: ClusterSpec, throughput: float | None = None, rates: Rates | None = None
) -> JointFound:
    """The cheapest that trains `throughput` samples a second; None for the fastest.

    Raises PlanError when no choice of nodes can, with what was tried.
    """
    tried: list[tuple[str, JointPlan | str]] = []
    for kind, nodes in _choices(cluster):
        name = f"{nodes} x {kind.name}"
        try:
            tried.append((name, _planned(work, cluster, kind, nodes, throughput, rates or Rates())))
        except PlanError as error:
            tried.append((name, str(error).splitlines()[0].split(". (1)")[0]))
    plans = [plan for _, plan in tried if isinstance(plan, JointPlan)]
    if throughput is not None:
        plans = [plan for plan in plans if plan.samples_per_s >= throughput * (1 - 1e-9)]
    if not plans:
        told = "; ".join(f"{name}: {_why(plan, throughput)}" for name, plan in tried) or "no node has an accelerator"
        wanted = "" if throughput is None else f" at {throughput:,.0f} samples/s"
        raise PlanError(f"no nodes of cluster `{cluster.name}` train both halves{wanted}: {told}")
    best = min(plans, key=lambda p: p.price if throughput is not None else -p.samples_per_s)
    return JointFound(best=best, others=tuple((name, plan) for name, plan in tried if plan is not best))


def _choices(cluster: ClusterSpec) -> Iterator[tuple[NodeKind, int]]:
    for kind in cluster.kinds:
        nodes = 1
        while kind.accelerators and nodes <= kind.count:
            yield kind, nodes
            nodes *= 2


def _planned(
    work: JointWork, cluster: ClusterSpec, kind: NodeKind, nodes: int, throughput: float | None, rates: Rates
) -> JointPlan:
    grid = DeviceGrid.of(kind, nodes)
    candidate, runs = _text(work, grid)
    ways = candidate.plan.mesh.data_ways
    head_s = work.batch * work.head_flops / ways / (grid.device.half_flops * rates.device_share)
    text_s = candidate.time.total_s
    fastest = work.batch / (text_s + head_s)
    left = _left(cluster)
    sparse = _sparse(work.sparse, left, fastest if throughput is None else min(throughput, fastest))
    lookup = next(stage for stage in sparse.stages if "lookup" in stage.tasks)
    held = HeldRows.on(left.kind(lookup.kind), lookup.nodes, work.rows * work.row_bytes)
    ssd_s = work.batch * work.reads * (1.0 - held.memory_share) / (SSD_READS_PER_S * lookup.nodes)
    sparse_s = work.batch / sparse.throughput + ssd_s
    step_s = max(text_s + head_s, sparse_s)
    return JointPlan(
        kind=kind.name,
        nodes=nodes,
        mesh=candidate.describe(),
        runs=runs,
        memory=candidate.memory,
        device_bytes=grid.device.memory_bytes,
        text_s=text_s,
        exchange_s=candidate.time.exchange_s,
        head_s=head_s,
        sparse=sparse,
        sparse_s=sparse_s,
        ssd_s=ssd_s,
        step_s=step_s,
        samples_per_s=work.batch / step_s,
        price=kind.price * nodes + sparse.price,
        bound_by="text" if text_s + head_s >= sparse_s else "sparse",
        rows=held,
        was_simulated=candidate.was_simulated,
    )


def _text(work: JointWork, grid: DeviceGrid) -> tuple[Candidate, bool]:
    """The fastest way for the text half, and whether the runtime can do it; others are taken where none of its fit."""
    batch = work.batch * work.texts
    try:
        found = search(work.shape, grid=grid, global_batch=batch, space=RUNS)
        plain = [candidate for candidate in found.best if candidate.plan.mesh.shard == 1]
        if plain:
            return plain[0], True
    except PlanError:
        pass
    return search(work.shape, grid=grid, global_batch=batch).best[0], False


def _sparse(chain: Chain, cluster: ClusterSpec, throughput: float) -> Plan:
    """The cheapest at that throughput, or all that the nodes can do where they cannot reach it."""
    try:
        return plan_for_throughput([chain], cluster=cluster, throughput=throughput)
    except PlanError:
        return plan_for_budget([chain], cluster=cluster)


def _left(cluster: ClusterSpec) -> ClusterSpec:
    """The nodes that may read and hold rows: those without accelerators."""
    kinds: Sequence[NodeKind] = [each for each in cluster.kinds if not each.accelerators]
    if not kinds:
        raise PlanError(f"cluster `{cluster.name}` has no nodes without accelerators for readers and servers")
    return replace(cluster, kinds=tuple(kinds))


def _why(plan: JointPlan | str, throughput: float | None) -> str:
    if isinstance(plan, str):
        return plan
    return f"reaches {plan.samples_per_s:,.0f} samples/s, bound by {plan.bound_by}" if throughput else "not taken"
