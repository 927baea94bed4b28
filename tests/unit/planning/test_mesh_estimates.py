"""Memory, traffic and time of a transformer on a mesh, against figures worked out by hand and published ones."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import PlanError
from hetero.hardware.devices import device, link
from hetero.planning.memory import live_stages, peak_memory, rank_memory, state_memory
from hetero.planning.mesh import Axis, DeviceGrid, Mesh, even_split
from hetero.planning.mesh_plan import MeshPlan, ShardingStage, why_impossible
from hetero.planning.pipeline import StageTime, simulate
from hetero.planning.schedules import Pipeline, Schedule
from hetero.planning.shape import Recompute, TransformerShape
from hetero.planning.step_time import estimated, simulated
from hetero.planning.strategy_table import as_corrected, as_published, missing_from_published
from hetero.planning.traffic import traffic

GPT = TransformerShape(layers=32, hidden=4096, heads=32, vocabulary=51200, sequence=1024)
ERNIE_230B = TransformerShape(layers=127, hidden=12288, heads=96, vocabulary=51200, sequence=512)


def grid(devices: int, *, between: str = "8x-ib-edr") -> DeviceGrid:
    return DeviceGrid(
        machines=max(1, devices // 8),
        per_machine=min(8, devices),
        device=device("v100-32gb"),
        inside=link("nvlink2"),
        between=link(between),
    )


def plan(mesh: Mesh, *, shape: TransformerShape = GPT, between: str = "8x-ib-edr", **more: object) -> MeshPlan:
    return MeshPlan(shape=shape, grid=grid(mesh.size, between=between), mesh=mesh, **more)  # type: ignore[arg-type]


def test_parameters_and_flops_of_published_models() -> None:
    """GPT-3 (2005.14165): 175B. FLOPs by Megatron's formula (2104.04473), which computes forwards again."""
    gpt3 = TransformerShape(layers=96, hidden=12288, heads=96, vocabulary=50257, sequence=2048)
    assert gpt3.parameters == pytest.approx(174.6e9, rel=0.002)
    batch, s, layers, h, v = 4, 2048, 96, 12288, 50257
    theirs = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    ours = gpt3.model_flops(batch) + layers * gpt3.layer_flops(batch)
    assert ours == pytest.approx(theirs, rel=1e-3)
    gated = TransformerShape(
        layers=32, hidden=4096, heads=32, kv_heads=8, vocabulary=128256, sequence=8192, ffn=14336, matrices_of_ffn=3,
        tied=False,
    )  # fmt: skip
    assert gated.parameters - 8192 * 4096 == pytest.approx(8.03e9, rel=0.002)


def test_activations_follow_the_published_formulas() -> None:
    """2205.05198, table 2: s b h (34 + 5 a s / h), with tensor parallelism s b h (10 + 24/t + 5 a s / (h t))."""
    s, h, a = GPT.sequence, GPT.hidden, GPT.heads
    unit = 2 * s * h
    assert GPT.activation_bytes(2, recompute=Recompute.NONE) == pytest.approx(unit * (34 + 5 * a * s / h))
    got = GPT.activation_bytes(2, tensor_parallel=8, recompute=Recompute.NONE)
    assert got == pytest.approx(unit * (10 + 24 / 8 + 5 * a * s / (h * 8)))
    got = GPT.activation_bytes(2, tensor_parallel=8, sequence_parallel=True, recompute=Recompute.SELECTIVE)
    assert got == pytest.approx(unit * 34 / 8)
    assert GPT.activation_bytes(2, recompute=Recompute.FULL) == 2 * unit


@pytest.mark.parametrize(("stage", "expected"), [(1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)])
def test_sharded_state_is_zeros_formula(stage: int, expected: float) -> None:
    memory = state_memory(plan(Mesh(shard=8), sharding=ShardingStage(stage)), 1e9)
    assert memory.state == pytest.approx(expected * 1e9)


