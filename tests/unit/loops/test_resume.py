"""Train n + snapshot + resume = train all, bit for bit, at any cut and with any numbers of readers and servers."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hetero.checkpoint.search import latest_good
from hetero.checkpoint.snapshot import list_snapshots
from hetero.loops.protocols import Phase
from hetero.loops.results import Scores
from hetero.loops.run import DataPass, RunReport, TrainOutcome
from hetero.loops.snapshots import SnapshotPlace
from hetero.loops.tower_state import ResumePoint
from hetero.records import AUTO_WINDOW, JobSpec, RoleSpec, SnapshotSpec, TowerSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import alive

ROWS = (243, 256, 300)
STEPS = 2 * -(-sum(ROWS) // 32)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a run came to."""

    outcome: TrainOutcome
    scores: Scores
    report: RunReport


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    """Two passes of 25 steps; the last step of each is of 31 rows."""
    folder: Path = tmp_path_factory.mktemp("data")
    files = [write_data(folder / f"{n}.parquet", rows=rows, seed=n, row_group=57) for n, rows in enumerate(ROWS)]
    return small_job(data_spec(*files, shuffle=True), batch_size=32, epochs=2)


def laid_out(job: JobSpec, *, readers: int, servers: int, window: int) -> JobSpec:
    return replace(job, readers=RoleSpec(count=readers), servers=RoleSpec(count=servers), window=window)


def train_on(job: JobSpec, folder: Path, *, resumed: bool, in_process: bool = True) -> Ended:
    with alive(job, in_process=in_process) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs, max_steps=job.max_steps)
        if resumed:
            snapshot = latest_good(folder, job=job).good
            assert snapshot is not None
            run.restore(snapshot)
            point = ResumePoint.of(snapshot)
            assert point.data == data.digest
            data = replace(data, start=point.cursor)
        outcome = run.train(data, watch=lambda _: None, snapshots=SnapshotPlace(folder=str(folder)))
        scores = run.score(DataPass.open(job.train, phase=Phase.TEST), watch=lambda _: None)
        return Ended(outcome=outcome, scores=scores, report=run.report())


def assert_equal(resumed: Ended, whole: Ended) -> None:
    np.testing.assert_array_equal(resumed.outcome.losses, whole.outcome.losses)
    np.testing.assert_array_equal(resumed.scores.predictions, whole.scores.predictions)
    assert resumed.report.rows == whole.report.rows
    assert resumed.outcome.rows == whole.outcome.rows


