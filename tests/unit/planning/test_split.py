"""The exact search against trying everything, and what its plans and explanations say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from hetero.errors import PlanError
from hetero.planning.plan import Plan, pareto, plan_for_budget, plan_for_throughput
from hetero.planning.segments import Segment, Segments
from hetero.planning.split import Split, Stage, cheapest, split_of
from hetero.planning.split_explain import explain
from hetero.planning.tasks import Chain, Role, Task, Usage
from hetero.records.cluster import ClusterSpec, NodeKind


def random_instance(generator: np.random.Generator, *, tasks: int, nodes: int) -> tuple[Chain, ClusterSpec]:
    """Up to 3 kinds of node, with all that the model has: serial parts, bytes, memory, two engines."""
    kinds = tuple(
        NodeKind(
            name=f"kind{number}",
            count=int(generator.integers(1, nodes + 1)),
            price=float(generator.integers(1, 9)),
            cores=4,
            memory_bytes=int(generator.integers(1, 5)),
            network_bytes_per_s=float(generator.choice([5.0, 50.0])),
        )
        for number in range(generator.integers(1, 4))
    )
    chain = tuple(
        Task(
            name=f"task{number}",
            role=Role.TOWER,
            usage={
                kind.name: Usage(cpu_s=float(generator.uniform(0, 1)), device_s=float(generator.uniform(0, 1)))
                for kind in kinds
                if generator.random() < 0.8
            },
            output_bytes=float(generator.choice([0.0, 1.0, 10.0])),
            memory_bytes=float(generator.choice([0.0, 0.0, 3.0])),
            begins=number == 0 or bool(generator.random() < 0.8),
            parallel=float(generator.choice([1.0, 0.9])),
        )
        for number in range(generator.integers(1, tasks + 1))
    )
    return Chain(name="chain", tasks=chain, overlap=float(generator.choice([0.0, 1.0]))), ClusterSpec(
        name="small", kinds=kinds
    )


def every_split(segments: Segments) -> Iterator[Split]:
    """All cuts, kinds and counts within the limits, from the definition of a stage's speed alone."""
    count, kinds = len(segments.chain.tasks), segments.cluster.kinds
    for cuts in itertools.product([False, True], repeat=count - 1):
        edges = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), count]
        runs = list(itertools.pairwise(edges))
        for chosen in itertools.product(range(len(kinds)), repeat=len(runs)):
            rooms = [range(1, kinds[kind].count + 1) for kind in chosen]
            for nodes in itertools.product(*rooms):
                used = [0] * len(kinds)
                for kind, number in zip(chosen, nodes, strict=True):
                    used[kind] += number
                if any(number > kind.count for number, kind in zip(used, kinds, strict=True)):
                    continue
                yield split_of(
                    segments,
                    tuple(
                        Stage(segment=Segment(start=start, stop=stop, kind=kind), nodes=number)
                        for (start, stop), kind, number in zip(runs, chosen, nodes, strict=True)
                    ),
                )


def speed(chain: Chain, cluster: ClusterSpec, split: Split) -> float:
    """Throughput by the formulas, task by task, without the arrays of the search; 0 for what cannot be run."""
    slowest = math.inf
    for stage in split.stages:
        kind = cluster.kinds[stage.segment.kind]
        tasks = chain.tasks[stage.segment.start : stage.segment.stop]
        if any(kind.name not in task.usage for task in tasks) or not tasks[0].begins:
            return 0.0
        if sum(task.memory_bytes for task in tasks) > stage.nodes * (kind.memory_bytes + kind.ssd_bytes):
            return 0.0
        parts = []
        for serial in (True, False):
            shares = [1 - task.parallel if serial else task.parallel for task in tasks]
            cpu = sum(task.usage[kind.name].cpu_s * share for task, share in zip(tasks, shares, strict=True))
            device = sum(task.usage[kind.name].device_s * share for task, share in zip(tasks, shares, strict=True))
            parts.append(Usage(cpu_s=cpu, device_s=device).seconds(chain.overlap))
        start, stop = stage.segment.start, stage.segment.stop
        received = chain.tasks[start - 1].output_bytes if start else 0.0
        sent = chain.tasks[stop - 1].output_bytes if stop < len(chain.tasks) else 0.0
        moving = max(received, sent) / kind.network_bytes_per_s / stage.nodes
        seconds = max(parts[0] + parts[1] / stage.nodes, moving)
        slowest = min(slowest, 1 / seconds if seconds else math.inf)
    return slowest


