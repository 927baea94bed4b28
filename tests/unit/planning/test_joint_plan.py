"""Plans of text and clicks: the sides they are made of, the choice among nodes, and a job of 1e13 parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.errors import PlanError
from hetero.hardware.devices import Link, device, link
from hetero.planning.joint import RUNS, SSD_READS_PER_S, JointPlan, JointWork, plan_joint
from hetero.planning.mesh import DeviceGrid
from hetero.planning.mesh_search import search
from hetero.planning.plan import plan_for_throughput
from hetero.planning.profile import Work, chain_of
from hetero.planning.shape import TransformerShape
from hetero.planning.tasks import Chain, Role
from hetero.records.cluster import ClusterSpec, NodeKind

GPU = NodeKind(
    name="gpu",
    count=4,
    price=4.0,
    cores=16,
    memory_bytes=1 << 36,
    network_bytes_per_s=1e11,
    accelerator="a100-80gb",
    accelerators=2,
)
STORE = NodeKind(name="store", count=40, price=0.5, cores=16, memory_bytes=1 << 36, ssd_bytes=1 << 40)
CLUSTER = ClusterSpec(name="test", kinds=(GPU, STORE))
SHAPE = TransformerShape(layers=8, hidden=512, heads=8, vocabulary=30_000, sequence=128, headless=True)


def work_of(*, rows: int = 1_000_000, shape: TransformerShape = SHAPE, cluster: ClusterSpec = CLUSTER) -> JointWork:
    work = Work(
        file_bytes=900,
        dense=13,
        keys=100,
        distinct=0.25,
        row_floats=1700,
        pooled_floats=400,
        tower_flops=0,
        rows=rows,
        row_bytes=92,
    )
    chain = chain_of(work, cluster=cluster)
    sparse = Chain(name="sparse", tasks=tuple(task for task in chain.tasks if task.role is not Role.TOWER))
    sizes = {"batch": 512, "head_flops": 1e7, "reads": 25.0, "rows": rows, "row_bytes": 92.0}
    return JointWork(shape=shape, texts=1, sparse=sparse, **sizes)  # type: ignore[arg-type]


def test_a_plan_is_made_of_the_estimates_of_both_sides() -> None:
    work = work_of()
    best = plan_joint(work, cluster=CLUSTER).best
    assert (best.kind, best.nodes, best.runs) == ("gpu", 4, True)
    between = Link(name="network", latency_s=2e-5, bytes_per_s=GPU.network_bytes_per_s)
    grid = DeviceGrid(machines=4, per_machine=2, device=device("a100-80gb"), inside=link("nvlink2"), between=between)
    found = search(SHAPE, grid=grid, global_batch=512, space=RUNS).best
    text = next(candidate for candidate in found if candidate.plan.mesh.shard == 1)
    assert best.text_s == text.time.total_s
    assert best.step_s == max(best.text_s + best.head_s, best.sparse_s)
    assert best.samples_per_s == pytest.approx(512 / best.step_s)
    wanted = 512 / (best.text_s + best.head_s)
    sparse = plan_for_throughput([work.sparse], cluster=replace(CLUSTER, kinds=(STORE,)), throughput=wanted)
    assert best.sparse == sparse
    assert best.price == 4 * 4.0 + sparse.price


def test_the_cheapest_that_reaches_what_is_wanted() -> None:
    found = plan_joint(work_of(), cluster=CLUSTER)
    plans = [found.best, *(plan for _, plan in found.others if isinstance(plan, JointPlan))]
    least = min(plans, key=lambda plan: plan.samples_per_s)
    cheap = plan_joint(work_of(), cluster=CLUSTER, throughput=least.samples_per_s * 0.5).best
    assert cheap.nodes == 1
    assert cheap.price < found.best.price
    with pytest.raises(PlanError, match=r"train both halves at .* reaches .* samples/s, bound by text"):
        plan_joint(work_of(), cluster=CLUSTER, throughput=1e9)


def test_the_sparse_side_may_be_the_slower_one() -> None:
    few = replace(CLUSTER, kinds=(GPU, replace(STORE, count=1, cores=0.001)))
    best = plan_joint(work_of(cluster=few), cluster=few).best
    assert best.bound_by == "sparse"
    assert best.step_s == best.sparse_s > best.text_s


def test_rows_beyond_memory_lie_on_ssd() -> None:
    rows = 20_000_000_000  # 1.84e12 bytes: 26.8 nodes' memory, 1.6 nodes' memory and SSD
    best = plan_joint(work_of(rows=rows), cluster=CLUSTER).best
    lookup = next(stage for stage in best.sparse.stages if "lookup" in stage.tasks)
    assert lookup.nodes >= 2
    assert best.rows.memory_share == pytest.approx(min(1.0, lookup.nodes * (1 << 36) / (rows * 92)))
    assert best.rows.memory_share < 1
    assert best.rows.nodes * (best.rows.memory_bytes + best.rows.ssd_bytes) == pytest.approx(rows * 92)
    assert best.rows.memory_bytes == best.rows.memory_there == STORE.memory_bytes
    assert best.rows.ssd_bytes <= best.rows.ssd_there == STORE.ssd_bytes
    reads = 512 * 25.0 * (1 - best.rows.memory_share)
    assert best.ssd_s == pytest.approx(reads / (SSD_READS_PER_S * lookup.nodes))
    assert best.sparse_s == pytest.approx(512 / best.sparse.throughput + best.ssd_s)


@pytest.mark.slow
def test_what_the_runtime_cannot_lay_out_is_said() -> None:
    large = TransformerShape(layers=64, hidden=8192, heads=64, vocabulary=50_000, sequence=4096, headless=True)
    many = replace(CLUSTER, kinds=(replace(GPU, count=8, accelerators=8), STORE))
    best = plan_joint(work_of(shape=large, cluster=many), cluster=many).best
    assert not best.runs
    assert best.memory.fits_in(best.device_bytes)


def test_without_accelerators_or_without_stores_there_is_no_plan() -> None:
    with pytest.raises(PlanError, match="no node has an accelerator"):
        plan_joint(work_of(), cluster=replace(CLUSTER, kinds=(STORE,)))
    with pytest.raises(PlanError, match="no nodes without accelerators for readers and servers"):
        plan_joint(work_of(), cluster=replace(CLUSTER, kinds=(GPU,)))
