"""Servers 2 -> 4 -> 1 on Ray while training goes on: the bits of the run that never changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from hetero.loops.moves import ServersChanging, ServersPlace, ServersReport
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, RunReport, TrainOutcome
from hetero.loops.snapshots import NOWHERE, SnapshotPlace
from hetero.records import F32, JobSpec, RoleSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import Finished, alive, finish


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("data")
    files = [write_data(folder / f"{n}.parquet", rows=rows, seed=n) for n, rows in enumerate((4043, 4044))]
    return replace(small_job(data_spec(*files, shuffle=True), epochs=6), servers=RoleSpec(count=2))


@pytest.fixture(scope="module")
def whole(job: JobSpec) -> Finished:
    return finish(job, in_process=True, score=True)


@dataclass(frozen=True, kw_only=True)
class Resized:
    """A run on Ray whose servers changed."""

    outcome: TrainOutcome
    report: RunReport
    predictions: F32
    told: list[ServersChanging | ServersReport] = field(default_factory=list)


def resize(job: JobSpec, *numbers: int, place: SnapshotPlace = NOWHERE) -> Resized:
    """Train with these numbers of servers, each asked for when the one before is there."""
    told: list[ServersChanging | ServersReport] = []
    wishes = iter(numbers)

    def asked() -> int | None:
        return next(wishes, None) if not told or isinstance(told[-1], ServersReport) else None

    with alive(job, in_process=False) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        servers = ServersPlace(asked=asked, told=told.append)
        outcome = run.train(data, watch=lambda _: None, snapshots=place, servers=servers)
        scores = run.score(DataPass.open(job.train, phase=Phase.TEST), watch=lambda _: None)
        return Resized(outcome=outcome, report=run.report(), predictions=scores.predictions, told=told)


def assert_equal(got: Resized, whole: Finished) -> None:
    np.testing.assert_array_equal(got.outcome.losses, whole.outcome.losses)
    assert got.report.rows == whole.report.rows  # none lost, none twice
    assert whole.scores is not None
    np.testing.assert_array_equal(got.predictions, whole.scores.predictions)


def changes(got: Resized) -> list[tuple[int, int, str | None]]:
    return [(report.before, report.after, report.error) for report in got.outcome.servers]


@pytest.mark.timeout(300)
def test_two_four_one_is_the_run_that_never_changed(job: JobSpec, whole: Finished) -> None:
    got = resize(replace(job, window=4), 4, 1)
    assert changes(got) == [(2, 4, None), (4, 1, None)]
    assert all(report.rows and report.bytes and report.pause_s > 0 for report in got.outcome.servers)
    assert got.outcome.servers[0].step < got.outcome.servers[1].step < len(got.outcome.losses)
    assert len(got.report.servers) == 1
    assert_equal(got, whole)
