"""Leased windows of any length give the bits of pulling every step, in one tower and in several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.records import AUTO_WINDOW, JobSpec, RoleSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import Finished, finish


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("data")
    files = [write_data(folder / f"{n}.parquet", rows=700 + n, seed=n) for n in range(2)]
    return small_job(data_spec(*files, shuffle=True), epochs=2, servers=RoleSpec(count=2))


@pytest.fixture(scope="module")
def pulled(job: JobSpec) -> Finished:
    return finish(job, in_process=True, score=True)


@pytest.mark.parametrize("steps", [1, 4, 16, 1000, AUTO_WINDOW])
def test_windows_give_the_bits_of_pulling_every_step(job: JobSpec, pulled: Finished, steps: int) -> None:
    leased = finish(replace(job, window=steps), in_process=True, score=True)
    np.testing.assert_array_equal(leased.outcome.losses, pulled.outcome.losses)
    assert leased.scores is not None
    assert pulled.scores is not None
    np.testing.assert_array_equal(leased.scores.predictions, pulled.scores.predictions)
    assert leased.report.rows == pulled.report.rows