def test_live_stages_are_those_of_the_simulation() -> None:
    for schedule, chunks in ((Schedule.INTERLEAVED, 2), (Schedule.ZERO_BUBBLE, 1), (Schedule.ONE_F_ONE_B, 1)):
        pipeline = Pipeline(schedule=schedule, ranks=4, micro_batches=32, stages_per_rank=chunks)
        timeline = simulate(pipeline, stages=[StageTime(forward_s=1, backward_s=2)] * pipeline.stages)
        for rank in range(4):
            assert live_stages(pipeline, rank) == timeline.peak_activations(rank), (schedule, rank)


def test_the_first_rank_of_1f1b_needs_most_and_recomputation_less() -> None:
    whole = plan(Mesh(pp=8), micro_batches=16)
    first, last = rank_memory(whole, rank=0), rank_memory(whole, rank=7)
    assert first.activations > 4 * last.activations - GPT.logit_bytes(1) * 4
    assert peak_memory(whole).total == first.total
    less = [rank_memory(plan(Mesh(pp=8), micro_batches=16, recompute=recompute)).activations for recompute in Recompute]
    assert less == sorted(less, reverse=True)
    assert not first.fits_in(first.total - 1)


def test_traffic_of_each_axis_by_hand() -> None:
    mesh = Mesh(pp=2, dp=2, shard=2, tp=4)
    parts = traffic(plan(mesh, micro_batches=4))
    act = 2.0 * GPT.sequence * GPT.hidden
    assert parts[Axis.TENSOR].sent_bytes == pytest.approx(16 * 4 * 4 * 2 * 3 / 4 * act)
    assert parts[Axis.PIPELINE].sent_bytes == pytest.approx(4 * act)
    own = plan(mesh).parameters_of(0)
    assert parts[Axis.SHARD].sent_bytes == pytest.approx((2 * own + 2 * own) / 2)
    assert parts[Axis.DATA].sent_bytes == pytest.approx(2 * own / 2)
    assert [part.crosses for part in parts.values()] == [True, True, False, False]
    third = traffic(plan(mesh, micro_batches=4, sharding=ShardingStage.PARAMETERS))[Axis.SHARD]
    assert third.sent_bytes == pytest.approx(4 * 3 * 2 * own / 2)


def test_published_table_is_reproduced_and_its_gaps_are_named() -> None:
    """693 GB in a machine at m = 16 and 2773 GB at m = 64 for 4D, against 3.2 and 12.8 GB for MP8."""
    four_d, mp8 = Mesh(pp=32, dp=2, shard=2, tp=4), Mesh(pp=32, dp=2, tp=8)
    for count, expected in ((16, 693e9), (64, 2773e9)):
        row = as_published(plan(four_d, shape=ERNIE_230B, micro_batches=count))
        assert row.inside_bytes == pytest.approx(expected, rel=0.01)
        other = as_published(plan(mp8, shape=ERNIE_230B, micro_batches=count))
        assert other.inside_bytes == pytest.approx(count * 0.2e9, rel=0.01)
        assert row.bubble_share == other.bubble_share == pytest.approx(31 / (count + 31))
        corrected = as_corrected(plan(four_d, shape=ERNIE_230B, micro_batches=count))
        assert corrected.inside_bytes < 0.1 * row.inside_bytes
    factors = missing_from_published(plan(four_d, shape=ERNIE_230B, micro_batches=64))
    assert factors[Axis.PIPELINE] == pytest.approx(1)
    assert factors[Axis.SHARD] == pytest.approx(2 / 2 / 4 / 3 / 64, rel=0.15)
    assert factors[Axis.TENSOR] == pytest.approx(2 * 3 / 4, rel=0.01)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_estimates_are_the_simulation_where_transfers_are_fast(data: st.DataObject) -> None:
    schedule = data.draw(st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED]))
    pp, tp = data.draw(st.sampled_from([1, 2, 4, 8])), data.draw(st.sampled_from([1, 2, 4]))
    chunks = 2 if schedule is Schedule.INTERLEAVED else 1
    one = plan(
        Mesh(pp=pp, tp=tp),
        micro_batches=pp * data.draw(st.sampled_from([1, 2, 4])),
        schedule=schedule,
        stages_per_rank=chunks,
        recompute=data.draw(st.sampled_from(Recompute)),
    )
    assert estimated(one).total_s == pytest.approx(simulated(one).total_s, rel=0.06)


