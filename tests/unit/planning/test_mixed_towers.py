"""Towers on two kinds of node: when they are planned, and that nothing cheaper was overlooked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hetero.errors import PlanError
from hetero.planning.mixed import cheapest_plan, fastest_plan
from hetero.planning.plan import plan_for_throughput
from hetero.planning.tasks import Chain, Role, Task, Usage
from hetero.records.cluster import ClusterSpec, NodeKind


def kind(name: str, *, count: int, price: float) -> NodeKind:
    return NodeKind(name=name, count=count, price=price, cores=4, memory_bytes=1 << 30)


def job(rates: dict[str, float]) -> Chain:
    """Reading on `cpu`, which computes no tower; towers at so many samples a second a node."""
    return Chain(
        name="job",
        tasks=(
            Task(name="read", role=Role.READER, usage={"cpu": Usage(cpu_s=1e-3)}),
            Task(name="tower", role=Role.TOWER, usage={name: Usage(device_s=1 / rate) for name, rate in rates.items()}),
        ),
    )


CPU = kind("cpu", count=4, price=1)


def test_two_kinds_reach_what_none_of_them_does() -> None:
    cluster = ClusterSpec(name="both", kinds=(CPU, kind("fast", count=1, price=5), kind("slow", count=3, price=2)))
    chain = job({"fast": 600, "slow": 200})
    with pytest.raises(PlanError, match="out of reach"):
        plan_for_throughput([chain], cluster=cluster, throughput=900)
    plan = cheapest_plan([chain], cluster=cluster, throughput=900)
    assert plan.nodes == {"cpu": 1, "fast": 1, "slow": 2}
    assert plan.throughput == pytest.approx(1000)
    assert plan.price == pytest.approx(1 + 5 + 4)
    assert fastest_plan([chain], cluster=cluster).throughput == pytest.approx(1200)
    assert fastest_plan([chain], cluster=cluster, price=8).throughput == pytest.approx(800)
    with pytest.raises(PlanError, match="out of reach"):
        cheapest_plan([chain], cluster=cluster, throughput=5000)


@pytest.mark.parametrize("seed", range(40))
def test_no_pair_of_counts_is_cheaper(seed: int) -> None:
    generator = np.random.default_rng(seed)
    counts = [int(n) for n in generator.integers(1, 7, 2)]
    prices = [float(p) for p in generator.integers(1, 9, 2)]
    rates = [float(r) for r in generator.integers(50, 500, 2)]
    cluster = ClusterSpec(
        name="both", kinds=(CPU, *(kind(f"k{n}", count=counts[n], price=prices[n]) for n in range(2)))
    )
    wanted = float(generator.uniform(50, 2000))
    fitting = [
        nodes[0] * prices[0] + nodes[1] * prices[1] + np.ceil(wanted / 1000 - 1e-9)
        for nodes in itertools.product(range(counts[0] + 1), range(counts[1] + 1))
        if nodes[0] * rates[0] + nodes[1] * rates[1] >= wanted * (1 - 1e-9)
    ]
    chain = job({"k0": rates[0], "k1": rates[1]})
    if not fitting:
        with pytest.raises(PlanError):
            cheapest_plan([chain], cluster=cluster, throughput=wanted)
        return
    assert cheapest_plan([chain], cluster=cluster, throughput=wanted).price == pytest.approx(min(fitting))