def test_exact_search_equals_brute_force_on_random_instances() -> None:
    assert compared(range(40), tasks=3, nodes=3) > 12


@pytest.mark.slow
def test_exact_search_equals_brute_force_on_500_random_instances() -> None:
    assert compared(range(500), tasks=3, nodes=3) > 150


@pytest.mark.slow
def test_exact_search_equals_brute_force_on_larger_instances() -> None:
    assert compared(range(1000, 1200), tasks=5, nodes=4) > 60


def compared(seeds: range, *, tasks: int, nodes: int) -> int:
    """The cheapest for a wanted throughput, and the fastest within the nodes for some money; how many were solvable."""
    solved = 0
    for number in seeds:
        generator = np.random.default_rng(number)
        chain, cluster = random_instance(generator, tasks=tasks, nodes=nodes)
        segments = Segments(chain, cluster)
        splits = [(speed(chain, cluster, split), split.price) for split in every_split(segments)]
        able = [(rate, price) for rate, price in splits if rate > 0]
        wanted = float(generator.uniform(0.2, 1.2)) * max((rate for rate, _ in able if rate < 1e9), default=1.0)
        expected = min((price for rate, price in able if rate >= wanted), default=None)
        answer = cheapest(segments, throughput=wanted)
        assert answer.proven
        assert (None if answer.split is None else pytest.approx(answer.split.price)) == expected, number
        if answer.split is not None:
            assert speed(chain, cluster, answer.split) >= wanted * (1 - 1e-9)
            solved += 1
        if number % 4 == 0:
            _compare_fastest(chain, cluster, able, money=float(generator.uniform(2, 20)))
    return solved


def _compare_fastest(chain: Chain, cluster: ClusterSpec, able: list[tuple[float, float]], *, money: float) -> None:
    fastest = max((rate for rate, price in able if price <= money), default=None)
    if fastest is None:
        with pytest.raises(PlanError):
            plan_for_budget([chain], cluster=cluster, price=money)
    elif fastest < 1e9:
        plan = plan_for_budget([chain], cluster=cluster, price=money)
        assert plan.throughput == pytest.approx(fastest, rel=1e-6)
        assert plan.price <= money
        assert plan.proven


CPU = NodeKind(
    name="cpu", count=20, price=0.5, cores=32, memory_bytes=256 << 30, network_bytes_per_s=3e9, labels={"role": "cpu"}
)
GPU = NodeKind(
    name="gpu", count=4, price=2.5, cores=8, memory_bytes=64 << 30, network_bytes_per_s=3e9, accelerator="v100-32gb",
    accelerators=1, labels={"role": "gpu"},
)  # fmt: skip
CLUSTER = ClusterSpec(name="mixed", kinds=(CPU, GPU))


def wide_and_deep(*, name: str = "pooled on server", lookup_bytes: float = 2e3, rows_gib: float = 600) -> Chain:
    def usage(cpu_node: float, gpu_node: float, device: float = 0.0) -> dict[str, Usage]:
        return {"cpu": Usage(cpu_s=cpu_node), "gpu": Usage(cpu_s=gpu_node, device_s=device)}

    tower = {"cpu": Usage(cpu_s=60e-6), "gpu": Usage(cpu_s=1e-6, device_s=4e-6)}
    return Chain(
        name=name,
        tasks=(
            Task(name="read", role=Role.READER, usage=usage(2e-6, 8e-6), output_bytes=300),
            Task(name="parse", role=Role.READER, usage=usage(3e-6, 12e-6), output_bytes=400, begins=False),
            Task(name="dedup", role=Role.READER, usage=usage(1e-6, 4e-6), output_bytes=300, begins=False),
            Task(
                name="lookup",
                role=Role.SERVER,
                usage=usage(4e-6, 16e-6),
                output_bytes=lookup_bytes,
                memory_bytes=rows_gib * 2**30,
            ),
            Task(name="tower", role=Role.TOWER, usage=tower, begins=True),
        ),
    )


