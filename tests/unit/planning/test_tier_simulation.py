"""Predicted tiers against a run's: the same counts with all keys, hit rates within 3 points with a part of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.errors import PlanError
from hetero.loops.key_trace import windows_of_data, windows_of_zipf
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.planning.tiers import TierPrediction, simulate_tiers
from hetero.records import JobSpec
from tests.support.runs import finish
from tests.support.tiered_jobs import job_of, tiered


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder = tmp_path_factory.mktemp("tiers")
    return tiered(job_of(folder, window=4), folder)


def predicted(job: JobSpec, *, sample: float) -> TierPrediction:
    data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs, max_steps=job.max_steps)
    assert job.storage is not None
    trace = windows_of_data(replace(job, window=max(1, job.window)), data)
    (prediction,) = simulate_tiers(job, trace, budgets=[job.storage], sample=sample)
    return prediction


@pytest.mark.parametrize("window", [4, pytest.param(0, marks=pytest.mark.slow)])
def test_a_prediction_is_what_a_run_does(job: JobSpec, window: int) -> None:
    job = replace(job, window=window)
    tiers = finish(job, in_process=True).report.tiers
    measured = tiers["memory_hits"] / (tiers["memory_hits"] + tiers["ssd_hits"])
    assert 0.5 < measured < 0.98  # there is something to predict
    whole = predicted(job, sample=1.0)
    assert whole.memory_hit_rate == pytest.approx(measured, abs=0.002)
    assert whole.memory_rows + whole.ssd_rows == tiers["memory_rows"] + tiers["ssd_rows"]
    assert predicted(job, sample=0.25).memory_hit_rate == pytest.approx(measured, abs=0.03)


def test_more_memory_finds_more_rows(job: JobSpec) -> None:
    assert job.storage is not None
    budgets = [replace(job.storage, memory_bytes=job.storage.memory_bytes + more) for more in (0, 500_000, 4_000_000)]
    trace = windows_of_zipf(job, exponent=1.1, distinct=100_000, steps=40)
    rates = [p.memory_hit_rate for p in simulate_tiers(job, trace, budgets=budgets, sample=1.0)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] - 0.05


def test_a_sample_of_nothing_is_refused(job: JobSpec) -> None:
    with pytest.raises(PlanError, match="a share above 0"):
        simulate_tiers(job, iter(()), budgets=[], sample=0.0)
