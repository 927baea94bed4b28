"""Every combination of the issue's list follows the serial model. Run by `make test-all`, or
`python -m pytest tests/processes/test_mesh_parity_long.py -m slow`."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from hetero.parallel.deep_tower import DeepTower
from hetero.parallel.group import Rendezvous
from hetero.parallel.mesh import Mesh
from hetero.parallel.traffic import Traffic, TrafficMeter
from hetero.records.mesh import MeshSpec, PipelineSchedule, Recompute
from tests.support.deep_runs import (
    BATCH,
    BERT,
    OPTIMIZER,
    PRELOADED,
    SEED,
    SMALL,
    Case,
    batch_of,
    check_parity,
    double,
    share_of,
    store_at,
)
from tests.support.ranks import on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]

EIGHT = replace(SMALL, layers=8)
AXES = ("pp", "dp", "shard", "tp")
SCHEDULES = {
    PipelineSchedule.GPIPE: 1,
    PipelineSchedule.ONE_F_ONE_B: 1,
    PipelineSchedule.INTERLEAVED: 2,
    PipelineSchedule.ZERO_BUBBLE: 2,
    PipelineSchedule.ZBV: 2,
}


def on(axis: str, ranks: int) -> dict[str, int]:
    """Degrees of one axis; a pipeline gets its micro-batches."""
    return {axis: ranks, "micro_batches": 4} if axis == "pp" else {axis: ranks}


@pytest.mark.parametrize("axis", AXES)
def test_every_axis_alone(axis: str) -> None:
    cases = [Case(name=f"{axis} {ranks}", mesh=double(**on(axis, ranks))) for ranks in (2, 4)]
    cases += [Case(name=f"{axis} 2, float32", mesh=MeshSpec(**on(axis, 2)))]  # type: ignore[arg-type]
    check_parity(cases, size=4)


@pytest.mark.parametrize("pair", list(combinations(AXES, 2)), ids="-".join)
def test_every_pair(pair: tuple[str, str]) -> None:
    degrees = {**on(pair[0], 2), **on(pair[1], 2)}
    check_parity(
        [
            Case(name="float64", mesh=double(**degrees)),
            Case(name="float32", mesh=MeshSpec(**degrees)),  # type: ignore[arg-type]
            Case(name="tied masked", mesh=double(**degrees), model=BERT),
        ],
        size=4,
    )


@pytest.mark.parametrize("schedule", list(PipelineSchedule), ids=lambda schedule: schedule.value)
def test_every_schedule(schedule: PipelineSchedule) -> None:
    pipe = {"schedule": schedule, "stages_per_rank": SCHEDULES[schedule]}
    check_parity(
        [
            Case(name="pp 2", mesh=double(pp=2, micro_batches=8, **pipe)),
            Case(name="pp 4", mesh=double(pp=4, micro_batches=4, **pipe), model=EIGHT),
            Case(name="pp 2 x shard 2", mesh=double(pp=2, shard=2, micro_batches=4, **pipe)),
            Case(name="tied masked", mesh=double(pp=2, micro_batches=4, **pipe), model=BERT),
        ],
        size=4,
    )


@pytest.mark.parametrize("sharding", [1, 2, 3])
def test_every_sharding_stage(sharding: int) -> None:
    check_parity(
        [
            Case(name="shard 2", mesh=double(shard=2, sharding=sharding, micro_batches=2)),
            Case(name="shard 4", mesh=double(shard=4, sharding=sharding, micro_batches=2)),
            Case(name="dp 2 x shard 2", mesh=double(dp=2, shard=2, sharding=sharding, micro_batches=2)),
            Case(name="shard 2 x tp 2", mesh=double(tp=2, shard=2, sharding=sharding, micro_batches=2)),
            Case(name="pp 2 x shard 2", mesh=double(pp=2, shard=2, sharding=sharding, micro_batches=4)),
            Case(
                name="interleaved",
                mesh=double(
                    pp=2,
                    shard=2,
                    sharding=sharding,
                    micro_batches=4,
                    schedule=PipelineSchedule.INTERLEAVED,
                    stages_per_rank=2,
                ),
            ),
        ],
        size=4,
    )


@pytest.mark.parametrize("kind", [Recompute.FULL, Recompute.SELECTIVE], ids=lambda kind: kind.value)
def test_recomputation(kind: Recompute) -> None:
    check_parity(
        [
            Case(name="tp 2", mesh=double(tp=2, recompute=kind)),
            Case(name="shard 2", mesh=double(shard=2, sharding=3, recompute=kind)),
            Case(name="pp 2", mesh=double(pp=2, micro_batches=4, recompute=kind)),
            Case(name="pp 2 x tp 2", mesh=double(pp=2, tp=2, micro_batches=4, recompute=kind)),
        ],
        size=4,
    )


def test_full_recomputation_under_zero_bubble() -> None:
    pipe = {"pp": 2, "micro_batches": 4, "stages_per_rank": 2, "recompute": Recompute.FULL}
    check_parity(
        [
            Case(name="zbv", mesh=double(schedule=PipelineSchedule.ZBV, **pipe)),
            Case(name="zero bubble", mesh=double(schedule=PipelineSchedule.ZERO_BUBBLE, **pipe)),
        ],
        size=2,
    )


def test_uneven_stages_accumulation_and_another_order_of_axes() -> None:
    check_parity(
        [
            Case(name="3 + 1", mesh=double(pp=2, micro_batches=4, blocks_per_stage=(3, 1))),
            Case(name="1 + 2 + 4 + 1", mesh=double(pp=4, micro_batches=4, blocks_per_stage=(1, 2, 4, 1)), model=EIGHT),
            Case(name="accumulation", mesh=double(dp=2, micro_batches=8)),
            Case(
                name="order",
                mesh=double(pp=2, tp=2, micro_batches=2, order=("dp", "tp", "shard", "pp")),
            ),
        ],
        size=4,
    )


def traffic_of(rank: int, size: int, meet: Rendezvous, spec: MeshSpec) -> Traffic:
    """What the second step of a small model sends."""
    store = store_at(meet, rank=rank, size=size)
    mesh = Mesh(spec, rank=rank, size=size, device=torch.device("cpu"), deadline_s=30.0, store=store)
    tower = DeepTower(SMALL, mesh=mesh, optimizer=OPTIMIZER, batch_size=BATCH, seed=SEED)
    for step in range(2):
        with TrafficMeter(mesh) as meter:
            tower.step(*share_of(mesh, *batch_of(SMALL, step)))
    mesh.close()
    traffic: Traffic = meter.traffic
    return traffic


def test_traffic_is_that_of_the_formulas() -> None:
    sums = 2 * 8  # loss and squared norm in float64, over all ranks
    activations = BATCH * SMALL.context * SMALL.width * 4
    for traffic in on_ranks(traffic_of, MeshSpec(pp=2, micro_batches=4), size=2, preload=PRELOADED).values():
        assert traffic.sent_bytes == {"pp": activations + sums}
    parameters = 4 * SMALL.parameters
    blocks = 4 * SMALL.layers * SMALL.block_parameters
    for sharding, gathered in ((1, parameters), (3, parameters + blocks)):
        spec = MeshSpec(dp=2, shard=2, sharding=sharding)
        for traffic in on_ranks(traffic_of, spec, size=4, preload=PRELOADED).values():
            assert traffic.sent_bytes["dp"] == parameters / 2
            assert traffic.sent_bytes["shard"] == gathered / 2 + parameters / 2
            assert traffic.sent_bytes["world"] == 2 * 3 / 4 * sums


def test_eight_ranks() -> None:
    check_parity([Case(name="pp 2 x shard 2 x tp 2", mesh=double(pp=2, shard=2, tp=2, micro_batches=4))], size=8)


@pytest.mark.parametrize("schedule", [PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZBV], ids=lambda s: s.value)
def test_sixteen_ranks(schedule: PipelineSchedule) -> None:
    mesh = double(pp=2, dp=2, shard=2, tp=2, micro_batches=2, schedule=schedule, stages_per_rank=SCHEDULES[schedule])
    check_parity([Case(name="all axes", mesh=mesh, steps=2)], size=16, deadline_s=160)
