"""Snapshots and resuming through Ray: the bits of a run that was never cut, whatever the layout before and after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hetero.checkpoint.search import latest_good
from hetero.checkpoint.snapshot import list_snapshots
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, RunProgress, TrainOutcome
from hetero.loops.snapshots import SnapshotPlace, SnapshotReport
from hetero.loops.tower_state import ResumePoint
from hetero.records import JobSpec, Mode, RoleSpec, RowOptimizer, RowOptimizerSpec, SnapshotSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.paced_tower import PACED
from tests.support.runs import Finished, alive, finish

ROWS = (1043, 1044, 1126)
STEPS = 2 * 51


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("data")
    files = [write_data(folder / f"{n}.parquet", rows=rows, seed=n) for n, rows in enumerate(ROWS)]
    return small_job(data_spec(*files, shuffle=True), epochs=2, tower=PACED)


@pytest.fixture(scope="module")
def whole(job: JobSpec) -> Finished:
    return finish(job, in_process=True)


def laid_out(job: JobSpec, *, readers: int, servers: int, towers: int = 1, window: int = 0) -> JobSpec:
    return replace(
        job,
        window=window,
        readers=RoleSpec(count=readers),
        servers=RoleSpec(count=servers),
        towers=RoleSpec(count=towers),
    )


def resume(job: JobSpec, folder: Path, place: SnapshotPlace | None = None) -> TrainOutcome:
    snapshot = latest_good(folder, job=job).good
    assert snapshot is not None
    with alive(job, in_process=False) as run:
        run.restore(snapshot)
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        data = replace(data, start=ResumePoint.of(snapshot).cursor)
        return run.train(data, watch=lambda _: None, snapshots=place or SnapshotPlace(folder=str(folder)))


@dataclass
class StopAt:
    """Asks for a stop once a step is reached, and lets one snapshot be written before that."""

    step: int
    seen: int = 0

    def watch(self, progress: RunProgress) -> None:
        self.seen = progress.step

    def asked(self) -> bool:
        return self.seen >= self.step


def stop_at(job: JobSpec, folder: Path, *, step: int) -> TrainOutcome:
    stop = StopAt(step)
    with alive(job, in_process=False) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        place = SnapshotPlace(folder=str(folder), stop=stop.asked)
        return run.train(data, watch=stop.watch, snapshots=place)


@pytest.mark.slow
def test_stopped_and_resumed_with_other_numbers_is_the_undisturbed_run(
    job: JobSpec, whole: Finished, tmp_path: Path
) -> None:
    first = stop_at(laid_out(job, readers=1, servers=2, window=4), tmp_path, step=5)
    assert first.stopped
    (report,) = first.snapshots
    assert report.error is None
    assert report.step == len(first.losses) < STEPS
    assert list_snapshots(tmp_path) == (Path(report.path).name,)
    second = resume(laid_out(job, readers=2, servers=3, window=7), tmp_path)
    np.testing.assert_array_equal(second.losses, whole.outcome.losses)
    assert second.rows == whole.outcome.rows


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("before", "after"), [((1, 3, 0), (2, 1, 4)), ((2, 1, 7), (1, 2, 0)), ((1, 1, 1), (1, 2, 9))])
def test_snapshots_while_training_goes_on(
    job: JobSpec, whole: Finished, tmp_path: Path, before: tuple[int, int, int], after: tuple[int, int, int]
) -> None:
    """Rows change while servers write them: what is written is the cut."""
    one, two = (laid_out(job, readers=r, servers=s, window=w) for r, s, w in (before, after))
    one = replace(one, snapshots=SnapshotSpec(every_steps=11, keep=3))
    with alive(one, in_process=False) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        told: list[SnapshotReport] = []
        outcome = run.train(data, watch=lambda _: None, snapshots=SnapshotPlace(folder=str(tmp_path), told=told.append))
    np.testing.assert_array_equal(outcome.losses, whole.outcome.losses)
    assert told == list(outcome.snapshots)
    assert told
    assert all(report.error is None for report in told)
    np.testing.assert_array_equal(resume(two, tmp_path).losses, whole.outcome.losses)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("window", [4, 0])
def test_two_towers_are_cut_at_one_step_and_resumed_as_one(
    job: JobSpec, whole: Finished, tmp_path: Path, window: int
) -> None:
    first = stop_at(laid_out(job, readers=2, servers=2, towers=2, window=window), tmp_path, step=5)
    assert first.stopped
    second = resume(laid_out(job, readers=1, servers=1, window=4), tmp_path)
    np.testing.assert_allclose(second.losses, whole.outcome.losses, rtol=1e-5)
    assert second.rows == whole.outcome.rows


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "staleness"), [(Mode.BOUNDED, 4), (Mode.ASYNC, 0), (Mode.GEO, 6)])
def test_two_towers_of_other_modes_are_cut_at_one_step(
    job: JobSpec, whole: Finished, tmp_path: Path, mode: Mode, staleness: int
) -> None:
    """Every row is trained once in what is left of the run, and the losses of both halves are of the joint batch."""
    adagrad = RowOptimizerSpec(kind=RowOptimizer.ADAGRAD, lr=0.02)
    groups = tuple(replace(group, optimizer=adagrad) for group in job.groups)
    job = replace(job, mode=mode, staleness=staleness, groups=groups, snapshots=SnapshotSpec(every_steps=9))
    first = stop_at(laid_out(job, readers=2, servers=2, towers=2), tmp_path, step=20)
    assert first.stopped
    assert len(first.snapshots) >= 1
    assert all(report.error is None for report in first.snapshots)
    second = resume(laid_out(job, readers=1, servers=3, towers=2), tmp_path)
    assert second.rows == whole.outcome.rows
    assert len(second.losses) == STEPS
    np.testing.assert_array_equal(second.losses[: len(first.losses)], first.losses)
    assert np.isfinite(second.losses).all()
    assert abs(second.losses[-20:].mean() - whole.outcome.losses[-20:].mean()) < 0.1
