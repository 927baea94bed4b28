"""What does not go together on a mesh is refused with value, limit and the nearest choice that does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.errors import JobError
from hetero.parallel.compose import blocks_per_stage, check_mesh, nearest_divisor
from hetero.parallel.mesh import place_of
from hetero.parallel.parts import rank_of_stage, stages_of_rank
from hetero.records.mesh import AXES, MeshSpec, PipelineSchedule, Recompute
from hetero.records.transformer import TransformerSpec

MODEL = TransformerSpec(layers=8, width=48, heads=12, kv_heads=6, hidden=96, vocabulary=60, context=32)
ZERO_BUBBLE = PipelineSchedule.ZERO_BUBBLE
PIPE = MeshSpec(pp=2, micro_batches=4)


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        (MeshSpec(pp=0), "mesh.pp: is 0; an axis has at least 1 rank"),
        (
            MeshSpec(order=("tp", "pp", "dp")),
            r"mesh.order: holds tp, pp, dp; it must hold each of pp, dp, shard, tp once",
        ),
        (MeshSpec(sharding=4), "mesh.sharding: stage 4 does not exist; take 1, 2 or 3"),
        (MeshSpec(micro_batches=0), "mesh.micro_batches: is 0; it must be at least 1"),
        (MeshSpec(dp=5), r"48 sequences do not divide into 5 data ways \(dp 5 x shard 1\) of 1 .* does: 50"),
        (MeshSpec(dp=2, micro_batches=100), "nearest that does: 200"),
        (MeshSpec(tp=4), r"kv_heads 6 does not divide by tp 4, and a head .*; take tp 3, or kv_heads 8"),
        (MeshSpec(tp=5), r"vocabulary|hidden 96 does not divide by tp 5.*; take tp 4, or hidden 100"),
        (replace(PIPE, pp=9, micro_batches=16), r"mesh.pp: 9 stages \(pp 9 x 1 a rank\) of 8 blocks"),
        (replace(PIPE, blocks_per_stage=(4, 2, 2)), "has 3 entries, pp 2 x stages_per_rank 1 makes 2 stages"),
        (replace(PIPE, blocks_per_stage=(5, 4)), r"\[5, 4\] hold 9 blocks, the model has 8"),
        (replace(PIPE, blocks_per_stage=(8, 0)), "every stage needs one"),
        (replace(PIPE, stages_per_rank=2), "1f1b has one stage a rank, not 2; take interleaved_1f1b"),
        (replace(PIPE, schedule=PipelineSchedule.ZBV), "zbv has two stages a rank, not 1; take stages_per_rank 2"),
        (replace(PIPE, schedule=PipelineSchedule.INTERLEAVED), "interleaved_1f1b with one stage a rank is 1f1b"),
        (replace(PIPE, micro_batches=1), "1 cannot fill a pipeline of pp 2; take at least 2"),
        (MeshSpec(stages_per_rank=2), "is 2 with pp 1; without a pipeline take 1"),
        (
            MeshSpec(pp=3, micro_batches=8, schedule=PipelineSchedule.INTERLEAVED, stages_per_rank=2),
            None,
        ),
        (
            MeshSpec(pp=2, micro_batches=6, schedule=PipelineSchedule.INTERLEAVED, stages_per_rank=2),
            None,
        ),
        (
            replace(PIPE, schedule=ZERO_BUBBLE, stages_per_rank=2, recompute=Recompute.SELECTIVE),
            "selective recomputation .*; take recompute full or none, or schedule interleaved_1f1b",
        ),
        (
            replace(PIPE, schedule=ZERO_BUBBLE, stages_per_rank=2, shard=2, sharding=3),
            "stage 3 reduces gradients after every micro-batch.*; take sharding 1, or schedule interleaved_1f1b",
        ),
    ],
)
def test_refusals(mesh: MeshSpec, words: str | None) -> None:
    if words is None:
        check_mesh(mesh, model=MODEL, batch_size=48)
        return
    with pytest.raises(JobError, match=words):
        check_mesh(mesh, model=MODEL, batch_size=48)


def test_interleaved_schedules_refuse_unequal_rounds() -> None:
    mesh = MeshSpec(pp=3, micro_batches=7, schedule=PipelineSchedule.INTERLEAVED, stages_per_rank=2)
    with pytest.raises(JobError, match="in 2 equal rounds of about pp 3, and 7 does not divide; take 6"):
        check_mesh(mesh, model=MODEL, batch_size=49)


def test_the_product_is_held_against_the_ranks_there_are() -> None:
    mesh = MeshSpec(dp=3, tp=2)
    with pytest.raises(JobError, match="pp 1 x dp 3 x shard 1 x tp 2 = 6 ranks, and there are 8"):
        check_mesh(mesh, model=MODEL, batch_size=48, ranks=8)
    check_mesh(mesh, model=MODEL, batch_size=48, ranks=6)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(JobError) as caught:
        check_mesh(MeshSpec(tp=7), model=MODEL, batch_size=48)
    assert len(str(caught.value).splitlines()) == 5


def test_tensor_parallel_is_fastest_and_the_order_can_be_changed() -> None:
    mesh = MeshSpec(pp=2, dp=3, tp=4)
    places = [place_of(rank, mesh) for rank in range(24)]
    assert [place.tp for place in places[:5]] == [0, 1, 2, 3, 0]
    assert [(p.pp, p.dp, p.shard, p.tp) for p in places] == sorted((p.pp, p.dp, p.shard, p.tp) for p in places)
    turned = replace(mesh, order=("dp", "tp", "shard", "pp"))
    assert [place_of(rank, turned).pp for rank in range(4)] == [0, 1, 0, 1]
    assert len({place_of(rank, turned) for rank in range(24)}) == 24
    assert AXES == ("pp", "dp", "shard", "tp")


def test_blocks_are_spread_evenly_unless_given() -> None:
    assert blocks_per_stage(MeshSpec(pp=3), MODEL) == (3, 3, 2)
    assert blocks_per_stage(MeshSpec(pp=2, blocks_per_stage=(6, 2)), MODEL) == (6, 2)


def test_stages_go_round_or_down_and_up_again() -> None:
    looped = MeshSpec(pp=2, stages_per_rank=3, schedule=PipelineSchedule.INTERLEAVED)
    assert [stages_of_rank(looped, rank) for rank in range(2)] == [(0, 2, 4), (1, 3, 5)]
    vee = MeshSpec(pp=3, stages_per_rank=2, schedule=PipelineSchedule.ZBV)
    assert [stages_of_rank(vee, rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert [rank_of_stage(vee, stage) for stage in range(6)] == [0, 1, 2, 2, 1, 0]


def test_nearest_divisor() -> None:
    assert [nearest_divisor(12, wanted) for wanted in (5, 8, 9, 100)] == [4, 6, 6, 12]
