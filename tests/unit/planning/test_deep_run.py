"""What a deep run's ranks predict before the first step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.planning.deep_run import ASSUMED_EFFICIENCY, RankRates, mesh_plan_of, predict_deep
from hetero.planning.pipeline import gpipe_bubble_share
from hetero.planning.shape import TransformerShape
from hetero.records.deep_job import DeepJobSpec, TextSpec
from hetero.records.mesh import DeepOptimizerSpec, DeepPrecision, MeshSpec, PipelineSchedule
from hetero.records.transformer import MlpKind, NormKind, Positions, TransformerSpec

MODEL = TransformerSpec(layers=8, width=64, heads=4, kv_heads=2, hidden=128, vocabulary=64, context=32)
RATES = RankRates(matrix_flops=4e9, block_flops=2e9, base_bytes=1 << 28)


def job_of(mesh: MeshSpec, *, model: TransformerSpec = MODEL) -> DeepJobSpec:
    return DeepJobSpec(
        name="small",
        seed=1,
        text=TextSpec(train="t", validation=None, vocabulary=64),
        model=model,
        mesh=mesh,
        optimizer=DeepOptimizerSpec(steps=6),
        batch_size=16,
        steps=6,
    )


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        replace(MODEL, mlp=MlpKind.PLAIN, norm=NormKind.LAYER, bias=True, positions=Positions.LEARNED),
        replace(MODEL, tied=True, kv_heads=4),
    ],
)
def test_a_shape_has_the_parameters_and_flops_of_the_model(model: TransformerSpec) -> None:
    shape = TransformerShape.of(model)
    last_norm = model.parameters - shape.parameters
    assert 0 <= last_norm <= 2 * model.width
    assert shape.model_flops(1) / model.context == pytest.approx(model.flops_per_token, rel=0.02)


def test_one_rank_computes_and_updates() -> None:
    job = job_of(MeshSpec())
    found = predict_deep(job, [RATES])
    shape = TransformerShape.of(MODEL)
    step_s = shape.model_flops(16) / 2e9 + 2 * 16 * shape.parameters / 1e10
    assert found.tokens_per_s == pytest.approx(16 * 32 / step_s)
    assert (found.bubble, found.sent_bytes, found.assumed) == ({}, {}, ())
    assert found.peak_bytes["rank/0"] > RATES.base_bytes + 16 * shape.parameters


def test_a_rank_whose_block_was_not_measured_is_predicted_by_an_assumption_that_is_told() -> None:
    unknown = replace(RATES, block_flops=None)
    assumed, known = (predict_deep(job_of(MeshSpec()), [each]) for each in (unknown, RATES))
    assert ASSUMED_EFFICIENCY * unknown.matrix_flops == RATES.block_flops
    assert assumed.tokens_per_s == known.tokens_per_s
    assert assumed.assumed


def test_the_slowest_rank_and_the_slowest_sum_count() -> None:
    job = job_of(MeshSpec(dp=2))
    even = replace(RATES, small_s=1e-4, large_s=1e-2)
    slow = replace(even, block_flops=1e9, large_s=2e-2)
    assert mesh_plan_of(job, [even, slow]).grid.device.half_flops == 1e9
    alone, both = (predict_deep(job, rates) for rates in ([even, even], [even, slow]))
    assert both.tokens_per_s < alone.tokens_per_s
    (sent,) = both.sent_bytes.values()
    assert sent == pytest.approx(2 * 4 * TransformerShape.of(MODEL).parameters)


def test_bubbles_of_equal_stages_are_those_of_the_closed_form() -> None:
    model = replace(MODEL, vocabulary=8, layers=8)
    mesh = MeshSpec(pp=4, micro_batches=8, schedule=PipelineSchedule.GPIPE)
    bubble = predict_deep(job_of(mesh, model=model), [RATES] * 4).bubble
    assert list(bubble) == ["pp/0", "pp/1", "pp/2", "pp/3"]
    assert bubble["pp/0"] == pytest.approx(gpipe_bubble_share(4, 8), rel=0.05)
    uneven = replace(mesh, blocks_per_stage=(5, 1, 1, 1))
    assert predict_deep(job_of(uneven, model=model), [RATES] * 4).bubble["pp/3"] > 0.6


def test_half_precision_keeps_masters_and_gathers_halves() -> None:
    parameters = TransformerShape.of(MODEL).parameters
    job = job_of(MeshSpec(shard=2, sharding=3, precision=DeepPrecision.BF16))
    found = predict_deep(job, [RATES] * 2)
    gathered, scattered = 2 * 2 * parameters, 4 * parameters
    assert found.sent_bytes["shard"] == pytest.approx(2 * (gathered + scattered) / 2)
    assert found.peak_bytes["rank/0"] - RATES.base_bytes > 16 * parameters / 2
