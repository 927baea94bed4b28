"""The exact search for splits of the work: against baselines, at size, and the published cases of mixed clusters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.planner_baselines import BASELINES, Scheduler
from benchmarks.report import Report
from hetero.planning.plan import plan_for_budget, plan_for_throughput
from hetero.planning.segments import Segments
from hetero.planning.split import cheapest
from hetero.planning.tasks import Chain, Role, Task, Usage
from hetero.records.cluster import ClusterSpec, NodeKind

Row = Callable[..., None]
CPU_CORE_PRICE, V100_PRICE = 0.04, 2.42
"""Dollars an hour: HeterPS (2111.10635), as recalled in the field notes."""

FOUR_GPU_RATE, MIXED_RATE, SAVING = 115_789.0, 106_796.0, 0.35
"""FleetX, distributed_overview.md, figure 18: 4 GPU nodes, 2 GPU + 2 CPU nodes, and "at least 35%" saved."""

HIERPS = {
    "A": (100, 1.8, 4.4),
    "B": (80, 2.7, 5.4),
    "C": (75, 4.8, 9.0),
    "D": (150, 2.2, 8.4),
    "E": (128, 2.6, 8.3),
}
"""MPI nodes, speedup of 4 GPU nodes, cost-normalized speedup: 2003.05622, as recalled in the field notes."""


def splits(report: Report, row: Row, *, quick: bool) -> None:
    """All of it."""
    small(report, row, count=20 if quick else 100)
    baselines(report, row, count=5 if quick else 20)
    large(report, row)
    mixed_cluster(report, row)
    hierps(report, row)


def random_job(generator: np.random.Generator, *, tasks: int, kinds: int, nodes: int) -> tuple[Chain, ClusterSpec]:
    """Tasks whose seconds, bytes and best kind vary as those of sparse and dense layers do."""
    cluster = ClusterSpec(
        name="random",
        kinds=tuple(
            NodeKind(
                name=f"kind{number}",
                count=nodes,
                price=float(generator.uniform(0.5, 5)),
                cores=16,
                memory_bytes=1 << 38,
                network_bytes_per_s=float(generator.choice([1.25e9, 3e9, 12.5e9])),
            )
            for number in range(kinds)
        ),
    )
    return Chain(
        name="random",
        tasks=tuple(
            Task(
                name=f"task{number}",
                role=Role.TOWER,
                usage={kind.name: Usage(cpu_s=float(generator.lognormal(-11, 1))) for kind in cluster.kinds},
                output_bytes=float(generator.lognormal(7, 1)),
                parallel=float(generator.uniform(0.99, 1)),
            )
            for number in range(tasks)
        ),
    ), cluster


def small(report: Report, row: Row, *, count: int) -> None:
    """Where trying every choice takes seconds: the search may only be better, as it may cut runs of one kind too."""
    worse, solved = 0, 0
    for seed in range(count):
        generator = np.random.default_rng(seed)
        chain, cluster = random_job(generator, tasks=6, kinds=3, nodes=int(generator.integers(3, 12)))
        segments = Segments(chain, cluster)
        wanted = float(generator.uniform(1e4, 1e5))
        answer, brute = cheapest(segments, throughput=wanted), Scheduler(segments, throughput=wanted).brute_force()
        price = np.inf if answer.split is None else answer.split.price
        solved += answer.split is not None
        worse += not answer.proven or price > brute * (1 + 1e-9)
    row(report, "split", f"{count} jobs of 6 tasks on 3 kinds", "solvable", solved)
    report.check("split: times the search is not proven, or dearer than trying every choice", worse, at_most=0)


def baselines(report: Report, row: Row, *, count: int) -> None:
    """16 tasks as in the paper's CTRDNN, 4 kinds."""
    ratios: dict[str, list[float]] = {name: [] for name in BASELINES}
    seconds = dict.fromkeys(("exact", *BASELINES), 0.0)
    for seed in range(count):
        chain, cluster = random_job(np.random.default_rng(seed), tasks=16, kinds=4, nodes=200)
        segments, wanted = Segments(chain, cluster), 2e4
        started = time.process_time()
        answer = cheapest(segments, throughput=wanted)
        seconds["exact"] += time.process_time() - started
        assert answer.split is not None
        for name, schedule in BASELINES.items():
            started = time.process_time()
            ratios[name].append(schedule(Scheduler(segments, throughput=wanted, seed=seed)) / answer.split.price)
            seconds[name] += time.process_time() - started
    row(report, "split baselines", "exact", "ms of CPU a job", 1e3 * seconds["exact"] / count)
    for name, each in ratios.items():
        row(report, "split baselines", name, "median cost / exact", float(np.median(each)))
        row(report, "split baselines", name, "worst cost / exact", max(each))
        row(report, "split baselines", name, "ms of CPU a job", 1e3 * seconds[name] / count)
    least = min(min(each) for each in ratios.values())
    report.check("split: least cost of any baseline / exact", least, at_least=1 - 1e-9)


