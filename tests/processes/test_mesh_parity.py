"""On every mesh a model trains as by plain PyTorch: the short list. `test_mesh_parity_long.py` has all combinations."""

from __future__ import annotations

from hetero.records.mesh import MeshSpec, PipelineSchedule, Recompute
from tests.support.deep_runs import BERT, Case, check_parity, double


def test_meshes_of_up_to_four_ranks() -> None:
    check_parity(
        [
            Case(name="dp 2, float32", mesh=MeshSpec(dp=2)),
            Case(name="shard 2, stage 3, accumulation", mesh=double(shard=2, sharding=3, micro_batches=2)),
            Case(name="tp 2", mesh=double(tp=2)),
            Case(name="pp 2, 1F1B, uneven", mesh=double(pp=2, micro_batches=4, blocks_per_stage=(3, 1))),
            Case(
                name="pp 2 x shard 2, ZBV",
                mesh=double(pp=2, shard=2, micro_batches=4, stages_per_rank=2, schedule=PipelineSchedule.ZBV),
            ),
            Case(
                name="tied masked model, tp 2 x pp 2, selective recomputation",
                model=BERT,
                mesh=double(pp=2, tp=2, micro_batches=2, recompute=Recompute.SELECTIVE),
            ),
        ],
        size=4,
    )
