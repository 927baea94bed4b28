"""The device tier on the CPU: rows as tensors, torch operations, and the bits of host memory with its kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.records import AUTO_WINDOW, JobSpec, RoleSpec, RowOptimizer, RowOptimizerSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import Finished, finish


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("data")
    files = [write_data(folder / f"{n}.parquet", rows=700 + n, seed=n) for n in range(2)]
    return small_job(data_spec(*files, shuffle=True), servers=RoleSpec(count=2), window=4)


def assert_same_bits(one: Finished, other: Finished) -> None:
    assert one.scores is not None
    assert other.scores is not None
    np.testing.assert_array_equal(one.outcome.losses, other.outcome.losses)
    np.testing.assert_array_equal(one.scores.predictions, other.scores.predictions)
    assert one.report.rows == other.report.rows


@pytest.mark.parametrize("kind", list(RowOptimizer))
def test_a_run_on_a_device_gives_the_bits_of_the_servers_optimizers(job: JobSpec, kind: RowOptimizer) -> None:
    spec = RowOptimizerSpec(kind=kind, l2=0.01, l1=0.02, initial_accumulator=0.1)
    job = replace(job, groups=tuple(replace(group, optimizer=spec) for group in job.groups))
    pulled = finish(replace(job, window=0), in_process=True, score=True)
    on_device = finish(replace(job, device="cpu"), in_process=True, score=True)
    assert_same_bits(on_device, pulled)


@pytest.mark.parametrize("window", [0, 1, 16, AUTO_WINDOW])
def test_any_window_gives_them(job: JobSpec, window: int) -> None:
    on_host = finish(job, in_process=True, score=True)
    on_device = finish(replace(job, device="cpu", window=window), in_process=True, score=True)
    assert_same_bits(on_device, on_host)
    moved = on_device.report.traffic
    assert (moved["to_device"] > 0) == (moved["from_device"] > 0) == (window != 0)
    assert on_host.report.traffic["to_device"] == 0