def large(report: Report, row: Row) -> None:
    """100 tasks: first with nodes to spare, then with a tenth less of each kind than the cheapest split takes."""
    wanted, case = 6e5, "100 tasks x 6 kinds x 1,000 nodes of each"
    chain, cluster = random_job(np.random.default_rng(0), tasks=100, kinds=6, nodes=1000)
    started = time.process_time()
    answer = cheapest(Segments(chain, cluster), throughput=wanted)
    seconds = time.process_time() - started
    assert answer.split is not None
    used = [sum(each.nodes for each in answer.split.stages if each.segment.kind == kind) for kind in range(6)]
    row(report, "split", case, "nodes taken", sum(used))
    row(report, "split", case, "proven best", str(answer.proven))
    report.check("split: 100 tasks x 6 kinds x 1,000 nodes, seconds of CPU", seconds, at_most=1)
    kinds = zip(cluster.kinds, used, strict=True)
    few = replace(cluster, kinds=tuple(replace(kind, count=max(50, count * 9 // 10)) for kind, count in kinds))
    started = time.process_time()
    tight = cheapest(Segments(chain, few), throughput=wanted)
    case = "the same, with a tenth fewer of each kind than that"
    row(report, "split", case, "seconds of CPU", time.process_time() - started)
    row(report, "split", case, "proven best", str(tight.proven))
    if tight.split is not None:
        row(report, "split", case, "price / what none is below", tight.split.price / tight.bound)


def mixed_cluster(report: Report, row: Row) -> None:
    """Assumed: on a GPU node host and device work in turn (no overlap), CPU nodes have the same CPUs, and the GPU is
    what 2 + 2 nodes wait for. Then the two published rates give the seconds of both parts, and the saving the price."""
    device_s = 2 / MIXED_RATE
    host_s = 4 / FOUR_GPU_RATE - device_s
    gpu_price = 1.0
    cpu_price = ((1 - SAVING) * MIXED_RATE / FOUR_GPU_RATE * 4 - 2) / 2
    cluster = ClusterSpec(
        name="figure 18",
        kinds=(
            NodeKind(name="gpu", count=4, price=gpu_price, cores=40, memory_bytes=1 << 38),
            NodeKind(name="cpu", count=4, price=cpu_price, cores=40, memory_bytes=1 << 38),
        ),
    )
    host = {"gpu": Usage(cpu_s=host_s), "cpu": Usage(cpu_s=host_s)}
    chain = Chain(
        name="figure 18",
        tasks=(
            Task(name="read and lookup", role=Role.SERVER, usage=host),
            Task(name="tower", role=Role.TOWER, usage={"gpu": Usage(device_s=device_s)}),
        ),
        overlap=0.0,
    )
    all_gpu = plan_for_budget([chain], cluster=ClusterSpec(name="4 GPU", kinds=cluster.kinds[:1]))
    mixed = plan_for_throughput([chain], cluster=cluster, throughput=MIXED_RATE * (1 - 1e-9))
    case = "FleetX figure 18"
    row(report, case, "derived", "host microseconds a sample", 1e6 * host_s)
    row(report, case, "derived", "device microseconds a sample", 1e6 * device_s)
    row(report, case, "derived", "price of a CPU node / a GPU node", cpu_price)
    row(report, case, "4 GPU nodes", "samples/s", all_gpu.throughput, FOUR_GPU_RATE)
    row(report, case, f"cheapest at {MIXED_RATE:,.0f} samples/s", "nodes", str(mixed.nodes), "2 GPU + 2 CPU")
    row(report, case, "mixed / 4 GPU", "speed", mixed.throughput / all_gpu.throughput, 0.922)
    saved = 1 - mixed.cost_per_million / all_gpu.cost_per_million
    row(report, case, "mixed / 4 GPU", "saved of the cost of a sample", saved, f">= {SAVING}")
    report.check("figure 18: speed of the mixed plan / of 4 GPU: distance from 0.922",
                 abs(mixed.throughput / all_gpu.throughput - 0.922), at_most=0.005)  # fmt: skip
    report.check("figure 18: share of the cost saved", saved, at_least=0.349)
    report.check("figure 18: GPU and CPU nodes of the plan", float(mixed.nodes == {"gpu": 2, "cpu": 2}), at_least=1)


def hierps(report: Report, row: Row) -> None:
    """Assumed: a GPU node costs as much as 10 CPU nodes (the paper), and nodes of a kind add up."""
    worst = 0.0
    for model, (mpi_nodes, speedup, published) in HIERPS.items():
        kinds = (
            NodeKind(name="gpu", count=4, price=10.0, cores=48, memory_bytes=1 << 40),
            NodeKind(name="cpu", count=mpi_nodes, price=1.0, cores=16, memory_bytes=1 << 37),
        )
        usage = {"cpu": Usage(cpu_s=float(mpi_nodes)), "gpu": Usage(device_s=4 / speedup)}
        chain = Chain(name=model, tasks=(Task(name="all", role=Role.TOWER, usage=usage),))
        plans = [plan_for_budget([chain], cluster=ClusterSpec(name=kind.name, kinds=(kind,))) for kind in kinds]
        gained = plans[1].cost_per_million / plans[0].cost_per_million
        worst = max(worst, abs(gained / published - 1))
        row(report, "HierPS", f"model {model}: 4 GPU nodes, {mpi_nodes} MPI nodes", "cost-normalized speedup",
            gained, published)  # fmt: skip
    report.check("HierPS: cost-normalized speedups, worst error", worst, at_most=0.03)