@pytest.fixture(scope="module")
def whole(job: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = train_on(job, tmp_path_factory.mktemp("whole"), resumed=False)
    assert len(ended.outcome.losses) == STEPS
    return ended


def check_resumed(
    job: JobSpec, whole: Ended, folder: Path, *, cut: int, first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    """first, second: readers, servers, window before and after."""
    one, two = (laid_out(job, readers=r, servers=s, window=w) for r, s, w in (first, second))
    train_on(replace(one, max_steps=cut, snapshots=SnapshotSpec(every_steps=cut)), folder, resumed=False)
    assert_equal(train_on(two, folder, resumed=True), whole)


@pytest.mark.parametrize(
    ("cut", "first", "second"),
    [
        (13, (2, 1, 0), (1, 3, 7)),
        (STEPS // 2, (1, 2, 4), (3, 1, 0)),  # between two passes
        (STEPS - 1, (1, 3, AUTO_WINDOW), (2, 2, 4)),
    ],
)
def test_a_resumed_run_is_the_undisturbed_one(
    job: JobSpec, whole: Ended, tmp_path: Path, cut: int, first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    check_resumed(job, whole, tmp_path, cut=cut, first=first, second=second)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_at_any_cut_with_any_layout_before_and_after(job: JobSpec, whole: Ended, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    first, second = (
        (chance.randint(1, 3), chance.randint(1, 3), chance.choice([0, 1, 4, 7, AUTO_WINDOW])) for _ in range(2)
    )
    check_resumed(job, whole, tmp_path, cut=chance.randint(1, STEPS), first=first, second=second)


def test_snapshots_change_nothing_and_the_newest_are_kept(job: JobSpec, whole: Ended, tmp_path: Path) -> None:
    often = replace(laid_out(job, readers=2, servers=2, window=7), snapshots=SnapshotSpec(every_steps=6, keep=3))
    ended = train_on(often, tmp_path, resumed=False)
    assert_equal(ended, whole)
    assert [report.step for report in ended.outcome.snapshots] == list(range(6, STEPS + 1, 6))
    assert list_snapshots(tmp_path) == tuple(f"step-{step:010d}" for step in (36, 42, 48))
    assert all(report.error is None and report.rows and report.pause_s > 0 for report in ended.outcome.snapshots)


def test_a_run_goes_on_many_times(job: JobSpec, whole: Ended, tmp_path: Path) -> None:
    spec = SnapshotSpec(every_steps=9)
    train_on(replace(job, max_steps=9, snapshots=spec), tmp_path, resumed=False)
    for stop in (18, 27, 36, 45):
        window = 4 if stop % 2 else 0
        train_on(replace(job, max_steps=stop, window=window, snapshots=spec), tmp_path, resumed=True)
    ended = train_on(job, tmp_path, resumed=True)
    assert_equal(ended, whole)
    assert len(ended.outcome.step_ends_t) == STEPS
    assert ended.outcome.training_s < whole.outcome.training_s * 20


def test_a_snapshot_that_cannot_be_written_is_told_and_ends_nothing(job: JobSpec, whole: Ended, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    often = replace(job, window=4, snapshots=SnapshotSpec(every_steps=20))
    ended = train_on(often, tmp_path / "file", resumed=False)
    assert_equal(ended, whole)
    assert [report.step for report in ended.outcome.snapshots] == [20, 40]
    assert all("file" in str(report.error) for report in ended.outcome.snapshots)


def test_a_run_is_stopped_after_the_step_under_way(job: JobSpec, tmp_path: Path) -> None:
    with alive(replace(job, window=4), in_process=True) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        outcome = run.train(
            data, watch=lambda _: None, snapshots=SnapshotPlace(folder=str(tmp_path), stop=lambda: True)
        )
    assert outcome.stopped
    assert [report.step for report in outcome.snapshots] == [len(outcome.losses)] == [2]


def test_buffers_and_dropout_go_on_too(job: JobSpec, tmp_path: Path) -> None:
    tower = TowerSpec(name="tests.support.coupled_tower:CoupledTower", lr=0.01)
    coupled = replace(job, tower=tower, window=4, epochs=1)
    whole = train_on(coupled, tmp_path / "whole", resumed=False)
    folder = tmp_path / "cut"
    train_on(replace(coupled, max_steps=10, snapshots=SnapshotSpec(every_steps=10)), folder, resumed=False)
    assert_equal(train_on(replace(coupled, window=0), folder, resumed=True), whole)


def test_snapshots_of_changes_go_on_as_whole_ones_do(job: JobSpec, whole: Ended, tmp_path: Path) -> None:
    spec = SnapshotSpec(every_steps=8, deltas=2, keep=1)
    cut = train_on(replace(job, window=4, max_steps=45, snapshots=spec), tmp_path, resumed=False)
    assert [report.error for report in cut.outcome.snapshots] == [None] * 5
    newest = latest_good(tmp_path, job=job).good
    assert newest is not None
    assert [base.name for base in newest.manifest.bases] == [f"step-{32:010d}"]  # 8, 16, 24 and 32, 40 go together
    assert list_snapshots(tmp_path) == tuple(f"step-{step:010d}" for step in (32, 40))
    assert_equal(train_on(laid_out(job, readers=1, servers=3, window=0), tmp_path, resumed=True), whole)
