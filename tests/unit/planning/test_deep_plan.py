"""Nodes and mesh for a deep model: what is taken, why others are not, and that the runtime can lay it out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import PlanError
from hetero.parallel.compose import check_mesh
from hetero.planning.deep_plan import DeepPlan, plan_deep
from hetero.records.cluster import ClusterSpec, NodeKind
from hetero.records.deep_job import DeepJobSpec, TextSpec
from hetero.records.mesh import DeepOptimizerSpec, DeepPrecision, MeshSpec
from hetero.records.transformer import TransformerSpec

FAST = NodeKind(
    name="fast",
    count=3,
    price=20.0,
    cores=32,
    memory_bytes=1 << 38,
    network_bytes_per_s=2.5e10,
    accelerator="a100-80gb",
    accelerators=4,
)
SLOW = replace(FAST, name="slow", price=2.0, accelerator="t4", accelerators=1, network_bytes_per_s=1.25e9)
STORE = NodeKind(name="store", count=4, price=0.5, cores=16, memory_bytes=1 << 36)
CLUSTER = ClusterSpec(name="mixed", kinds=(STORE, FAST, SLOW))
MODEL = TransformerSpec(layers=24, width=1024, heads=16, kv_heads=8, hidden=2816, vocabulary=32_000, context=512)


def job_of(
    *, model: TransformerSpec = MODEL, batch: int = 64, precision: DeepPrecision = DeepPrecision.BF16
) -> DeepJobSpec:
    return DeepJobSpec(
        name="words",
        seed=1,
        text=TextSpec(train="t", validation=None, vocabulary=model.vocabulary),
        model=model,
        mesh=MeshSpec(precision=precision),
        optimizer=DeepOptimizerSpec(steps=6),
        batch_size=batch,
        steps=6,
    )


def test_the_fastest_is_the_fastest_of_all_that_was_tried() -> None:
    found = plan_deep(job_of(), cluster=CLUSTER)
    plans = [plan for _, plan in found.tried if isinstance(plan, DeepPlan)]
    assert [name for name, _ in found.tried] == ["1 x fast", "2 x fast", "3 x fast", "1 x slow", "2 x slow", "3 x slow"]
    assert found.best.samples_per_s == max(plan.samples_per_s for plan in plans)
    assert found.best.kind == "fast"
    for plan in found.front:
        assert not any(o.price <= plan.price and o.samples_per_s > plan.samples_per_s for o in plans)
    speeds = [plan.samples_per_s for plan in found.front]
    assert speeds == sorted(speeds)


def test_the_cheapest_for_a_speed_and_the_fastest_for_a_price() -> None:
    fastest = plan_deep(job_of(), cluster=CLUSTER)
    plans = {name: plan for name, plan in fastest.tried if isinstance(plan, DeepPlan)}
    wanted = 0.9 * plans["1 x slow"].samples_per_s
    assert plan_deep(job_of(), cluster=CLUSTER, throughput=wanted).best.name == "1 x slow"
    bought = plan_deep(job_of(), cluster=CLUSTER, price=4.5).best
    assert bought.samples_per_s == max(p.samples_per_s for p in plans.values() if p.price <= 4.5)


def test_what_cannot_be_done_says_what_was_tried() -> None:
    with pytest.raises(PlanError, match=r"at 1e\+09 sequences/s: 1 x fast: .* sequences/s for 20.00; 2 x fast"):
        plan_deep(job_of(), cluster=CLUSTER, throughput=1e9)
    with pytest.raises(PlanError, match="none has an accelerator"):
        plan_deep(job_of(), cluster=replace(CLUSTER, kinds=(STORE,)))
    with pytest.raises(PlanError, match="fp64 has no rate"):
        plan_deep(job_of(precision=DeepPrecision.FP64), cluster=CLUSTER)
    huge = replace(MODEL, layers=96, width=12288, heads=96, kv_heads=96, hidden=49152)
    with pytest.raises(PlanError, match=r"1 x slow: no mesh of 1 x t4 trains .* needs"):
        plan_deep(job_of(model=huge), cluster=CLUSTER)


def test_a_device_without_bf16_is_planned_at_its_fp32_rate() -> None:
    only = replace(CLUSTER, kinds=(replace(SLOW, count=1),))
    half, single, bf16 = (
        plan_deep(job_of(precision=precision), cluster=only).best.samples_per_s
        for precision in (DeepPrecision.FP16, DeepPrecision.FP32, DeepPrecision.BF16)
    )
    assert half > 4 * bf16
    assert bf16 == pytest.approx(single, rel=0.1)


@settings(max_examples=25, deadline=None)
@given(
    layers=st.integers(1, 12),
    heads=st.sampled_from([2, 4, 6, 8]),
    kv_share=st.sampled_from([1, 2]),
    batch=st.integers(1, 48),
    context=st.sampled_from([24, 64, 100]),
    vocabulary=st.sampled_from([96, 1000]),
    precision=st.sampled_from([DeepPrecision.FP32, DeepPrecision.BF16]),
    counts=st.tuples(st.integers(1, 3), st.integers(1, 8)),
)
def test_every_plan_can_be_laid_out(
    layers: int,
    heads: int,
    kv_share: int,
    batch: int,
    context: int,
    vocabulary: int,
    precision: DeepPrecision,
    counts: tuple[int, int],
) -> None:
    model = replace(
        MODEL,
        layers=layers,
        width=32 * heads,
        heads=heads,
        kv_heads=heads // kv_share,
        hidden=96 * heads,
        context=context,
        vocabulary=vocabulary,
    )
    job = job_of(model=model, batch=batch, precision=precision)
    nodes, accelerators = counts
    cluster = replace(CLUSTER, kinds=(replace(FAST, count=nodes, accelerators=accelerators),))
    try:
        found = plan_deep(job, cluster=cluster)
    except PlanError:
        return
    for _, plan in found.tried:
        if isinstance(plan, DeepPlan):
            check_mesh(plan.mesh, model=model, batch_size=batch, ranks=plan.nodes * accelerators)
