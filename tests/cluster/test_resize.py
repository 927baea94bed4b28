"""Servers 2 -> 4 -> 1 on Ray while training goes on: the bits of the run that never changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import ray

from actors.clients import find_server
from actors.moving import TowerMove
from actors.naming import NAMESPACE
from actors.supervisor import RayRun
from hetero.checkpoint.search import latest_good
from hetero.errors import PeerLostError, ProtocolError
from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.server import RowServer
from hetero.loops.moves import ServersChanging, ServersPlace, ServersReport
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, RunProgress, RunReport, TrainingRun, TrainOutcome
from hetero.loops.snapshots import NOWHERE, SnapshotPlace
from hetero.loops.tower_state import ResumePoint
from hetero.observe.spans import SpanClock
from hetero.records import F32, JobSpec, RoleSpec, SnapshotSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.paced_tower import PACED
from tests.support.row_client import contract_job
from tests.support.runs import Finished, alive, finish


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("data")
    files = [write_data(folder / f"{n}.parquet", rows=rows, seed=n) for n, rows in enumerate((4043, 4044))]
    return small_job(data_spec(*files, shuffle=True), epochs=6, tower=PACED, servers=RoleSpec(count=2))


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
    with alive(job, in_process=False) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        outcome = run.train(data, watch=lambda _: None, snapshots=place, servers=one_by_one(numbers, told))
        scores = run.score(DataPass.open(job.train, phase=Phase.TEST), watch=lambda _: None)
        return Resized(outcome=outcome, report=run.report(), predictions=scores.predictions, told=told)


def one_by_one(numbers: Sequence[int], told: list[ServersChanging | ServersReport]) -> ServersPlace:
    wishes = iter(numbers)

    def asked() -> int | None:
        return next(wishes, None) if not told or isinstance(told[-1], ServersReport) else None

    return ServersPlace(asked=asked, told=told.append)


def resize_and_stop(
    job: JobSpec, folder: Path, *numbers: int, also: Callable[[TrainingRun], None] = lambda _: None
) -> TrainOutcome:
    """As `resize`, stopped some steps after the last change. also: done with every look."""
    told: list[ServersChanging | ServersReport] = []
    steps: list[int] = []

    def watch(progress: RunProgress) -> None:
        also(run)
        if sum(isinstance(news, ServersReport) for news in told) == len(numbers):
            steps.append(progress.step)

    place = SnapshotPlace(folder=str(folder), stop=lambda: bool(steps) and steps[-1] >= steps[0] + 10)
    with alive(job, in_process=False) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        outcome = run.train(data, watch=watch, snapshots=place, servers=one_by_one(numbers, told))
    assert outcome.stopped
    return outcome


def assert_equal(got: Resized, whole: Finished) -> None:
    np.testing.assert_array_equal(got.outcome.losses, whole.outcome.losses)
    assert got.report.rows == whole.report.rows  # none lost, none twice
    assert whole.scores is not None
    np.testing.assert_array_equal(got.predictions, whole.scores.predictions)


def changes(got: TrainOutcome) -> list[tuple[int, int, str | None]]:
    return [(report.before, report.after, report.error) for report in got.servers]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_four_one_is_the_run_that_never_changed(job: JobSpec, whole: Finished) -> None:
    got = resize(replace(job, window=4), 4, 1)
    assert changes(got.outcome) == [(2, 4, None), (4, 1, None)]
    assert all(report.rows and report.bytes and report.pause_s > 0 for report in got.outcome.servers)
    assert got.outcome.servers[0].step < got.outcome.servers[1].step < len(got.outcome.losses)
    assert len(got.report.servers) == 1
    assert_equal(got, whole)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("readers", "window"), [(2, 0), (1, 1)])
def test_with_pulls_and_windows_of_one_step(
    job: JobSpec, whole: Finished, tmp_path: Path, readers: int, window: int
) -> None:
    got = resize_and_stop(replace(job, window=window, readers=RoleSpec(count=readers)), tmp_path, 3, 1)
    assert changes(got) == [(2, 3, None), (3, 1, None)]
    np.testing.assert_array_equal(got.losses, whole.outcome.losses[: len(got.losses)])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("window", [4, 0])
def test_two_towers_learn_of_the_servers_together(job: JobSpec, whole: Finished, tmp_path: Path, window: int) -> None:
    got = resize_and_stop(replace(job, window=window, towers=RoleSpec(count=2)), tmp_path, 3, 1, 2)
    assert changes(got) == [(2, 3, None), (3, 1, None), (1, 2, None)]  # the place of one that left is taken again
    np.testing.assert_allclose(got.losses, whole.outcome.losses[: len(got.losses)], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_snapshots_while_servers_change_and_going_on_from_one(job: JobSpec, whole: Finished, tmp_path: Path) -> None:
    often = replace(job, window=4, snapshots=SnapshotSpec(every_steps=20, keep=2, deltas=1))
    place = SnapshotPlace(folder=str(tmp_path))
    got = resize(often, 4, 1, place=place)
    assert changes(got.outcome) == [(2, 4, None), (4, 1, None)]
    assert_equal(got, whole)
    assert all(report.error is None for report in got.outcome.snapshots)
    snapshot = latest_good(tmp_path, job=job).good
    assert snapshot is not None
    with alive(replace(job, servers=RoleSpec(count=3)), in_process=False) as run:
        run.restore(snapshot)
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        outcome = run.train(replace(data, start=ResumePoint.of(snapshot).cursor), watch=lambda _: None)
    np.testing.assert_array_equal(outcome.losses, whole.outcome.losses)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("numbers", [(4,), (1,)])
def test_a_stop_does_not_wait_for_a_change(
    job: JobSpec, whole: Finished, tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    stopped = False
    told: list[ServersChanging | ServersReport] = []

    def note(news: ServersChanging | ServersReport) -> None:
        nonlocal stopped
        stopped = True
        told.append(news)

    wishes = iter(numbers)
    with alive(replace(job, window=4), in_process=False) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        outcome = run.train(
            data,
            watch=lambda _: None,
            snapshots=SnapshotPlace(folder=str(tmp_path), stop=lambda: stopped),
            servers=ServersPlace(asked=lambda: next(wishes, None), told=note),
        )
    assert outcome.stopped
    assert len(outcome.losses) < len(whole.outcome.losses)
    assert [report.error for report in outcome.snapshots] == [None]
    snapshot = latest_good(tmp_path, job=job).good
    assert snapshot is not None
    with alive(job, in_process=True) as run:
        run.restore(snapshot)
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        again = run.train(replace(data, start=ResumePoint.of(snapshot).cursor), watch=lambda _: None)
        assert run.report().rows == whole.report.rows
    np.testing.assert_array_equal(again.losses, whole.outcome.losses)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_room_training_goes_on_with_the_number_there_is(job: JobSpec, whole: Finished, tmp_path: Path) -> None:
    got = resize_and_stop(replace(job, window=4, deadline_s=8.0), tmp_path, 64, 1)
    (before, after, error), down = changes(got)
    assert (before, after) == (2, 64)
    assert error is not None
    assert "no room for 62 more servers" in error
    assert down == (2, 1, None)
    np.testing.assert_array_equal(got.losses, whole.outcome.losses[: len(got.losses)])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_new_server_that_dies_ends_the_change_alone(job: JobSpec, whole: Finished, tmp_path: Path) -> None:
    killed: list[str] = []

    def kill_the_first_new_one(run: TrainingRun) -> None:
        assert isinstance(run, RayRun)
        name = f"{run.name}/server/3"
        if not killed and name in {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
            killed.append(name)

    got = resize_and_stop(replace(job, window=4), tmp_path, 4, 3, also=kill_the_first_new_one)
    first, second = changes(got)
    assert first[:2] == (2, 4)
    assert first[2] is not None
    assert "server/3" in first[2]
    assert second == (2, 3, None)
    np.testing.assert_array_equal(got.losses, whole.outcome.losses[: len(got.losses)])


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(PeerLostError, match="nobody/server/7 is not there"):
        find_server("nobody", 7, deadline_s=1.0)


def test_tower_0_hands_over_only_what_was_prepared() -> None:
    job = contract_job(servers=1)
    handles = [LocalServer(RowServer(job))]
    client = ShardedRowClient(job, tower=0, servers=handles, clock=SpanClock())
    with pytest.raises(ProtocolError, match="cut for a change of servers that nobody prepared"):
        TowerMove(client, lambda _: handles).hand_over(3)
