"""The search over meshes: equal to trying everything, explained, and quick for very large models."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from hetero.errors import PlanError
from hetero.hardware.devices import device, link
from hetero.planning.memory import peak_memory
from hetero.planning.mesh import Axis, DeviceGrid
from hetero.planning.mesh_plan import MeshPlan, ShardingStage, why_impossible
from hetero.planning.mesh_search import Space, meshes, search
from hetero.planning.schedules import Schedule
from hetero.planning.shape import Recompute, TransformerShape
from hetero.planning.step_time import estimated, simulated

SHAPE = TransformerShape(layers=24, hidden=2048, heads=16, vocabulary=50257, sequence=1024)


def grid(machines: int, name: str = "v100-32gb") -> DeviceGrid:
    return DeviceGrid(
        machines=machines, per_machine=4, device=device(name), inside=link("nvlink2"), between=link("ib-hdr")
    )


def test_the_best_is_the_best_of_everything_tried_by_hand() -> None:
    machines = grid(2)
    space = Space(finalists=100, schedules=((Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2)), micro_batches=(1, 2))
    found = search(SHAPE, grid=machines, global_batch=16, space=space)
    fits = []
    for mesh in meshes(machines, space):
        for schedule, chunks in space.schedules:
            for size in space.micro_batches:
                for recompute in Recompute:
                    for sharding in ShardingStage:
                        if 16 % (size * mesh.data_ways) or mesh.tp > 4:
                            continue
                        one = MeshPlan(
                            shape=SHAPE,
                            grid=machines,
                            mesh=mesh,
                            micro_batch=size,
                            micro_batches=16 // size // mesh.data_ways,
                            schedule=schedule,
                            stages_per_rank=chunks,
                            recompute=recompute,
                            sharding=sharding,
                            sequence_parallel=mesh.tp > 1,
                        )
                        if mesh.pp == 1 and chunks > 1:
                            continue
                        if why_impossible(one) is None and peak_memory(one).fits_in(
                            0.94 * machines.device.memory_bytes
                        ):
                            fits.append(estimated(one).total_s)
    assert min(fits) == pytest.approx(min(estimated(candidate.plan).total_s for candidate in found.best))
    assert found.best[0].was_simulated
    assert found.best[0].time.total_s == simulated(found.best[0].plan).total_s


def test_every_mesh_is_taken_or_explained() -> None:
    machines, space = grid(2, "t4"), Space()
    found = search(SHAPE, grid=machines, global_batch=16, space=space)
    named = [str(rejection.mesh) for rejection in found.rejections] + [str(found.best[0].plan.mesh)]
    assert sorted(named) == sorted(str(mesh) for mesh in meshes(machines, space))
    reasons = {str(rejection.mesh): rejection.reason for rejection in found.rejections}
    assert "leaves the machine of 4 devices" in reasons["tp8"]
    assert any("times the step of the best" in reason for reason in reasons.values())
    assert "needs" in reasons["dp8"]


def test_orders_of_axes_are_priced_when_asked_for() -> None:
    turned = (Axis.DATA, Axis.PIPELINE, Axis.SHARD, Axis.TENSOR)
    both = replace(Space(), orders=(Space().orders[0], turned))
    found = search(SHAPE, grid=grid(4), global_batch=32, space=both)
    assert {rejection.mesh.order for rejection in found.rejections} == set(both.orders)


def test_a_model_that_fits_nowhere_is_refused_with_demand_and_remedies() -> None:
    large = TransformerShape(layers=96, hidden=12288, heads=96, vocabulary=50257, sequence=2048)
    with pytest.raises(PlanError, match=r"no mesh of 8 x v100-32gb trains 1\.7\de\+11 .*needs .* GiB .*\(1\) more"):
        search(large, grid=grid(2), global_batch=64)


def test_a_batch_that_no_mesh_divides_is_named() -> None:
    found = search(SHAPE, grid=grid(2), global_batch=2)
    assert any("8 data ways do not divide a batch of 2" in rejection.reason for rejection in found.rejections)


@pytest.mark.slow
def test_a_trillion_parameters_are_planned_in_seconds() -> None:
    """Megatron's largest (2104.04473, table 1), 1,008B, on 512 machines of four devices."""
    shape = TransformerShape(layers=128, hidden=25600, heads=160, vocabulary=51200, sequence=2048)
    started = time.process_time()
    found = search(shape, grid=grid(512, "a100-80gb"), global_batch=2048)
    assert time.process_time() - started < 20
    assert found.best[0].time.utilization > 0.3