def test_estimates_are_close_to_the_simulation_where_transfers_are_slow() -> None:
    off = []
    for pp in (2, 4, 8):
        for count in (1, 2, 4):
            for schedule, chunks in ((Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2), (Schedule.ZERO_BUBBLE, 1)):
                one = plan(
                    Mesh(pp=pp, tp=8),
                    micro_batches=pp * count,
                    between="ib-edr",
                    schedule=schedule,
                    stages_per_rank=chunks,
                )
                off.append(abs(estimated(one).total_s / simulated(one).total_s - 1))
    assert statistics.median(off) < 0.08
    assert max(off) < 0.3


def test_places_of_axes_follow_their_order() -> None:
    mesh, machines = Mesh(pp=2, dp=2, shard=2, tp=4), grid(32)
    places = {axis: mesh.place(axis, machines) for axis in Axis}
    found = {axis: (place.inside, place.machines, place.sharing) for axis, place in places.items() if place}
    assert found == {
        Axis.PIPELINE: (1, 2, 8), Axis.DATA: (1, 2, 8), Axis.SHARD: (2, 1, 4), Axis.TENSOR: (4, 1, 2)
    }  # fmt: skip
    turned = Mesh(pp=2, dp=2, shard=2, tp=4, order=(Axis.TENSOR, Axis.DATA, Axis.SHARD, Axis.PIPELINE))
    place = turned.place(Axis.TENSOR, machines)
    assert place
    assert (place.inside, place.machines) == (1, 4)
    slow, fast = (estimated(plan(each, micro_batches=8)) for each in (turned, mesh))
    assert slow.total_s > fast.total_s


@pytest.mark.parametrize(
    ("mesh", "devices", "part"),
    [
        (Mesh(tp=4), 8, "takes 4 devices, there are 8"),
        (Mesh(tp=64), 64, "does not divide 32 heads"),
        (Mesh(pp=64), 64, "64 stages are more than 32 layers"),
        (Mesh(dp=8, shard=3), 24, "unequal parts of a dp group"),
    ],
)
def test_meshes_that_cannot_run_are_refused_with_numbers(mesh: Mesh, devices: int, part: str) -> None:
    reason = why_impossible(MeshPlan(shape=GPT, grid=grid(devices), mesh=mesh, micro_batches=6))
    assert reason is not None
    assert part in reason


def test_heads_and_schedules_that_do_not_divide_are_refused() -> None:
    narrow = TransformerShape(layers=4, hidden=64, heads=8, kv_heads=2, ffn=100, vocabulary=10, sequence=8)
    assert "2 of keys and values" in str(why_impossible(plan(Mesh(tp=4), shape=narrow)))
    odd = TransformerShape(layers=4, hidden=64, heads=8, ffn=99, vocabulary=10, sequence=8)
    assert "the width 99 of the MLP" in str(why_impossible(plan(Mesh(tp=4), shape=odd)))
    interleaved = plan(Mesh(pp=4), micro_batches=7, schedule=Schedule.INTERLEAVED, stages_per_rank=2)
    assert why_impossible(interleaved) is None
    assert "unequal length" in str(why_impossible(plan(
        Mesh(pp=4), micro_batches=9, schedule=Schedule.INTERLEAVED, stages_per_rank=2
    )))  # fmt: skip


def test_uneven_layers_go_to_the_first_stages() -> None:
    assert even_split(127, 32) == (4,) * 31 + (3,)
    with pytest.raises(PlanError):
        TransformerShape(layers=1, hidden=10, heads=3, vocabulary=10, sequence=4)
