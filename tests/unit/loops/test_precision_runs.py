"""The job's precision in a run: `auto` on hardware without fast bf16 is fp32 to the bit, and bf16 learns as well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.hardware import precision as hardware_precision
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.metrics.auc import exact_auc
from hetero.records import JobSpec, Precision, TowerSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import Finished, alive, finish

CPU = "some CPU"


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    train = write_data(tmp_path / "train.parquet", rows=6000, seed=1, weights=False)
    tower = TowerSpec(name="wide_and_deep", args={"hidden": [32, 16]}, lr=0.003)
    return small_job(data_spec(train, weights=False), tower=tower, epochs=3, window=4)


def on_a_cpu_with(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(hardware_precision, "cpu_model_and_flags", lambda: (CPU, flags))


def run(job: JobSpec, precision: Precision) -> Finished:
    return finish(replace(job, precision=precision), in_process=True, score=True)


def auc_of(ran: Finished) -> float:
    assert ran.scores is not None
    value = exact_auc(ran.scores.labels, ran.scores.predictions)
    assert value is not None
    return value


def test_auto_without_fast_bf16_is_fp32_to_the_bit(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_cpu_with(monkeypatch, "avx2", "fma")
    auto, plain = run(job, Precision.AUTO), run(job, Precision.FP32)
    np.testing.assert_array_equal(auto.outcome.losses, plain.outcome.losses)
    assert auto.scores is not None
    assert plain.scores is not None
    np.testing.assert_array_equal(auto.scores.predictions, plain.scores.predictions)
    assert auto.report.precision.taken is Precision.FP32
    assert CPU in auto.report.precision.why


@pytest.mark.slow
def test_bf16_learns_as_fp32_does(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_cpu_with(monkeypatch, "avx2", "avx512_bf16")
    plain, half = run(job, Precision.FP32), run(job, Precision.AUTO)
    assert half.report.precision.taken is Precision.BF16
    assert np.isfinite(half.outcome.losses).all()
    assert (half.outcome.losses != plain.outcome.losses).any(), "bf16 changed no bit: it was not used"
    assert half.outcome.losses[-20:].mean() < half.outcome.losses[:20].mean() - 0.02
    assert auc_of(plain) > 0.65
    assert auc_of(half) == pytest.approx(auc_of(plain), abs=0.002)


def test_bf16_by_hand_is_emulated_and_says_so(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_cpu_with(monkeypatch, "avx2")
    ran = run(replace(job, max_steps=3, epochs=1), Precision.BF16)
    assert ran.report.precision.taken is Precision.BF16
    assert "emulated" in ran.report.precision.why
    assert len(ran.outcome.losses) == 3


def test_scores_are_fp32_whatever_the_run_trains_in(job: JobSpec) -> None:
    """Two models of the same rows and parameters: one run trains in bf16, the other in fp32."""
    data = DataPass.open(job.train, phase=Phase.TEST)
    scores = []
    for precision in (Precision.BF16, Precision.FP32):
        with alive(replace(job, precision=precision), in_process=True) as run:
            assert run.precision.taken is precision
            scores.append(run.score(data, watch=lambda _: None).predictions)
    np.testing.assert_array_equal(scores[0], scores[1])