def test_a_mixed_cluster_puts_each_task_where_it_is_cheapest() -> None:
    plan = plan_for_throughput([wide_and_deep()], cluster=CLUSTER, throughput=400_000)
    by_task = {task: stage for stage in plan.stages for task in stage.tasks}
    assert by_task["tower"].kind == "gpu"
    assert by_task["lookup"].kind == "cpu"
    assert by_task["read"] is by_task["dedup"]
    assert plan.throughput >= 400_000
    assert plan.price == pytest.approx(sum(stage.price for stage in plan.stages))
    assert plan.nodes["gpu"] == 2
    assert plan.cost_per_million == pytest.approx(plan.price / 3600 / plan.throughput * 1e6)


def test_memory_of_rows_asks_for_nodes() -> None:
    plan = plan_for_throughput([wide_and_deep()], cluster=CLUSTER, throughput=1000)
    assert next(stage for stage in plan.stages if "lookup" in stage.tasks).nodes >= 3


def test_where_lookups_are_pooled_follows_from_the_bytes() -> None:
    chains = [wide_and_deep(name="pooled on server"), wide_and_deep(name="pooled on tower", lookup_bytes=40e3)]
    plan = plan_for_throughput(chains, cluster=CLUSTER, throughput=300_000)
    assert plan.chain == "pooled on server"
    reasons = {each.what: each.reason for each in explain(plan, chains=chains, cluster=CLUSTER)}
    assert "costs" in reasons["pooled on tower instead of pooled on server"]


def test_every_alternative_is_explained_and_none_is_better() -> None:
    chains = [wide_and_deep()]
    plan = plan_for_throughput(chains, cluster=CLUSTER, throughput=400_000)
    alternatives = explain(plan, chains=chains, cluster=CLUSTER)
    what = {each.what for each in alternatives}
    assert {"everything on cpu", "everything on gpu", "tower on cpu", "lookup on gpu"} <= what
    for each in alternatives:
        assert each.price is None or each.price >= plan.price * (1 - 1e-9), each
        assert each.reason
    reasons = {each.what: each.reason for each in alternatives}
    assert "takes" in reasons["everything on cpu"]
    assert "there are 20" in reasons["everything on cpu"]


def test_the_front_rises_in_both() -> None:
    front = pareto([wide_and_deep()], cluster=CLUSTER, points=8)
    assert len(front) >= 3
    for before, after in itertools.pairwise(front):
        assert after.price > before.price
        assert after.throughput > before.throughput
    fastest = plan_for_budget([wide_and_deep()], cluster=CLUSTER)
    assert front[-1].throughput == pytest.approx(fastest.throughput, rel=1e-6)


def test_what_is_out_of_reach_names_the_task_that_holds_it_up() -> None:
    with pytest.raises(PlanError, match=r"out of reach .* held up by .* \(1\) ask for less"):
        plan_for_throughput([wide_and_deep()], cluster=CLUSTER, throughput=1e9)


def test_rows_that_fit_nowhere_are_refused_with_demand_and_capacity() -> None:
    with pytest.raises(PlanError, match=r"task `lookup` needs 900,000\.0 GiB on nodes of one kind"):
        plan_for_budget([wide_and_deep(rows_gib=900_000)], cluster=CLUSTER)


def test_a_task_no_kind_can_run_is_named_with_the_reason() -> None:
    task = Task(name="tower", role=Role.TOWER, usage={}, reasons={"cpu": "needs an accelerator"})
    with pytest.raises(PlanError, match=r"can run task `tower`.*needs an accelerator"):
        plan_for_budget([Chain(name="one", tasks=(task,))], cluster=CLUSTER)


@pytest.mark.parametrize(
    ("tasks", "part"),
    [
        ((), "has no tasks"),
        ((Task(name="a", role=Role.TOWER, usage={}, begins=False),), "must begin a stage"),
        ((Task(name="a", role=Role.TOWER, usage={}, parallel=0.0),), "above 0 and at most 1"),
    ],
)
def test_chains_that_make_no_sense_are_refused(tasks: tuple[Task, ...], part: str) -> None:
    with pytest.raises(PlanError, match=part):
        Chain(name="bad", tasks=tasks)


def test_nothing_to_plan_is_refused() -> None:
    with pytest.raises(PlanError, match="no profile"):
        plan_for_budget([], cluster=CLUSTER)
    with pytest.raises(PlanError, match="no kinds of node"):
        plan_for_budget([wide_and_deep()], cluster=ClusterSpec(name="none", kinds=()))


def test_plans_are_reproducible() -> None:
    plans: set[Plan] = {plan_for_budget([wide_and_deep()], cluster=CLUSTER, price=9) for _ in range(3)}
    assert len(plans) == 1
